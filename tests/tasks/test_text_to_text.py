"""Texts to texts: losses and written texts beside transformers, ROUGE beside rouge-score, runs and errors."""

import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

import bytelm
from lm.metrics.rouge import english_words, rouge, unicode_words
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model
from pipelines.run.task_outputs import task_outputs
from pipelines.tasks.data import reader_of
from pipelines.tasks.examples import batch_of
from pipelines.tasks.task import Example
from pipelines.tasks.text_to_text import TextToText, WrittenTexts
from pipelines.training.batch_loss import summed_loss
from pipelines.verbs.import_hf import import_hf
from tests.pipelines.exchange_cases import save_peer
from tests.pipelines.gguf_cases import random_run
from tests.tasks.files import write
from tokenizer import Tokenizer

CPU = torch.device("cpu")
PAIRS = [("the cat sat", "a cat"), ("one two three four", "1 2 3 4"), ("naïve — 漢字", "ok"), ("x " * 40, "y " * 40)]
SETTINGS = {"epochs": 3, "lr": 3e-3, "batch_size": 8, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def peers(tmp_path_factory, tokenizer_folder):
    """Return get(kind), which returns a random model of transformers and the run imported from it."""
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("peers") / kind
            peer = save_peer(folder, kind, tokenizer_folder)
            made[kind] = peer, Run(import_hf(str(folder), out=folder.with_name("run")))
        return made[kind]

    return get


def encoded(run, task, pairs=PAIRS):
    return task.encode([Example(None, *pair) for pair in pairs], reader_of(run, task))


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_the_loss_of_a_batch_is_that_of_transformers(peers, kind):
    peer, run = peers(kind)
    model = load_model(run, "cpu").model
    examples = encoded(run, TextToText(), PAIRS[: 4 if kind == "t5" else 3])  # GPT-2 has no place for one token more
    batch = batch_of(examples)
    ours = summed_loss(model, model, batch, device=CPU) / batch.weights.sum()
    labels = torch.from_numpy(batch.targets).masked_fill(torch.from_numpy(batch.weights) == 0, -100)
    if kind == "t5":
        present = torch.from_numpy(batch.source_present).long()
        theirs = peer(input_ids=torch.from_numpy(batch.source), attention_mask=present, labels=labels).loss
    else:  # transformers shifts the labels itself: they are those of the token at their own place
        shifted = torch.cat([torch.full((len(labels), 1), -100), labels], dim=1)
        ids = torch.cat([torch.from_numpy(batch.inputs), torch.zeros(len(labels), 1, dtype=torch.int64)], dim=1)
        theirs = peer(input_ids=ids, labels=shifted).loss
    assert float(ours) == pytest.approx(float(theirs), abs=1e-5)
    scores = task_outputs(model, examples)
    here = [slice(None) if one.weights is None else one.weights > 0 for one in examples]
    nats = [score[targets, 0] for score, targets in zip(scores, here, strict=True)]
    assert sum(float(part.sum()) for part in nats) / batch.weights.sum() == pytest.approx(float(theirs), abs=1e-5)


@pytest.mark.parametrize(("kind", "beams"), [("t5", 1), ("t5", 3), ("gpt2", 1)])
def test_the_written_texts_are_those_of_transformers(peers, kind, beams):
    from pipelines.run.predictor import Predictor

    peer, run = peers(kind)
    run.recipe = type(run.recipe)(
        objective=run.recipe.objective, model=run.recipe.model, task=TextToText(target_length=8, beams=beams)
    )
    predictor = Predictor.of(run, load_model(run, "cpu"))
    examples = encoded(run, run.recipe.task, [(source, None) for source, _ in PAIRS])
    ours = [one.text for one in predictor.task.outputs(predictor, examples, labelled=False)]
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": beams, "early_stopping": True}
    for one, text in zip(examples, ours, strict=True):
        prompt = torch.from_numpy(one.ids if kind == "gpt2" else one.source).unsqueeze(0)
        found = peer.generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0].tolist()
        found = found[prompt.shape[1] :] if kind == "gpt2" else found[1:]
        found = found[: found.index(0)] if 0 in found else found
        assert text == predictor.reader.tokenizer.decode(found)


def test_a_decoder_reads_source_separator_and_target_and_learns_the_target_alone(trained_gpt):
    run = Run(trained_gpt)
    tok = run.tokenizer()
    [one] = encoded(run, TextToText(), [("ab", "cd")])
    end, sep = tok.special_tokens["<|endoftext|>"], tok.special_tokens["<|sep|>"]
    assert one.ids.tolist() == [end, *tok.encode("ab"), sep, *tok.encode("cd")]
    assert one.targets[one.weights > 0].tolist() == [*tok.encode("cd"), end]
    [long] = encoded(run, TextToText(target_length=5), [("a b c d " * 50, "e f g h " * 50)])
    assert len(long.ids) == run.recipe.model.context_length and long.weights.sum() == 5 and long.cut


def test_an_encoder_decoder_reads_the_target_after_its_start(trained_t5):
    run = Run(trained_t5)
    tok = run.tokenizer()
    [one] = encoded(run, TextToText(), [("ab", "cd")])
    end = tok.special_tokens["<|endoftext|>"]
    assert one.source.tolist() == [*tok.encode("ab"), end]
    assert (one.ids.tolist(), one.targets.tolist()) == ([end, *tok.encode("cd")], [*tok.encode("cd"), end])


# ROUGE


def test_rouge_with_the_english_rule_equals_rouge_score():
    """The file holds the results of rouge-score 0.1.2 without its stemmer."""
    rows = json.loads(Path(__file__).with_name("rouge_vectors.json").read_text(encoding="utf-8"))
    for row in rows:
        found = rouge(row["text"], row["reference"], english_words)
        assert found == pytest.approx(row["f1"], abs=1e-12), row
    assert rows[0]["f1"] == pytest.approx([0.9412, 0.4, 0.5882, 0.8235], abs=1e-4)
    assert len(rows) > 50


def test_rouge_reads_words_of_all_scripts():
    text = "Привет мир"
    assert rouge(text, text) == (1, 1, 1, 1)
    assert rouge(text, text, english_words) == (0, 0, 0, 0)
    assert unicode_words("Naïve 漢字, नमस्ते!") == ["naïve", "漢", "字", "नमस्ते"]


@given(st.text("ab \n", max_size=30), st.text("ab \n", max_size=30))
def test_rouge_is_between_0_and_1_and_symmetric_in_single_words(one, other):
    forward, back = rouge(one, other), rouge(other, one)
    assert all(0 <= value <= 1 for value in forward)
    assert forward[:3] == back[:3]
    assert forward.rouge_l <= forward.rouge_1
    assert forward.rouge_l <= forward.rouge_lsum + 1e-12 or "\n" in one + other


# Runs


@pytest.fixture(scope="module")
def rows():
    return [{"en": a, "de": b} for a, b in (("one", "eins"), ("two", "zwei"), ("three", "drei"), ("four", "vier"))]


def test_a_run_learns_to_write_targets(tmp_path, trained_gpt, rows):
    data, test = write(tmp_path / "train.jsonl", rows * 80), write(tmp_path / "test.jsonl", rows)
    settings = SETTINGS | {"dropout": 0.0, "lr": 1e-2, "epochs": 5}
    options = {"data": [data], "test": [test], "out": tmp_path / "run", "options": {"write": 3}, "train": settings}
    bytelm.finetune(trained_gpt, task="text-to-text", compare_scratch=False, **options)
    split = Evaluation.read(tmp_path / "run").validation
    texts = [one["prediction"] for one in bytelm.predict(tmp_path / "run", text=tuple(row["en"] for row in rows))]
    right = [text == row["de"] for text, row in zip(texts, rows, strict=True)]
    assert sum(right) >= 3
    chosen = [0, 1, 3]
    assert (split.written, split.examples) == (3, 4)
    assert split.exact_match == pytest.approx(sum(right[i] for i in chosen) / 3)
    references = [rows[i]["de"] for i in chosen]
    assert split.chrf == pytest.approx(CHRF().corpus_score([texts[i] for i in chosen], [references]).score)
    assert split.bytes == sum(len(row["de"].encode()) for row in rows)
    assert split.bits_per_byte == pytest.approx(split.cross_entropy * split.tokens / math.log(2) / split.bytes)
    copied = split.comparison.others["the source itself"]
    assert copied["chrF"] == pytest.approx(CHRF().corpus_score([rows[i]["en"] for i in chosen], [references]).score)
    assert split.comparison.gain("the source itself") > 0
    assert [one.source for one in split.texts.texts] == [rows[i]["en"] for i in chosen]


def test_an_encoder_decoder_is_searched_with_beams(in_process, tmp_path, trained_t5, rows):
    data = write(tmp_path / "rows.jsonl", rows * 4)
    options = ["--data", data, "--test", data, "--out", tmp_path / "run", "--no-compare-scratch", "--device", "cpu"]
    done = in_process("finetune", trained_t5, "--task", "text-to-text", *options, "--epochs", 1, "--beams", 2)
    assert done.returncode == 0, done.stderr
    assert in_process("predict", tmp_path / "run", "one").returncode == 0
    assert Evaluation.read(tmp_path / "run").validation.written == 16


def test_the_command_trains_a_decoder_resumes_it_and_predicts(in_process, tmp_path, trained_gpt, rows):
    data = write(tmp_path / "rows.jsonl", [{"translation": row} for row in rows * 6])
    options = ["--data", data, "--out", tmp_path / "run", "--no-compare-scratch", "--device", "cpu", "--write", 2]
    command = ["finetune", trained_gpt, "--task", "text-to-text", "--held-out", "0.3", *options]
    done = in_process(*command, "--epochs", 1)
    assert done.returncode == 0, done.stderr
    assert "chrF" in done.stdout and "Written texts" in done.stdout
    assert "power of e" not in done.stdout  # a perplexity that is not measured is not one that is too large
    again = in_process(*command, "--epochs", 2)
    assert again.returncode == 0 and "resuming from step" in again.stdout + again.stderr
    assert Run(tmp_path / "run").recipe.task.columns == ("translation.en", "translation.de")
    said = in_process("predict", tmp_path / "run", "one two", "--json")
    assert set(json.loads(said.stdout)) == {"prediction"}
    assert in_process("predict", tmp_path / "run", "--file", data, "--out", tmp_path / "p.jsonl").returncode == 0
    lines = (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 6 * len(rows) and all("prediction" in json.loads(line) for line in lines)
    assert in_process("report", tmp_path / "run").returncode == 0
    assert in_process("generate", tmp_path / "run", "--prompt", "one", "--tokens", 3).returncode == 0


def test_an_evaluation_without_written_texts_has_probabilities_only(tmp_path, trained_gpt, rows):
    data = write(tmp_path / "rows.jsonl", rows * 6)
    bytelm.finetune(
        trained_gpt,
        task="text-to-text",
        data=[data],
        held_out=0.3,
        out=tmp_path / "run",
        options={"write": 0},
        train=SETTINGS | {"epochs": 1},
    )
    split = Evaluation.read(tmp_path / "run").validation
    assert (split.chrf, split.written, split.texts) == (None, None, WrittenTexts(()))
    assert split.comparison.number == "accuracy" and set(split.comparison.others) == {"the same from scratch"}


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"source": 3, "target": "a"}, {}, '"source" in line 1 of .* is 3, not a text'),
        ({"source": "a", "target": ["b"]}, {}, r'"target" in line 1 of .* is \[.b.\], not a text'),
        ({"fr": "a", "it": "b"}, {}, 'has no field "source": it has fr, it; choose with `columns`'),
        ({"source": "", "target": None}, {}, "holds no example: give rows with source and target"),
        ({"source": "a", "target": "\ud800"}, {}, "lone surrogate"),
        ({"source": "a", "target": "b"}, {"target_length": 40}, "`target_length` is 40, but the model reads 32 tokens"),
        ({"source": "a", "target": "b"}, {"beams": 2}, "only an encoder-decoder is searched"),
        ({"source": "a", "target": "b"}, {"write": -1}, "`write` is -1, but must be at least 0"),
        ({"source": "a", "target": "b"}, {"columns": ("a",)}, "`columns` names 1, but the task text-to-text reads 2"),
    ],
)
def test_unusable_examples_and_options_are_refused(tmp_path, trained_gpt, row, options, message):
    data = tmp_path / "rows.jsonl"
    data.write_text(3 * (json.dumps(row) + "\n"))  # in ASCII, which can spell a lone surrogate
    with pytest.raises(ValueError, match=message), warnings.catch_warnings(action="ignore"):
        bytelm.finetune(
            trained_gpt, task="text-to-text", data=[data], test=[data], out=tmp_path / "run", options=options
        )
    assert not (tmp_path / "run").exists()


def test_an_encoder_is_refused(tmp_path, trained_bert):
    data = write(tmp_path / "rows.jsonl", [{"source": "a", "target": "b"}])
    with pytest.raises(ValueError, match="'encoder', but the task text-to-text is for encoder-decoder and decoder"):
        bytelm.finetune(trained_bert, task="text-to-text", data=[data], out=tmp_path / "run")


@pytest.mark.parametrize("above", [{"tied_head": False}, {"norm_position": "pre"}])
def test_all_blocks_are_frozen_only_if_weights_above_them_can_train(above, tokenizer_folder, tmp_path):
    tok, shape = Tokenizer.load(tokenizer_folder), {"layers": 1, "tied_head": True, "norm_position": "post"}
    without, with_some = (random_run(tmp_path / str(n), tok, **shape | fields) for n, fields in enumerate(({}, above)))
    data = write(tmp_path / "rows.jsonl", [{"source": str(n), "target": str(n + 1)} for n in range(20)])
    call = {"task": "text-to-text", "data": data, "held_out": 0.3, "out": tmp_path / "out", "compare_scratch": False}
    frozen = SETTINGS | {"epochs": 1, "freeze": 1}
    with pytest.raises(ValueError, match=r"`freeze` is 1, but the model of .* has no weights above its 1 blocks"):
        bytelm.finetune(without, **call, train=frozen)
    assert not (tmp_path / "out").exists()
    bytelm.finetune(with_some, **call, train=frozen)

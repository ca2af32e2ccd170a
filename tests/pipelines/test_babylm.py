"""The BabyLM kit: budgets and checkpoints by words, exports with a start token, and scores as BabyLM computes them."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bytelm
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import load_recipe
from pipelines.run.folder import Run
from pipelines.run.retention import checkpoint_folders, readable_state
from pipelines.training.word_budget import count_words
from tests.pipelines.test_cli import assert_refused
from tests.tasks.files import write
from tokenizer import Tokenizer

REPOSITORY = Path(__file__).parents[2]
PAIRS = [
    {"sentence_good": "the cats run.", "sentence_bad": "the cats runs."},
    {"sentence_good": "Who has a path?", "sentence_bad": "What a path has?"},
    {"sentence_good": "x", "sentence_bad": "é\u00a0ß  y"},
]


@pytest.fixture(scope="module")
def run_by_words(tmp_path_factory, small_recipe, dataset_folder):
    """Return a run of 3,000 words with checkpoints by words from 200 on, in steps of about 25 words."""
    folder = tmp_path_factory.mktemp("words") / "run"
    train = {"words": 3000, "keep_words": 200, "batch_tokens": 96, "checkpoint_every_tokens": 10**9}
    bytelm.pretrain(small_recipe, data=dataset_folder, out=folder, train=train | {"keep_checkpoints": 1})
    return folder


@pytest.fixture(scope="module")
def babylm(run_by_words):
    """Return the folder of the exports of `run_by_words`, one for each checkpoint by words."""
    out = run_by_words.with_name("babylm")
    return bytelm.export_hf(run_by_words, out=out, start_token=True, by_words=True)


def test_a_budget_of_words_gives_the_tokens_of_as_much_average_text(run_by_words, dataset_folder):
    stream, tok = TokenDataset(dataset_folder).split("train"), Tokenizer.load(dataset_folder)
    text = tok.decode_bytes(np.concatenate(stream.chunks()).tolist())
    words = len(text.replace(b"<|endoftext|>", b" ").split())
    assert count_words(stream, tok) == words
    train = Run(run_by_words).recipe.train
    assert train.tokens == pytest.approx(3000 * stream.tokens / words, abs=1)
    assert train.tokens <= readable_state(checkpoint_folders(run_by_words)[-1])["tokens"] < train.tokens + 96


@given(st.lists(st.text(alphabet=" \n\t\u00a0\u3000aé.", max_size=12), max_size=5))
def test_words_are_counted_as_python_splits_bytes(tokenizer_folder, texts):
    tok = Tokenizer.load(tokenizer_folder)
    chunks = [np.array([0, *tok.encode_ordinary(text)], np.uint16) for text in texts]
    assert count_words(TokenStream(chunks, 1), tok) == sum(len(text.encode().split()) for text in texts)


def test_words_of_a_tokenizer_that_loses_text_are_those_of_its_decoded_text(wordpiece_run, text_folder):
    tok = Tokenizer.load(wordpiece_run)
    ids = tok.encode_ordinary(next(text_folder.iterdir()).read_text())
    assert count_words(TokenStream([np.array(ids)], 1), tok) == len(tok.decode_bytes(ids).split())


def test_checkpoints_are_kept_at_the_words_of_babylm(run_by_words, babylm):
    marks = (200, 400, 600, 800, "1k", 1200, 1400, 1600, 1800, "2k")
    assert {path.name for path in babylm.iterdir()} == {f"chck_{mark}" for mark in marks}
    train = Run(run_by_words).recipe.train
    for folder in checkpoint_folders(run_by_words)[:-1]:
        tokens = readable_state(folder)["tokens"]
        assert train.word_mark(tokens) > train.word_mark(tokens - 96)  # the first step past the mark


def test_marks_are_every_million_words_then_every_ten_then_every_hundred():
    train = TrainConfig(words=1_000_000_000, keep_words=1_000_000, tokens=1_300_000_000)
    marks = dict.fromkeys(train.word_mark(tokens) for tokens in range(0, 1_300_000_001, 100_000))
    millions = [0, *range(1, 10), *range(10, 100, 10), *range(100, 1001, 100)]
    assert [mark // 1_000_000 for mark in marks] == millions


def test_settings_of_words_that_contradict_each_other_are_refused(in_process, dataset_folder, trained_gpt, tmp_path):
    pretrain = ("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", tmp_path / "x", "--dry-run")
    assert_refused(
        in_process(*pretrain, "--train.keep-words", "1M"), "train.keep_words is 1000000", "give both", status=2
    )
    both = ("--train.words", "1M", "--train.minutes", "1")
    assert_refused(in_process(*pretrain, *both), "train.minutes is 1", "give one of them", status=2)
    both = ("--train.words", "1M", "--train.tokens", "2M")
    assert_refused(in_process(*pretrain, *both), "train.tokens is 2000000", "give one of them")
    with pytest.raises(ValueError, match=r"train\.tokens is 5, and train\.words is 9: give one of them"):
        bytelm.pretrain("gpt-tiny", data=dataset_folder, out=tmp_path / "x", train={"words": 9, "tokens": 5})
    small = ("--train.words", "10k", "--train.keep-words", "10", "--model.context-length", "32")
    assert_refused(in_process(*pretrain, *small), "train.keep_words is 10", "at least")
    export = ("export-hf", trained_gpt, "--out", tmp_path / "y", "--by-words")
    assert_refused(in_process(*export), "no checkpoint by words", "train with --train.words and --train.keep-words")
    assert_refused(in_process(*export, "--checkpoint", "50"), "--checkpoint is 50", "give one of them")


def test_pairs_have_no_word_budget(in_process, pair_dataset, tmp_path):
    command = ("pretrain", "translate-tiny", "--data", pair_dataset, "--out", tmp_path / "x", "--dry-run")
    assert_refused(in_process(*command, "--train.words", "1M"), "holds pairs", "train.tokens")


def causal_scores(model, tok, texts):
    """Return ln p of each text as BabyLM's pipeline defines it for an empty context.

    It is the sum over the tokens whose end lies past the start of the text; the tokenizer decides about a start token.
    """
    read = tok(texts, return_offsets_mapping=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).logits[:, :-1]
    log_p = logits.double().log_softmax(-1).gather(-1, read["input_ids"][:, 1:, None])[..., 0]
    counted = (read["offset_mapping"][:, 1:, 1] > 0) & read["attention_mask"][:, 1:].bool()
    return (log_p * counted).sum(1).tolist()


def masked_scores(model, tok, texts):
    """Return the pseudo-log-likelihood of each text: one copy for each token with an end past 0, masked there alone."""
    scores = []
    for text in texts:
        read = tok(text, return_offsets_mapping=True, return_tensors="pt")
        places = (read["offset_mapping"][0, :, 1] > 0).nonzero()[:, 0]
        copies, rows = read["input_ids"].repeat(len(places), 1), torch.arange(len(places))
        copies[rows, places] = tok.mask_token_id
        with torch.no_grad():
            log_p = model(input_ids=copies).logits[rows, places].double().log_softmax(-1)
        scores.append(float(log_p[rows, read["input_ids"][0, places]].sum()))
    return scores


def opened(folder, auto):
    """Return the model and the tokenizer of an export, opened as BabyLM's pipeline opens them."""
    transformers = pytest.importorskip("transformers")
    tok = transformers.AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    assert tok.is_fast
    assert tok.pad_token_id is not None
    return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval(), tok


def assert_scores(found, scores):
    good, bad = scores([pair["sentence_good"] for pair in PAIRS]), scores([pair["sentence_bad"] for pair in PAIRS])
    np.testing.assert_allclose([nats for (nats,) in found.good], good, atol=1e-4)
    np.testing.assert_allclose([nats for (nats,) in found.bad], bad, atol=1e-4)


def test_babylm_gets_our_scores_of_a_decoder_with_its_start_token(run_by_words, babylm, tmp_path):
    write(tmp_path / "pairs.jsonl", PAIRS)
    run = bytelm.load_run(run_by_words, device="cpu", checkpoint=str(_step(run_by_words, babylm / "chck_2k")))
    found = bytelm.score_pairs(run, [tmp_path / "pairs.jsonl"])
    model, tok = opened(babylm / "chck_2k", "AutoModelForCausalLM")
    assert_scores(found, lambda texts: causal_scores(model, tok, texts))


def test_babylm_gets_our_scores_of_an_encoder(small_recipe, dataset_folder, tmp_path):
    write(tmp_path / "pairs.jsonl", PAIRS)
    bert = load_recipe("bert-tiny")
    model = replace(bert.model, layers=2, width=32, heads=2, context_length=34)
    recipe = replace(bert, model=model, train=replace(small_recipe.train, tokens=2560))
    run = bytelm.pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    found = bytelm.score_pairs(run, [tmp_path / "pairs.jsonl"], masking="token")
    model, tok = opened(bytelm.export_hf(run, out=tmp_path / "hf"), "AutoModelForMaskedLM")
    assert_scores(found, lambda texts: masked_scores(model, tok, texts))


def _step(run, export):
    """Return the step of the checkpoint of a run that an export was made from, by the tokens in its model card."""
    tokens = int(re.search(r"The model saw ([\d,]+) tokens", (export / "README.md").read_text())[1].replace(",", ""))
    return next(int(f.name[5:]) for f in checkpoint_folders(run) if readable_state(f)["tokens"] == tokens)


def test_a_start_token_is_refused_for_an_encoder(in_process, trained_bert, tmp_path):
    command = ("export-hf", trained_bert, "--out", tmp_path / "x", "--start-token")
    assert_refused(in_process(*command), "is for decoders", "leave it out")
    assert not (tmp_path / "x").exists()


def test_the_commands_of_the_page_make_a_branch_of_each_export(babylm, tmp_path):
    page = (REPOSITORY / "docs" / "evaluation.md").read_text()
    commands = re.search(r"```bash\n(git init.*?)```", page, re.DOTALL)[1]
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "babylm").symlink_to(babylm)
    identity = {
        f"GIT_{role}_{field}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")
    }
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **identity}
    subprocess.run(["bash", "-e", "-c", commands], cwd=tmp_path, env=environment, check=True, capture_output=True)
    hub = tmp_path / "my" / "babylm-git"

    def git(*arguments):
        return subprocess.run(["git", "-C", hub, *arguments], check=True, capture_output=True, text=True).stdout

    assert set(git("branch", "--format=%(refname:short)").split()) == {path.name for path in babylm.iterdir()}
    for export in babylm.iterdir():
        git("checkout", "-q", "-f", export.name)
        files = {path.name: path.read_bytes() for path in hub.iterdir() if path.is_file()}
        assert files == {path.name: path.read_bytes() for path in export.iterdir()}


def test_the_surprisal_of_a_word_is_the_sum_of_its_tokens(in_process, run_by_words):
    text = "import os, sys\n\n  return  the path"
    found = json.loads(in_process("score", run_by_words, text, "--by", "word", "--json").stdout)
    assert "".join(word["text"] for word in found["words"]) == text
    assert [word["text"].strip() for word in found["words"] if word["text"].strip()] == text.split()
    for word in found["words"]:
        tokens = found["tokens"][word["first_token"] :][: word["tokens"]]
        assert word["token_sum_bits"] == pytest.approx(sum(token["surprisal_bits"] for token in tokens))

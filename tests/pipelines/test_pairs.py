"""Pairs of texts, from two columns through dataset and batches to a trained encoder-decoder and its BLEU."""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from safetensors.torch import load_file

from corpora import PairTexts, open_pairs
from lm.costs import flops_per_token, meta_model
from pipelines.dataset.pair_dataset import Lists, PairDataset, Pairs
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.measurements import translation
from pipelines.evaluation.text_scores import bleu
from pipelines.recipes.recipe import load_recipe
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.retention import latest_checkpoint
from pipelines.training.batch_loss import hidden_states
from pipelines.training.batch_objectives import PairObjective
from pipelines.training.data import PairLoader, open_training_data
from pipelines.training.mixture import Mixture
from pipelines.training.pretraining import print_plan
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer


def write_jsonl(path, pairs, columns=("en", "de")):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(dict(zip(columns, pair, strict=True)), ensure_ascii=False) for pair in pairs]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def reversals(seed, count):
    """Return words of two to five signs, and the same words reversed. For BLEU, each sign is a token."""
    generator = np.random.default_rng(seed)
    words = ["".join(generator.choice(list("!#$%*+=?"), generator.integers(2, 6))) for _ in range(count)]
    return [(word, word[::-1]) for word in words]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Three files with the names of their splits."""
    folder = tmp_path_factory.mktemp("pairs")
    for number, (split, count) in enumerate([("train", 1500), ("validation", 60), ("test", 50)]):
        write_jsonl(folder / f"letters.{split}.jsonl", reversals(number, count))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("pair-data")
    train_tokenizer([str(corpus)], pairs=("en", "de"), vocab_size=261, out=folder / "tok")
    build_dataset([str(corpus)], pairs=("en", "de"), tokenizer=folder / "tok", out=folder / "data")
    return folder / "data"


@pytest.fixture(scope="module")
def recipe():
    """An encoder-decoder that learns to reverse a word in seconds."""
    recipe = load_recipe("translate-tiny")
    model = {"layers": 1, "decoder_layers": 1, "width": 64, "heads": 4, "mlp_width": 128, "context_length": 16}
    train = {
        "tokens": 130_000,
        "batch_tokens": 512,
        "lr": 4e-3,
        "label_smoothing": 0.0,
        "optimizer": "muon",
        "muon_lr": 1e-2,
        "warmup_tokens": 10_000,
        "validate_every_tokens": 40_000,
        "checkpoint_every_tokens": 40_000,
        "device": "cpu",
        "dtype": "float32",
    }
    return replace(recipe, model=replace(recipe.model, dropout=0.0, **model), train=replace(recipe.train, **train))


@pytest.fixture(scope="module")
def run(tmp_path_factory, recipe, data):
    folder = tmp_path_factory.mktemp("pair-runs") / "reverse"
    pretrain(recipe, data=data, out=folder)
    return folder


def test_a_dry_run_counts_the_tokens_of_both_sides(recipe, data, tmp_path, printed):
    pairs = PairDataset(data).split("train")
    print_plan(recipe, {data: 1}, tmp_path / "run")
    tokens = sum(map(len, pairs.sources)) + sum(map(len, pairs.targets))
    assert f"({recipe.train.tokens / tokens:.3g} epochs of" in printed.readouterr().out


def lists_of(rows):
    import pyarrow as pa

    return Lists(pa.chunked_array([pa.array(part, pa.list_(pa.uint16())) for part in rows]))


def test_datasets_opens_a_dataset_of_pairs_and_decoding_restores_the_texts(data, corpus):
    opened, tok = datasets.load_from_disk(str(data)), Tokenizer.load(data)
    for split in ("train", "validation", "test"):
        lines = [json.loads(line) for line in (corpus / f"letters.{split}.jsonl").read_text().splitlines()]
        assert [tok.decode(ids) for ids in opened[split]["source_ids"]] == [line["en"] for line in lines]
        assert [tok.decode(ids) for ids in opened[split]["target_ids"]] == [line["de"] for line in lines]
        pairs = PairDataset(data).split(split)
        assert [ids.tolist() for ids in map(pairs.targets.__getitem__, range(len(pairs)))] == list(
            opened[split]["target_ids"]
        )


def test_the_same_pairs_give_the_same_bytes_whatever_the_batches(tmp_path, data, corpus, monkeypatch):
    parquet = tmp_path / "tables"
    parquet.mkdir()
    for split in ("train", "validation", "test"):
        table = datasets.Dataset.from_json(str(corpus / f"letters.{split}.jsonl"), cache_dir=str(tmp_path / "cache"))
        table.to_parquet(str(parquet / f"letters.{split}.parquet"))
    for name, source in (("again", corpus), ("parquet", parquet)):
        build_dataset([str(source)], pairs=("en", "de"), tokenizer=data, out=tmp_path / name)
        for split in ("train", "validation", "test"):
            path = f"{split}/data-00000-of-00001.arrow"
            assert (tmp_path / name / path).read_bytes() == (data / path).read_bytes()
    assert (tmp_path / "again" / "dataset.json").read_bytes() == (data / "dataset.json").read_bytes()


def test_pairs_without_own_splits_are_divided_by_their_source(tmp_path):
    pairs = [(f"source {i % 150}", f"target {i}") for i in range(600)]
    opened = open_pairs([str(write_jsonl(tmp_path / "all.jsonl", pairs))], ("en", "de"), split="hash:0.2")
    found = {"train": [], "validation": []}
    for split, batch in opened.routed_batches():
        found[split] += batch.to_pylist()
    assert sorted((row["source"], row["target"]) for rows in found.values() for row in rows) == sorted(pairs)
    sources = {split: {row["source"] for row in rows} for split, rows in found.items()}
    assert not sources["train"] & sources["validation"]
    assert 15 <= len(sources["validation"]) <= 50


def test_own_splits_of_pairs_without_validation_have_it_cut_from_train(tmp_path):
    train, test = ([(f"{split} {i}", "x") for i in range(200)] for split in ("train", "test"))
    write_jsonl(tmp_path / "x.train.jsonl", train)
    write_jsonl(tmp_path / "x.test.jsonl", test)
    found = {"train": [], "validation": [], "test": []}
    for split, batch in open_pairs([str(tmp_path)], ("en", "de")).routed_batches():
        found[split] += [tuple(row.values()) for row in batch.to_pylist()]
    assert found["test"] == test
    assert sorted(found["train"] + found["validation"]) == sorted(train)
    assert 2 <= len(found["validation"]) <= 25


def test_pairs_with_an_empty_side_are_left_out_and_counted(tmp_path):
    rows = [{"en": "a", "de": "b"}, {"en": "", "de": "c"}, {"en": "d"}, {"en": "e", "de": None}, {"en": "f", "de": "g"}]
    (tmp_path / "x.train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_jsonl(tmp_path / "x.validation.jsonl", [("h", "i")])
    opened = open_pairs([str(tmp_path)], ("en", "de"))
    pairs = [tuple(row.values()) for _, batch in opened.routed_batches() for row in batch.to_pylist()]
    assert pairs == [("a", "b"), ("f", "g"), ("h", "i")]
    assert opened.dropped.empty_documents == 3


def test_a_split_without_a_pair_is_refused_before_a_dataset_is_written(tmp_path):
    for name, pairs in (("train", [("a", "b")] * 9), ("validation", [("a", "b")]), ("test", [("a", "")] * 3)):
        write_jsonl(tmp_path / "c" / f"x.{name}.jsonl", pairs)
    train_tokenizer([str(tmp_path / "c")], pairs=("en", "de"), vocab_size=262, out=tmp_path / "tok")
    with pytest.raises(ValueError, match=r"the split test of .* has no pair"):
        build_dataset([str(tmp_path / "c")], pairs=("en", "de"), tokenizer=tmp_path / "tok", out=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_shared_vocabulary_is_trained_on_both_sides(tmp_path):
    folder = tmp_path / "c"
    write_jsonl(folder / "x.train.jsonl", [("xyzxyz", "qwqwqw")] * 30)
    write_jsonl(folder / "x.validation.jsonl", [("held", "out")])
    texts = PairTexts(open_pairs([str(folder)], ("en", "de")))
    counted = Counter(text for batch in texts.batches("train") for text in batch.column(0).to_pylist())
    assert counted == {"xyzxyz": 30, "qwqwqw": 30}
    tok = train_tokenizer([str(folder)], pairs=("en", "de"), vocab_size=270, out=tmp_path / "tok")
    assert len(tok.encode("xyzxyz")) <= 2
    assert len(tok.encode("qwqwqw")) <= 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": ("en", "fr")}, r'has no column "fr": choose one of its columns \(en, de\)'),
        ({"pairs": ("en", "en")}, 'source and target are both the column "en"'),
        ({"pairs": ("en", "de"), "context_length": 8}, "`context_length` is for blocks: leave it out"),
        ({"pairs": ("en", "de"), "text_column": "en"}, "`text_column` names one column, but `pairs` reads two"),
        ({"pairs": ("en", "de"), "invalid": "skip"}, "`invalid='skip'` does not work with `pairs`"),
        ({"pairs": ("en", "de"), "separator": False}, "`separator=False` is for blocks"),
        ({"pairs": ("en", "de"), "split": "tail:0.1"}, "cuts a text.*: use predefined or hash:0.05"),
        ({}, "`context_length` is missing"),
    ],
)
def test_options_that_do_not_fit_pairs_are_refused_by_name(tmp_path, corpus, data, options, message):
    with pytest.raises(ValueError, match=message):
        build_dataset([str(corpus)], tokenizer=data, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_texts_without_columns_make_no_pairs(tmp_path, text_folder, data):
    with pytest.raises(ValueError, match="has no columns to make pairs of"):
        build_dataset([str(text_folder)], pairs=("en", "de"), tokenizer=data, out=tmp_path / "out")


def test_a_dataset_of_the_other_kind_is_refused(tmp_path, recipe, small_recipe, data, dataset_folder):
    with pytest.raises(ValueError, match="holds blocks, and this needs pairs: build one with `pairs`"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    with pytest.raises(ValueError, match="holds pairs, and this needs blocks: build one with `context_length`"):
        pretrain(small_recipe, data=data, out=tmp_path / "run")
    with pytest.raises(ValueError, match="holds pairs"):
        TokenDataset(data)


def test_an_altered_file_of_pairs_is_refused(tmp_path, data):
    copy = shutil.copytree(data, tmp_path / "data")
    path = copy / "train" / "data-00000-of-00001.arrow"
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)
    with pytest.raises(ValueError, match="is altered: its SHA-256"):
        PairDataset(copy)


def test_a_tokenizer_without_padding_is_refused_by_name(tmp_path, corpus, recipe):
    train_tokenizer(
        [str(corpus)], pairs=("en", "de"), vocab_size=258, out=tmp_path / "tok", special_tokens=("<|endoftext|>",)
    )
    build_dataset([str(corpus)], pairs=("en", "de"), tokenizer=tmp_path / "tok", out=tmp_path / "data")
    with pytest.raises(ValueError, match=r"sequence-pairs needs the special token <\|pad\|>"):
        pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=120),
    budget=st.integers(1, 200),
    seed=st.integers(0, 3),
)
def test_an_epoch_reads_every_pair_once_in_batches_within_the_budget(lengths, budget, seed):
    # the first token of each pair is its number
    sources = [[300 + i] + [7] * s for i, (s, _) in enumerate(lengths)]
    targets = [[300 + i] + [8] * t for i, (_, t) in enumerate(lengths)]
    half = len(lengths) // 2
    pairs = Pairs(lists_of([sources[:half], sources[half:]]), lists_of([targets]))
    tok = Tokenizer.train(["abc"], vocab_size=261)
    loader = PairLoader(pairs, PairObjective.of(tok.special_tokens, 64), budget, seed)
    consumed, orders = 0, []
    for _ in range(2):
        order = []
        while len(order) < len(lengths):
            batch = loader.batch(consumed)
            positions = len(batch.inputs) * (batch.inputs.shape[1] + batch.source.shape[1])
            assert positions <= budget or len(batch.inputs) == 1
            order += (batch.source[:, 0] - 300).tolist()
            consumed += len(batch.inputs)
        assert sorted(order) == list(range(len(lengths)))
        orders.append(order)
    again = PairLoader(pairs, PairObjective.of(tok.special_tokens, 64), budget, seed)
    assert (again.batch(len(lengths)).source[:, 0] - 300).tolist() == orders[1][: len(again.batch(len(lengths)).source)]


def test_padding_changes_no_loss(run, data):
    """The loss of a batch is the sum of the losses of its pairs without padding."""
    this = Run(run)
    model = load_trained(this, device="cpu").model
    objective, pairs = PairObjective.of(this.tokenizer().special_tokens, 16), PairDataset(data).split("validation")

    def nats(rows):
        batch = objective.batch(pairs, np.array(rows))
        with torch.no_grad():
            hidden = hidden_states(model, batch, np.ones(batch.inputs.shape, bool))
            return float(
                model.loss(hidden, torch.from_numpy(batch.targets).flatten(), torch.from_numpy(batch.weights).flatten())
            )

    rows = list(range(12))
    assert len({len(pairs.sources[row]) for row in rows}) > 1
    assert nats(rows) == pytest.approx(sum(nats([row]) for row in rows), rel=1e-5)


def test_flops_per_token_of_a_batch_are_close_to_the_average_over_all_pairs(data, recipe):
    dataset, tok = PairDataset(data), Tokenizer.load(data)
    training = open_training_data(recipe, Mixture([dataset]), tok)
    model = meta_model(replace(recipe.model, vocab_size=dataset.vocab_size))
    costs = tokens = 0
    for source, target in zip(*PairObjective.of(tok.special_tokens, 16).lengths(dataset.split("train")), strict=True):
        costs += flops_per_token(model, int(target), source_length=int(source)) * int(source + target)
        tokens += int(source + target)
    assert training.flops_per_token(model) == pytest.approx(costs / tokens, rel=0.02)


def test_the_model_learns_to_reverse_words(run):
    numbers = evaluate(run, splits=("test",), device="cpu").to_json()["splits"]["test"]
    assert numbers["exact_match"] > 0.9
    assert numbers["accuracy"] > 0.95
    assert numbers["cross_entropy_bits"] < 0.5 < numbers["bigram_cross_entropy_bits"]
    first = numbers["translations"][0]
    assert first["reference"] == first["source"][::-1]
    assert "tok:13a" in numbers["bleu_signature"]


def test_a_run_cut_short_resumes_and_ends_with_the_same_weights(tmp_path, recipe, data, run):
    from pipelines.run.retention import checkpoint_folders

    out = shutil.copytree(run, tmp_path / "cut")
    folders = checkpoint_folders(out)
    assert len(folders) == 2
    shutil.rmtree(folders[-1])
    pretrain(recipe, data=data, out=out)
    first, second = (load_file(checkpoint_folders(each)[-1] / "model.safetensors") for each in (run, out))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_token_counts_include_both_sides_but_no_padding(run, data):
    objective, pairs = PairObjective.of(Run(run).tokenizer().special_tokens, 16), PairDataset(data).split("train")
    lengths = np.sum(objective.lengths(pairs), axis=0)
    state = json.loads((latest_checkpoint(run) / "state.json").read_text())
    assert 130_000 <= state["tokens"] < 130_000 + 512
    epochs, rest = divmod(state["consumed"], len(pairs))
    assert rest * lengths.min() <= state["tokens"] - epochs * lengths.sum() <= rest * lengths.max()
    assert Run(run).metrics()[-1]["tokens"] == state["tokens"]


def test_a_run_on_pairs_resumes_with_other_micro_batches_but_not_another_batch_size(tmp_path, recipe, data, run):
    out = shutil.copytree(run, tmp_path / "run")
    pretrain(replace(recipe, train=replace(recipe.train, micro_batch=5)), data=data, out=out)
    assert Run(out).recipe.train.micro_batch == 5
    with pytest.raises(ValueError, match=r"has train\.batch_tokens 512, not 300, and its pairs are sorted"):
        pretrain(replace(recipe, train=replace(recipe.train, batch_tokens=300)), data=data, out=out)


def test_pairs_longer_than_the_context_are_cut_and_counted(tmp_path, recipe, data, printed):
    short = replace(recipe, model=replace(recipe.model, context_length=4), train=replace(recipe.train, tokens=2000))
    pretrain(short, data=data, out=tmp_path / "run")
    longer = sum(len(ids) >= 4 for ids in datasets.load_from_disk(str(data))["train"]["source_ids"])
    assert f"{longer:,} of 1,500 pairs are longer than 4 tokens" in " ".join(printed.readouterr().out.split())
    held_out = sum(len(ids) >= 4 for ids in datasets.load_from_disk(str(data))["validation"]["source_ids"])
    assert evaluate(tmp_path / "run", beams=0).validation.cut == held_out


def test_bleu_is_that_of_the_texts_of_the_beam_search(tmp_path, recipe, data, monkeypatch):
    monkeypatch.setattr(translation, "EXAMPLES", 1000)
    pretrain(replace(recipe, train=replace(recipe.train, tokens=5000)), data=data, out=tmp_path / "run")
    numbers = evaluate(tmp_path / "run", beams=2).to_json()["splits"]["validation"]
    found, references = ([pair[side] for pair in numbers["translations"]] for side in ("hypothesis", "reference"))
    assert len(found) == 60
    assert numbers["bleu"] == pytest.approx(BLEU().corpus_score(found, [references]).score)


@pytest.mark.parametrize("beams", [-1, 101, 10**9])
def test_beams_are_bounded(run, beams):
    with pytest.raises(ValueError, match=f"`beams` is {beams:,}, but must be from 1 to 100, or 0 to leave the search"):
        evaluate(run, beams=beams)


def test_cropping_pairs_is_refused(recipe):
    with pytest.raises(ValueError, match=r"train\.sampling is 'crops', but pairs have no stream to crop"):
        replace(recipe, train=replace(recipe.train, sampling="crops"))


def test_growing_batches_of_pairs_are_refused(recipe):
    with pytest.raises(ValueError, match=r"train\.batch_tokens_start is 100, but pairs are sorted into batches"):
        replace(recipe, train=replace(recipe.train, batch_tokens_start=100, batch_warmup_tokens=1000))


def test_bleu_is_the_geometric_mean_of_precisions_times_the_brevity_penalty():
    hypothesis, reference = "The quick brown fox jumps over the dog", "The quick brown fox jumps over the lazy dog"
    precisions = 8 / 8, 6 / 7, 5 / 6, 4 / 5  # of 1 to 4 words
    brevity = math.exp(1 - 9 / 8)
    found, signature = bleu([hypothesis], [reference])
    assert found == pytest.approx(100 * brevity * math.prod(precisions) ** (1 / 4))
    assert found == pytest.approx(76.73, abs=0.005)
    assert "case:mixed" in signature and "tok:13a" in signature

"""Memorisation: the shares and losses of `evaluate --memorisation` equal those of a plain search."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.documents import text_of_stream
from pipelines.evaluation.measurements.memorisation import LENGTHS, shared_text
from pipelines.evaluation.windows import TokenScores
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from tokenizer import Tokenizer


def texts_of(stream, tok):
    """Return the documents of a stream."""
    ids, end = stream.read(0, stream.tokens), tok.special_tokens["<|endoftext|>"]
    return [tok.decode_bytes(part[part != end]) for part in np.split(ids, np.flatnonzero(ids == end))[1:]]


def searched(documents, others, length):
    """Return whether a match begins at each byte, and whether each byte is inside a match."""
    known = {other[i : i + length] for other in others for i in range(len(other) - length + 1)}
    begins, inside = [], []
    for document in documents:
        begin = [document[i : i + length] in known for i in range(len(document))]
        begins += begin
        inside += [any(begin[max(0, i - length + 1) : i + 1]) for i in range(len(document))]
    return np.array(begins), np.array(inside)


def scores_of(stream):
    """Return random scores of all tokens of a stream but the first."""
    ids, indices = stream.read(0, stream.tokens).astype(np.int32), np.arange(1, stream.tokens)
    nats = np.random.default_rng(0).gamma(2, 1, len(indices))
    return TokenScores(ids[1:], ids[:-1], (indices - 1) % 32, indices // 32, indices, nats, nats < 1)


def measured(data, tok, memory=10**9):
    """Return the entry `memorisation` of the validation split of a dataset, and the random scores that it used."""
    dataset = TokenDataset(data)
    stream = dataset.split("validation")
    scores = scores_of(stream)
    text = text_of_stream(stream, tok, tok.special_tokens["<|endoftext|>"])
    found = shared_text(scores, stream, text, tok, dataset, per_byte=True, memory=memory)
    return found.to_json(), scores, dataset


@pytest.fixture(scope="module")
def tok(tokenizer_folder):
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture(scope="module")
def build(tmp_path_factory, tokenizer_folder):
    """Return a function that builds a dataset of training and validation documents, and returns its folder."""

    def make(**splits):
        folder = tmp_path_factory.mktemp("copies")
        for name, documents in splits.items():
            lines = (json.dumps({"text": document}) + "\n" for document in documents)
            (folder / f"text.{name}.jsonl").write_text("".join(lines))
        names = [str(folder / "text.*.jsonl")]
        build_dataset(names, tokenizer=tokenizer_folder, context_length=32, out=folder / "data")
        return folder / "data"

    return make


def test_shares_and_losses_equal_those_of_a_plain_search(build, tok, text_folder):
    texts = [path.read_text()[:2000] for path in sorted(text_folder.iterdir())[:12]]
    train = [*texts[:8], "\0" * 300, "<|endoftext|>" * 10, "x"]
    copies = [texts[0], texts[1][:700] + texts[2][300:900], texts[3][-50:] + texts[4][:50], "\0" * 500]
    data = build(train=train, validation=[*copies, "x", *texts[8:], "<|endoftext|>" * 20, "ending"])
    found, scores, dataset = measured(data, tok)
    documents, others = (texts_of(dataset.split(name), tok) for name in ("validation", "train"))
    assert (found["sampled"], found["bytes"]) == (1, sum(map(len, documents)))
    sizes = np.asarray(tok.token_byte_lengths)[dataset.split("validation").read(0, 10**9)]
    starts = np.cumsum(sizes) - sizes
    for row, length in zip(found["curve"], LENGTHS, strict=True):
        begins, inside = searched(documents, others, length)
        assert (row["length"], row["begin"], row["inside"]) == (length, begins.mean(), inside.mean())
        assert 0.05 < row["begin"] < row["inside"] < 0.9
        copied = np.array([inside[s : s + n].all() and n > 0 for s, n in zip(starts, sizes, strict=True)])[1:]
        for place, chosen in (("inside", copied), ("outside", ~copied)):
            loss, nats = row["loss"][place], scores.nats[chosen].sum()
            assert (loss["tokens"], loss["bytes"]) == (chosen.sum(), sizes[1:][chosen].sum())
            assert loss["bits_per_token"] == pytest.approx(nats / np.log(2) / chosen.sum())
            assert loss["bits_per_byte"] == pytest.approx(nats / np.log(2) / sizes[1:][chosen].sum())
            assert loss["share"] == pytest.approx(nats / scores.nats.sum())


def test_pieces_of_the_training_text_give_the_same_result(dataset_folder, tok):
    whole, _, dataset = measured(dataset_folder, tok)
    least = 2 * 40 * whole["bytes"]  # the least memory in which the split is not sampled
    assert dataset.info["splits"]["train"]["bytes"] > 3 * least / 2 / 9
    assert measured(dataset_folder, tok, least)[0] == whole


def test_a_split_that_does_not_fit_in_memory_is_sampled(dataset_folder, tok):
    found, scores, _ = measured(dataset_folder, tok, 10**6)
    whole = measured(dataset_folder, tok)[0]
    assert found["bytes"] == 10**6 // 2 // 40 and found["sampled"] == found["bytes"] / whole["bytes"] < 1
    for sampled, every in zip(found["curve"], whole["curve"], strict=True):
        assert sampled["inside"] * found["bytes"] <= every["inside"] * whole["bytes"]
        tokens = sum(row["tokens"] for row in sampled["loss"].values() if row)
        assert tokens == pytest.approx(found["sampled"] * len(scores.nats), rel=0.2)


def test_a_copy_of_the_training_text_is_inside_from_end_to_end(build, tok, text_folder):
    texts = [path.read_text()[:1000] for path in sorted(text_folder.iterdir())[:5]]
    found, scores, dataset = measured(build(train=texts, validation=texts), tok)
    stream = dataset.split("validation")
    separators = (stream.read(1, stream.tokens) == tok.special_tokens["<|endoftext|>"]).sum()
    cut = len(scores.nats) - separators - found["curve"][-1]["loss"]["inside"]["tokens"]
    assert cut == 0 and [row["inside"] for row in found["curve"]] == [1] * len(LENGTHS)
    assert found["curve"][-1]["loss"]["outside"]["tokens"] == separators


def test_documents_of_one_byte_have_no_matches(build, tok):
    found, _, _ = measured(build(train=["ab" * 50], validation=["a", "b"] * 40), tok)
    for row in found["curve"]:
        assert (row["begin"], row["inside"], row["loss"]["inside"]) == (0, 0, None)
        assert row["loss"]["outside"]["share"] == 1


def test_masked_models_have_losses_and_span_corruption_only_shares(tmp_path, trained_bert, trained_t5):
    for run, has_loss in ((trained_bert, True), (trained_t5, False)):
        copy = shutil.copytree(run, tmp_path / run.name)
        numbers = evaluate(copy, memorisation=True).to_json()["splits"]["validation"]
        for row in numbers["memorisation"]["curve"]:
            assert 0 <= row["begin"] <= row["inside"] < 1
            assert (row["loss"] is not None) == has_loss
            assert not has_loss or row["loss"]["outside"]["bits_per_byte"] is None
        if has_loss:
            rows = numbers["memorisation"]["curve"][0]["loss"].values()
            assert sum(row["tokens"] for row in rows) == numbers["tokens"]
            assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_a_corpus_is_compared_with_the_training_text_of_the_run(tmp_path, trained_gpt, dataset_folder, tok):
    run = shutil.copytree(trained_gpt, tmp_path / "gpt")
    copy = texts_of(TokenDataset(dataset_folder).split("train"), tok)[0]
    (tmp_path / "copy.txt").write_bytes(copy)
    found = evaluate(run, corpus=(str(tmp_path / "copy.txt"),), memorisation=True).splits["copy.txt"].memorisation
    assert found.training == str(dataset_folder.resolve()) and found.curve[-1].inside == 1


def test_the_training_text_may_have_moved(tmp_path, small_recipe, dataset_folder, text_folder):
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=2560))
    pretrain(recipe, data=data, out=tmp_path / "gpt")
    data.rename(tmp_path / "moved")
    found = evaluate(tmp_path / "gpt", data=tmp_path / "moved", memorisation=True).to_json()["splits"]["validation"]
    assert found["memorisation"]["training"] == str((tmp_path / "moved").resolve())
    with pytest.raises(ValueError, match="gpt has no dataset to search for memorised text: name its dataset with `d"):
        evaluate(tmp_path / "gpt", corpus=(str(text_folder),), memorisation=True)


def test_the_table_shows_the_curve_and_names_the_training_text(in_process, tmp_path, trained_gpt, dataset_folder):
    run = shutil.copytree(trained_gpt, tmp_path / "gpt")
    done = in_process("evaluate", run, "--memorisation", "--memory", "1M", "--explain")
    assert done.returncode == 0, done.stderr
    found = json.loads((run / "evaluation.json").read_text())["splits"]["validation"]["memorisation"]
    row = found["curve"][0]
    assert f"25 bytes  {row['begin']:.2%}  {row['inside']:.2%}" in re.sub(r" {2,}", "  ", done.stdout)
    assert f"a sample of {found['sampled']:.1%}, limited by --memory: 12,500 bytes" in done.stdout.replace("\n", " ")
    assert "one document of the split" in " ".join(done.stdout.split())


def test_refused_options_leave_no_file(tmp_path, in_process, trained_gpt, trained_translator, monkeypatch):
    run = shutil.copytree(trained_gpt, tmp_path / "gpt", ignore=shutil.ignore_patterns("evaluation.json"))
    refused = in_process("evaluate", run, "--memorisation", "--memory", "999k")
    assert refused.returncode != 0 and "--memory is 999,000 bytes, but must be at least 1M" in refused.stderr
    pairs = in_process("evaluate", trained_translator, "--memorisation")
    assert pairs.returncode != 0 and "was trained on pairs, and --memorisation needs a text" in pairs.stderr
    monkeypatch.setitem(sys.modules, "pydivsufsort", None)
    refused = in_process("evaluate", run, "--memorisation")
    assert refused.returncode != 0 and "needs the package pydivsufsort: pip install 'bytelm[entropy]'" in refused.stderr
    assert not (run / "evaluation.json").exists()

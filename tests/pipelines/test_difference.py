"""`evaluate --against` gives the paired difference of two runs, also if their tokenizers differ."""

import hashlib
import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pipelines.dataset.document_records import DOCUMENTS_FILE, read_documents
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.documents import document_keys, text_of_stream
from pipelines.evaluation.measurements.against import Gap, difference_per_byte, sentence
from pipelines.evaluation.paired_text import PairedText, ScoredText
from pipelines.evaluation.windows import TokenScores
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return a JSONL file of 800 documents of digits; about 40 are for validation."""
    path = tmp_path_factory.mktemp("corpus") / "numbers.jsonl"
    texts = [" ".join(str((i * j) % 97) for j in range(20 + i % 30)) for i in range(1, 801)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory, corpus, small_recipe):
    """Return runs with vocabularies of 270 and 300 tokens on the same text."""
    folder = tmp_path_factory.mktemp("two")
    found = []
    for size, length in ((270, 32), (300, 24)):
        train_tokenizer([str(corpus)], vocab_size=size, out=folder / f"tok{size}")
        data = folder / f"data{size}"
        build_dataset([str(corpus)], tokenizer=folder / f"tok{size}", context_length=length, out=data)
        model = replace(small_recipe.model, context_length=length)
        pretrain(replace(small_recipe, model=model), data=data, out=folder / f"gpt{size}")
        found.append(folder / f"gpt{size}")
    return found


def scored(folder, per_byte):
    """Return the scores of a dataset's validation split at `per_byte` nats (documents,) in each document."""
    dataset, tok = TokenDataset(folder), Tokenizer.load(folder)
    stream, recorded = (
        dataset.split("validation"),
        read_documents(folder / "validation", dataset.info["splits"]["validation"]),
    )
    text = text_of_stream(stream, tok, dataset.info["separator"], recorded)
    ids, indices = stream.read(0, stream.tokens)[1:].astype(np.int32), np.arange(1, stream.tokens)
    nats = text.sizes[1:] * per_byte[text.document[1:]]
    scores = TokenScores(ids, ids, indices, indices, indices, nats, nats > 0)
    return ScoredText(scores, text, document_keys(stream, tok, text, recorded))


def test_a_dataset_records_the_hash_and_bytes_of_validation_documents(runs, corpus):
    data = runs[0].with_name("data270")
    found = read_documents(data / "validation", TokenDataset(data).info["splits"]["validation"])
    texts = {json.loads(line)["text"].encode() for line in corpus.read_text().splitlines()}
    known = {hashlib.sha256(text).digest(): len(text) for text in texts}
    assert [known[digest] for digest in found.hashes] == found.sizes.tolist()
    assert len(found.sizes) == TokenDataset(data).info["splits"]["validation"]["documents"] >= 30
    assert not (data / "train" / DOCUMENTS_FILE).exists()


def test_datasets_without_a_record_are_decoded(runs, tmp_path):
    data = shutil.copytree(runs[0].with_name("data270"), tmp_path / "data")
    rate = np.ones(100)
    recorded = scored(data, rate).keys
    (data / "validation" / DOCUMENTS_FILE).unlink()
    assert scored(data, rate).keys[:-1] == recorded[:-1]  # the end of the dataset may cut the last document


def test_a_damaged_record_is_refused(runs, tmp_path):
    data = shutil.copytree(runs[0].with_name("data270"), tmp_path / "data")
    path = data / "validation" / DOCUMENTS_FILE
    for content in (b"", path.read_bytes()[:200], _record([3])):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"documents\.arrow is damaged: build the dataset again"):
            read_documents(data / "validation", TokenDataset(data).info["splits"]["validation"])


def _record(sizes):
    table = pa.table({"sha256": pa.array([b"0" * 32] * len(sizes), pa.binary(32)), "bytes": sizes})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_tokenizers_are_paired_per_byte_and_by_document(runs):
    """Nats proportional to bytes give a difference that is known whatever the tokens are."""
    data = [run.with_name(run.name.replace("gpt", "data")) for run in runs]
    rate = np.random.default_rng(0).uniform(1, 2, 100)
    same = difference_per_byte(PairedText.of(scored(data[0], rate), scored(data[1], rate), 32))
    assert same.value == pytest.approx(0, abs=2e-3) and same.documents >= 30
    worse = difference_per_byte(PairedText.of(scored(data[0], rate + 0.1), scored(data[1], rate), 32))
    assert worse.low < worse.value < worse.high
    assert worse.value == pytest.approx(0.1 / np.log(2), abs=2e-3)
    assert worse.high - worse.low < 0.01  # the documents differ by 1 nat per byte, but they are paired


def test_a_tokenizer_that_loses_text_is_paired_by_the_original_bytes(runs, tmp_path, corpus):
    train_tokenizer([str(corpus)], vocab_size=40, kind="wordpiece", out=tmp_path / "tok")
    for name, options in (("data", {}), ("joined", {"separator": False})):
        build_dataset([str(corpus)], tokenizer=tmp_path / "tok", context_length=40, out=tmp_path / name, **options)
        rate = np.random.default_rng(0).uniform(1, 2, 100)
        other = scored(runs[0].with_name("data270"), rate)
        same = difference_per_byte(PairedText.of(scored(tmp_path / name, rate), other, 40))
        assert same.value == pytest.approx(0, abs=2e-3) and same.documents >= 30
        worse = difference_per_byte(PairedText.of(scored(tmp_path / name, rate + 0.1), other, 40))
        assert worse.value == pytest.approx(0.1 / np.log(2), abs=2e-3)
        assert worse.high - worse.low < 0.01


def test_documents_that_only_one_dataset_has_do_not_count(runs, tmp_path, corpus):
    lines = corpus.read_text().splitlines(keepends=True)
    (tmp_path / "some.jsonl").write_text("".join(reversed(lines[::2])))
    tok = runs[0].with_name("tok270")
    build_dataset([str(tmp_path / "some.jsonl")], tokenizer=tok, context_length=16, out=tmp_path / "some")
    rate = np.ones(100)
    half, whole = scored(tmp_path / "some", rate), scored(runs[1].with_name("data300"), rate)
    found = difference_per_byte(PairedText.of(half, whole, 16))
    assert found.documents == len(set(half.keys) & set(whole.keys)) < len(whole.keys)
    assert found.value == pytest.approx(0, abs=1e-9) and found.low is not None
    (tmp_path / "other.jsonl").write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(90)))
    build_dataset([str(tmp_path / "other.jsonl")], tokenizer=tok, context_length=16, out=tmp_path / "other")
    with pytest.raises(ValueError, match="no document is in both datasets"):
        difference_per_byte(PairedText.of(scored(tmp_path / "other", rate), whole, 16))


def test_runs_with_different_tokenizers_differ_by_their_bits_per_byte(runs):
    one, two = (evaluate(run).validation.bits_per_byte for run in runs)
    there = evaluate(runs[0], against=runs[1]).to_json()["splits"]["validation"]
    back = evaluate(runs[1], against=runs[0]).to_json()["splits"]["validation"]
    assert there["kl_bits"] is there["reverse_kl_bits"] is there["js_bits"] is None
    assert "have no KL or Jensen-Shannon divergence" in there["difference"]["divergence"]
    assert there["difference"]["value"] == pytest.approx(one - two, abs=0.01)
    assert there["difference"]["value"] == pytest.approx(-back["difference"]["value"])
    assert there["difference"]["low"] == pytest.approx(-back["difference"]["high"])
    assert "bits per byte" in there["difference"]["sentence"]


def test_a_run_does_not_differ_from_itself(tmp_path, runs):
    copy = shutil.copytree(runs[0], tmp_path / "copy")
    found = evaluate(copy, against=runs[0]).to_json()["splits"]["validation"]["difference"]
    assert (found["value"], found["low"], found["high"]) == (0, 0, 0)
    assert found["sentence"] == (
        "copy and gpt270 are equally good on this text: their losses are the same; training seeds not counted."
    )


def test_runs_of_one_tokenizer_differ_by_their_numbers(tmp_path, runs, small_recipe):
    other = tmp_path / "longer"
    pretrain(
        replace(small_recipe, train=replace(small_recipe.train, tokens=25_600)),
        data=runs[0].with_name("data270"),
        out=other,
    )
    numbers = evaluate(runs[0], against=other).to_json()["splits"]["validation"]
    value = numbers["bits_per_byte"] - evaluate(other).validation.bits_per_byte
    found = numbers["difference"]
    assert found["value"] == pytest.approx(value, rel=1e-6) and found["value"] > 0
    assert found["low"] < value < found["high"]
    assert numbers["kl_bits"] > 0


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (
            (-0.0312, -0.0351, -0.0269),
            "gpt-a is better by 0.031 bits per byte (95 %: 0.027 to 0.035) on text like this",
        ),
        ((0.0312, 0.0269, 0.0351), "gpt-b is better by 0.031 bits per byte (95 %: 0.027 to 0.035) on text like this"),
        (
            (0.02, -0.01, 0.05),
            "gpt-b is better by 0.020 bits per byte on this text, but the interval includes 0 (95 %: -0.010 to 0.050)",
        ),
        ((0.02, None, None), "gpt-b is better by 0.020 bits per byte on this text, which is too short for an interval"),
    ],
)
def test_the_sentence_says_which_run_is_better_and_how_surely(numbers, expected):
    said = sentence(Gap("bits per byte", *numbers, 40), "gpt-a", "gpt-b")
    assert said.startswith(expected) and said.endswith("; training seeds not counted.")


def test_the_command_prints_the_sentence(in_process, runs):
    done = in_process("evaluate", runs[0], "--against", runs[1])
    assert done.returncode == 0, done.stderr
    assert evaluate(runs[0], against=runs[1]).to_json()["splits"]["validation"]["difference"]["sentence"] in done.stdout

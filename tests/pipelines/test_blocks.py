"""Built datasets have every token in its place and the same bytes every time, and are never half-written."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from hashlib import blake2b
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from pipelines.dataset.arrow import text_of
from pipelines.dataset.reader import DATA_FILE, TokenDataset, TokenStream, write_info
from pipelines.files import whole_folder
from pipelines.verbs.build_dataset import build_dataset
from tokenizer import END_OF_TEXT, Tokenizer


def files_of(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def expected_stream(text_folder, tok, split):
    """Return the end-of-text token and the ids of each document, encoded one at a time."""
    ids = []
    for batch in open_corpus([str(text_folder)]).batches(split):
        for document in batch.column(0).to_pylist():
            ids += [tok.special_tokens[END_OF_TEXT], *tok.encode_ordinary(document)]
    return ids


def test_the_stream_is_end_of_text_before_each_document_and_loses_only_its_tail(
    dataset_folder, text_folder, tokenizer_folder
):
    dataset, tok = TokenDataset(dataset_folder), Tokenizer.load(tokenizer_folder)
    for split in ("train", "validation"):
        expected = expected_stream(text_folder, tok, split)
        stream = dataset.split(split)
        assert len(expected) - stream.tokens < 32
        assert stream.read(0, stream.tokens).tolist() == expected[: stream.tokens]
        facts = dataset.info["splits"][split]
        assert facts["encoded_tokens"] == len(expected)
        assert facts["documents"] == expected.count(tok.special_tokens[END_OF_TEXT])


def test_it_opens_with_datasets(dataset_folder):
    opened = datasets.load_from_disk(str(dataset_folder))
    assert set(opened) == {"train", "validation"}
    ours = TokenDataset(dataset_folder)
    for split, theirs in opened.items():
        assert theirs.features["input_ids"].length == 32
        assert theirs.features["input_ids"].feature.dtype == "uint16"
        stream = ours.split(split)
        blocks = np.array(theirs["input_ids"])
        assert blocks.shape == (stream.blocks, 32)
        assert np.array_equal(blocks.ravel(), stream.read(0, stream.tokens))


def test_files_are_identical_for_any_threads_and_batches(
    tmp_path, text_folder, tokenizer_folder, dataset_folder, monkeypatch
):
    options = {"tokenizer": tokenizer_folder, "context_length": 32}
    build_dataset([str(text_folder)], out=tmp_path / "one", threads=1, **options)
    monkeypatch.setattr("corpora.documents.BATCH_BYTES", 5000)
    build_dataset([str(text_folder)], out=tmp_path / "small", threads=3, **options)
    assert files_of(tmp_path / "one") == files_of(dataset_folder) == files_of(tmp_path / "small")


def test_a_long_document_is_encoded_in_pieces_to_the_same_bytes(tmp_path, text_folder, tokenizer_folder, monkeypatch):
    whole = b"".join(path.read_bytes() for path in sorted(text_folder.iterdir()))
    (tmp_path / "long.txt").write_bytes(whole)
    options = {"tokenizer": tokenizer_folder, "context_length": 32}
    build_dataset([str(tmp_path / "long.txt")], out=tmp_path / "whole", **options)
    monkeypatch.setattr("pipelines.dataset.encoding.PIECE_BYTES", 1000)
    monkeypatch.setattr("pipelines.dataset.encoding.GROUP_BYTES", 8000)
    monkeypatch.setattr("tokenizer.document_blocks.SEARCHED_BYTES", 500)
    build_dataset([str(tmp_path / "long.txt")], out=tmp_path / "pieces", **options)
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "pieces")


def test_a_long_document_that_cannot_be_cut_has_the_same_stream(tmp_path, text_folder, tokenizer_folder, monkeypatch):
    texts = [path.read_bytes() for path in sorted(text_folder.iterdir())[:6]]
    texts[3] += b"a" * 50_000 + b" " * 20_000
    (tmp_path / "long.txt").write_bytes(b"".join(texts))
    monkeypatch.setattr("pipelines.dataset.encoding.PIECE_BYTES", 1000)
    monkeypatch.setattr("pipelines.dataset.encoding.GROUP_BYTES", 8000)
    monkeypatch.setattr("tokenizer.document_blocks.SEARCHED_BYTES", 500)
    data, corpus = tmp_path / "data", tmp_path / "long.txt"
    build_dataset([str(corpus)], tokenizer=tokenizer_folder, context_length=32, out=data)
    expected = expected_stream(corpus, Tokenizer.load(tokenizer_folder), "train")
    stream = TokenDataset(data).split("train")
    assert stream.read(0, stream.tokens).tolist() == expected[: stream.tokens]
    assert len(expected) - stream.tokens < 32


def test_no_token_is_lost_between_record_batches(tmp_path, text_folder, tokenizer_folder, dataset_folder, monkeypatch):
    monkeypatch.setattr("pipelines.dataset.block_dataset.BATCH_TOKENS", 100)
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=tmp_path / "data")
    one, many = TokenDataset(dataset_folder).split("train"), TokenDataset(tmp_path / "data").split("train")
    assert len(many.chunks()) == -(-one.blocks // 3)
    assert np.array_equal(many.read(0, many.tokens), one.read(0, one.tokens))
    opened = datasets.load_from_disk(str(tmp_path / "data"))["train"]
    assert np.array_equal(np.array(opened["input_ids"]).ravel(), one.read(0, one.tokens))


def test_special_spellings_in_the_text_stay_text(tmp_path, tokenizer_folder):
    (tmp_path / "a.txt").write_text("one <|endoftext|> two <|mask|>\n" * 50)
    build_dataset([str(tmp_path / "a.txt")], tokenizer=tokenizer_folder, context_length=16, out=tmp_path / "data")
    tok = Tokenizer.load(tokenizer_folder)
    tokens = TokenDataset(tmp_path / "data").split("train").read(0, 10**6).tolist()
    assert tokens.count(tok.special_tokens[END_OF_TEXT]) == 1
    assert tok.decode(tokens[1:]).startswith("one <|endoftext|> two <|mask|>\n")


def test_without_a_separator_the_stream_is_the_text(tmp_path):
    tok = Tokenizer.train(["ab"], vocab_size=256, special_tokens=())
    tok.save(tmp_path / "tok")
    (tmp_path / "a.txt").write_bytes(b"abcdefghij\n" * 100)
    options = {"tokenizer": tmp_path / "tok", "context_length": 10}
    build_dataset([str(tmp_path / "a.txt")], out=tmp_path / "data", separator=False, **options)
    stream = TokenDataset(tmp_path / "data").split("train")
    assert tok.decode_bytes(stream.read(0, stream.tokens)) == b"abcdefghij\n" * 90
    with pytest.raises(ValueError, match="no special token"):
        build_dataset([str(tmp_path / "a.txt")], out=tmp_path / "other", **options)
    assert not (tmp_path / "other").exists()


def test_a_dataset_inside_its_corpus_is_refused(tmp_path, text_folder, tokenizer_folder):
    folder, options = tmp_path / "text", {"tokenizer": tokenizer_folder, "context_length": 32}
    shutil.copytree(text_folder, folder)
    before = files_of(folder)
    with pytest.raises(ValueError, match=r"out='.*/text/data'` is inside the corpus .*/text, .* folder outside"):
        build_dataset([str(folder)], out=folder / "data", **options)
    assert files_of(folder) == before
    build_dataset([str(folder)], out=folder / "data", suffix=(".txt",), **options)  # then its files are not text


def test_a_context_longer_than_a_split_is_refused_and_leaves_nothing(tmp_path, text_folder, tokenizer_folder):
    with pytest.raises(ValueError, match="context of 1000000 tokens is longer than the split"):
        build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=1_000_000, out=tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_overwrite_replaces_only_a_dataset(tmp_path, text_folder, tokenizer_folder, dataset_folder):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("mine")
    options = {"tokenizer": tokenizer_folder, "context_length": 32}
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="exists already"):
            build_dataset([str(text_folder)], out=tmp_path / "mine", overwrite=overwrite, **options)
    assert (tmp_path / "mine" / "precious").read_text() == "mine"
    old = copy_of(dataset_folder, tmp_path)
    with pytest.raises(ValueError, match="exists already"):
        build_dataset([str(text_folder)], out=old, **options)
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=16, out=old, overwrite=True)
    assert TokenDataset(old).context_length == 16
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "copy"}


def test_a_failed_rebuild_keeps_the_previous_dataset(tmp_path, text_folder, tokenizer_folder, dataset_folder):
    old = copy_of(dataset_folder, tmp_path)
    with pytest.raises(ValueError, match="is longer than the split"):
        build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=10**6, out=old, overwrite=True)
    assert files_of(old) == files_of(dataset_folder)


def test_a_folder_that_cannot_be_renamed_keeps_the_previous_one(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "old").write_text("")
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "data", lambda folder: True) as new:
        new.rmdir()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert (tmp_path / "data" / "old").exists()


def test_the_working_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ValueError, match=r"`out` is \., which cannot be replaced"),
        whole_folder(Path(), lambda _: True),
    ):
        pass


def test_documents_left_out_are_counted(tmp_path, text_folder, tokenizer_folder, printed):
    folder = tmp_path / "text"
    shutil.copytree(text_folder, folder)
    (folder / "empty.txt").write_bytes(b"")
    (folder / "latin.txt").write_bytes(b"caf\xe9\n")
    info = build_dataset(
        [str(folder)], tokenizer=tokenizer_folder, context_length=32, out=tmp_path / "data", invalid="skip"
    )
    assert info.corpus.dropped == {"empty_documents": 1, "invalid_documents": 1}
    assert "1 empty document, 1 invalid document" in printed.readouterr().out


def test_a_killed_build_leaves_no_dataset_and_the_next_one_is_whole(
    tmp_path, text_folder, tokenizer_folder, dataset_folder
):
    many = tmp_path / "many"
    many.mkdir()
    for number, path in enumerate(sorted(text_folder.iterdir()) * 40):
        (many / f"{number}.txt").write_bytes(path.read_bytes())
    out = tmp_path / "data"
    code = (
        "from pathlib import Path; from pipelines.verbs.build_dataset import build_dataset; "
        f"build_dataset([{str(many)!r}], tokenizer=Path({str(tokenizer_folder)!r}), context_length=32, "
        f"out=Path({str(out)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("data.partial/*/*.arrow")) and time.monotonic() < deadline:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=out)
    assert files_of(out) == files_of(dataset_folder)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "many"}


def test_leftovers_of_a_build_killed_at_its_end_are_removed(tmp_path, text_folder, tokenizer_folder):
    """Both folders are complete: the new one is in place, and the old one is being removed."""
    out, options = tmp_path / "data", {"tokenizer": tokenizer_folder, "context_length": 32}
    build_dataset([str(text_folder)], out=out, **options)
    shutil.copytree(out, tmp_path / "data.old")
    before = files_of(out)
    build_dataset([str(text_folder)], out=out, overwrite=True, **options)
    assert files_of(out) == before
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


def copy_of(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def test_a_truncated_block_file_is_named(dataset_folder, tmp_path):
    folder = copy_of(dataset_folder, tmp_path)
    path = folder / "train" / DATA_FILE
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"train/data-00000-of-00001\.arrow is truncated or altered"):
        TokenDataset(folder)


def test_an_altered_block_file_is_named(dataset_folder, tmp_path):
    folder = copy_of(dataset_folder, tmp_path)
    path = folder / "validation" / DATA_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"validation/data-00000-of-00001\.arrow is altered"):
        TokenDataset(folder)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"context_length": 32', '"context_length": 16'),
    ],
)
def test_a_damaged_description_is_named(dataset_folder, tmp_path, damage):
    folder = copy_of(dataset_folder, tmp_path)
    path = folder / "dataset.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=r"dataset\.json is damaged"):
        TokenDataset(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda info: info.update(context_length=0),
        lambda info: info.update(context_length="32"),
        lambda info: info.update(context_length=16),
        lambda info: info["tokenizer"].update(vocab_size=None),
        lambda info: info["corpus"].update(name=3),
        lambda info: info["splits"].update({"../x": info["splits"].pop("train")}),
        lambda info: info["splits"]["train"].update(shards=[]),
        lambda info: info.pop("corpus"),
    ],
)
def test_a_wrong_field_is_named_although_the_fingerprint_is_right(dataset_folder, tmp_path, change):
    folder = copy_of(dataset_folder, tmp_path)
    info = json.loads((folder / "dataset.json").read_text())
    change(info)
    write_info(folder, {name: value for name, value in info.items() if name != "fingerprint"})
    with pytest.raises(ValueError, match=r"dataset\.json is damaged: "):
        TokenDataset(folder)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.data())
def test_reads_across_record_batches_return_the_stream(sizes, data):
    context_length = 3
    whole = np.arange(sum(sizes) * context_length, dtype=np.uint16)
    cuts = np.cumsum([size * context_length for size in sizes])[:-1]
    stream = TokenStream(np.split(whole, cuts), context_length)
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) + 3))
    assert stream.read(start, length).tolist() == whole[start : start + length].tolist()


@given(st.lists(st.text(max_size=5)), st.integers(0, 3), st.booleans())
def test_text_of_returns_the_documents_of_a_column(documents, skipped, large):
    column = pa.array(documents, pa.large_string() if large else pa.string())[skipped:]
    text, lengths = text_of(column)
    encoded = [document.encode() for document in documents[skipped:]]
    assert bytes(text) == b"".join(encoded)
    assert lengths.tolist() == [len(document) for document in encoded]


def test_few_documents_always_have_validation_text_or_are_refused_before_they_are_encoded(
    in_process, tmp_path, tokenizer_folder
):
    texts = (f"document {number} " * 30 for number in range(200))
    kept = [text for text in texts if blake2b(text.encode(), digest_size=8).digest() >= b"\x10"][:30]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in kept))
    words = ["build-dataset", tmp_path / "text.jsonl", "--tokenizer", tokenizer_folder, "--context-length", 16]
    done = in_process(*words, "--out", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert "hash:0.05 holds out none of the few documents, so the split is tail:0.1" in done.stdout
    assert json.loads((tmp_path / "data" / "dataset.json").read_text())["splits"]["validation"]["blocks"]
    done = in_process(*words, "--split", "hash:0.05", "--out", tmp_path / "other")
    assert done.returncode == 1 and "encoding" not in done.stdout
    assert "--split hash:0.05 holds out none of its few documents; give a larger share" in done.stderr


def test_dataset_json_has_the_facts(dataset_folder, tokenizer_folder, text_folder):
    info = json.loads((dataset_folder / "dataset.json").read_text())
    assert info["tokenizer"]["fingerprint"] == Tokenizer.load(tokenizer_folder).fingerprint
    assert info["corpus"]["split_rule"] == "hash:0.05"
    assert sum(split["documents"] for split in info["splits"].values()) == 60
    assert sum(split["bytes"] for split in info["splits"].values()) == sum(
        path.stat().st_size for path in text_folder.iterdir()
    )

"""The ranges of a corpus, read one by one, hold the documents of the corpus in its order and in the same splits."""

import gzip
import json
import os
import pickle
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from corpora.documents import Dropped

TEXTS = st.lists(st.text(max_size=30), max_size=40).map(lambda texts: [*texts, "a text", ""])


def documents_of(batches):
    """Return the documents of each split."""
    found = {}
    for split, batch in batches:
        found.setdefault(split, []).extend(batch.column(0).to_pylist())
    return found


def documents_of_ranges(corpus, size):
    """Return the documents of each split, and what was left out, from the ranges of a corpus after pickling."""
    found, dropped = {}, Dropped()
    for each in pickle.loads(pickle.dumps(corpus.ranges(size))):
        for split, documents in documents_of(each.routed_batches(dropped)).items():
            found.setdefault(split, []).extend(documents)
    return found, dropped


def assert_ranges_hold_the_corpus(corpus, size):
    whole = documents_of(corpus.routed_batches())
    found, dropped = documents_of_ranges(corpus, size)
    assert found == whole
    assert dropped == corpus.dropped


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, st.integers(1, 400), st.sampled_from([None, "hash:0.3", "tail:0.1", "tail:0.7"]))
def test_ranges_of_a_cut_file_hold_all_its_documents(tmp_path, texts, size, split):
    write_jsonl(tmp_path / "a.jsonl", texts)
    assert_ranges_hold_the_corpus(open_corpus(str(tmp_path / "a.jsonl"), split), size)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TEXTS, st.integers(1, 9), st.integers(1, 400), st.sampled_from(["hash:0.3", "tail:0.4"]))
def test_ranges_of_row_groups_hold_all_rows(tmp_path, texts, rows, size, split):
    pyarrow.parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=rows)
    assert_ranges_hold_the_corpus(open_corpus(str(tmp_path / "a.parquet"), split), size)


@pytest.mark.parametrize("size", [1, 300, 10**9])
def test_files_of_every_kind_are_in_ranges_in_their_order(tmp_path, size):
    for split in ("train", "test"):
        folder = tmp_path / split
        folder.mkdir()
        write_jsonl(folder / "a.jsonl", [f"{split} {number}" * 9 for number in range(30)] + [""])
        (folder / "b.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))
        (folder / "c.txt").write_text(split)
        pyarrow.parquet.write_table(pa.table({"text": [split] * 5}), folder / "d.parquet", row_group_size=2)
    for split in ("predefined", "hash:0.5", "tail:0.5"):
        assert_ranges_hold_the_corpus(open_corpus(str(tmp_path), split), size)


def test_only_files_that_can_be_cut_are_in_several_ranges(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["a text"] * 100)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(os.urandom(1000).hex().encode()))
    (tmp_path / "c.txt").write_text("a long text " * 100)
    found = [[part.path.name for part in each.parts] for each in open_corpus(str(tmp_path), "hash:0.5").ranges(500)]
    assert found == [["a.jsonl"]] * 4 + [["b.jsonl.gz"], ["c.txt"]]


def test_ranges_of_relative_paths_can_be_read_from_another_folder(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", ["a text"] * 100)
    (tmp_path / "b.txt").write_text("a text")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    ranges = open_corpus(["a.jsonl", "b.txt"], "none").ranges(500)
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = [text for each in ranges for text in documents_of(each.routed_batches(Dropped()))["train"]]
    assert found == ["a text"] * 101


def test_small_files_share_a_range(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text("x" * 100)
    ranges = open_corpus(str(tmp_path)).ranges(1000)
    assert [len(each.parts) for each in ranges] == [10, 10, 10]
    assert [each.size for each in ranges] == [1000, 1000, 1000]


def test_every_range_reads_the_column_that_the_whole_file_has(tmp_path):
    """The first line alone would make "a" the text."""
    rows = [{"a": "one"}, {"a": "two", "text": "three"}] + [{"text": f"{number}"} for number in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert_ranges_hold_the_corpus(open_corpus(str(tmp_path / "a.jsonl"), "hash:0.5"), 1)


def test_an_error_in_a_range_names_its_line_and_the_byte_where_the_range_starts(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [b'{"text": "sound"}\n'] * 10
    path.write_bytes(b"".join([*lines[:8], b'{"text": 1}\n', *lines]))
    ranges = open_corpus(str(path), "hash:0.5").ranges(90)
    assert documents_of(ranges[0].routed_batches(Dropped()))
    with pytest.raises(ValueError, match=r'"text" in line 4 of .*a\.jsonl from byte 90 is a number'):
        list(ranges[1].routed_batches(Dropped()))


def test_a_fingerprint_changes_with_the_file_the_range_and_the_options(tmp_path):
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [f"a {i:04}" for i in range(100)])

    def fingerprints(size=500, **options):
        return [each.fingerprint for each in open_corpus(str(path), **options).ranges(size)]

    before = fingerprints()
    assert len({*before}) == 4
    assert fingerprints() == before
    for changed in (
        fingerprints(400),
        fingerprints(split="hash:0.1"),
        fingerprints(split="tail:0.1"),
        fingerprints(invalid="skip"),
    ):
        assert not {*before} & {*changed}
    [whole] = open_corpus(str(path)).ranges()
    assert replace(whole, duplicates=b"").fingerprint != whole.fingerprint  # a range without documents
    os.utime(path, ns=(1, 1))
    assert not {*before} & {*fingerprints()}

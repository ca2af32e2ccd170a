"""Files, folders and globs: which files are read, in which order, and which are skipped."""

import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from tests.conftest import PEAK_MEMORY
from tests.corpora.helpers import COMPRESSORS, all_documents, everything, jsonl, zstd


def test_folders_are_read_by_code_point_of_the_relative_path_and_hidden_files_are_not(tmp_path):
    names = ["Z.txt", "a.txt", "a/b.txt", "a/.hidden.txt", ".git/c.txt", "a-b/c.txt", "é.txt", "d.md", "b.TXT"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name + "\n")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    expected = ["Z.txt", "a-b/c.txt", "a.txt", "a/b.txt", "b.TXT", "é.txt"]
    assert "".join(all_documents(tmp_path)).splitlines() == expected


def test_globs_folders_and_files_are_read_once_in_the_order_given(tmp_path):
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/d.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name + "\n")
    assert "".join(all_documents(tmp_path / "*.txt")) == "a.txt\nb.txt\n"
    assert "".join(all_documents(tmp_path / "**" / "*.txt")) == "a.txt\nb.txt\nsub/c.txt\n"
    assert "".join(all_documents(tmp_path / "sub", tmp_path / "b.txt", tmp_path)) == "sub/c.txt\nb.txt\na.txt\n"


def test_a_missing_corpus_is_refused_with_the_nearest_card(tmp_path):
    with pytest.raises(FileNotFoundError, match="did you mean tinystories"):
        open_corpus("tinystory")
    with pytest.raises(FileNotFoundError, match="nothing matches"):
        open_corpus(str(tmp_path / "*.txt"))
    with pytest.raises(FileNotFoundError, match="bytelm corpus list"):
        open_corpus(str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"holds no \.txt, \.jsonl, \.parquet or \.arrow file"):
        open_corpus(str(tmp_path))
    (tmp_path / "a.pdf").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"a\.pdf is not a \.txt.* if it is text, add --suffix \.pdf"):
        open_corpus(str(tmp_path / "a.pdf"))
    with pytest.raises(ValueError, match="no corpus was given"):
        open_corpus([])


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.xz"])
def test_an_empty_corpus_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(COMPRESSORS.get(os.path.splitext(name)[1], bytes)(b""))  # noqa: PTH122
    with pytest.raises(ValueError, match="is empty"):
        open_corpus(str(tmp_path))


def test_empty_documents_are_dropped_and_counted_in_each_pass(tmp_path):
    for i in range(30):
        (tmp_path / f"{i:02}.txt").write_text("x" * (i % 3))
    corpus = open_corpus(str(tmp_path))
    for _ in range(2):
        assert sum(len(texts) for texts in everything(corpus).values()) == 20
        assert corpus.dropped.empty_documents == 10


@pytest.mark.parametrize("big", [False, True])
def test_a_file_that_is_not_utf8_is_an_error_with_the_byte_offset(tmp_path, big):
    start = "é".encode() * (20 << 20 if big else 5)
    (tmp_path / "a.txt").write_bytes(start + b"\xe9t\xe9")
    with pytest.raises(ValueError, match=rf"a\.txt is not UTF-8 at byte {len(start)} \(0xe9\).*replace, skip or bytes"):
        open_corpus(str(tmp_path))


def test_invalid_bytes_are_replaced_skipped_or_kept(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 \xed\xa0\x80")
    (tmp_path / "b.txt").write_bytes("é\n".encode() * 100)
    whole = b"caf\xe9 \xed\xa0\x80" + "é\n".encode() * 100
    assert b"".join(all_documents(tmp_path, invalid="bytes")) == whole
    assert "".join(all_documents(tmp_path, invalid="replace")) == whole.decode(errors="replace")
    corpus = open_corpus(str(tmp_path), invalid="skip")
    assert "".join(text for texts in everything(corpus).values() for text in texts) == "é\n" * 100
    assert corpus.dropped.invalid_documents == 1
    assert (
        next(open_corpus(str(tmp_path), invalid="bytes").batches("train")).schema.field("text").type
        == pa.large_binary()
    )
    with pytest.raises(ValueError, match="is not one of error, replace, skip, bytes"):
        open_corpus(str(tmp_path), invalid="ignore")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=30), st.integers(0, 7))
def test_every_policy_agrees_with_pythons_own_decoder(tmp_path, texts, salt):
    pq.write_table(pa.table({"text": pa.array(texts, pa.binary())}), tmp_path / f"{salt}.parquet")

    def valid(text):
        try:
            return bool(text.decode())
        except UnicodeDecodeError:
            return False

    path = str(tmp_path / f"{salt}.parquet")
    if not any(texts):
        return
    # A hash rule cuts no document.
    replaced = everything(open_corpus(path, invalid="replace", split="hash:0.5"))
    expected = [text.decode(errors="replace") for text in texts if text]
    assert sorted(replaced["train"] + replaced["validation"]) == sorted(expected)
    if any(map(valid, texts)):
        skipped = everything(open_corpus(path, invalid="skip", split="hash:0.5"))
        assert sorted(skipped["train"] + skipped["validation"]) == sorted(t.decode() for t in texts if valid(t))


def test_batches_hold_8_mib_of_text_or_one_longer_document(tmp_path):
    mib = 1 << 20
    lengths = [mib] * 20 + [9 * mib] + [3, 4] + [8 * mib, 1, 8 * mib]
    (tmp_path / "a.jsonl").write_bytes(jsonl(chr(97 + i) * n for i, n in enumerate(lengths)))
    corpus = open_corpus(str(tmp_path), split="hash:1e-15")
    sizes = [[len(text) for text in batch.column(0).to_pylist()] for batch in corpus.batches("train")]
    assert sizes == [[mib] * 8, [mib] * 8, [mib] * 4, [9 * mib], [3, 4], [8 * mib], [1], [8 * mib]]


MEMORY = (
    PEAK_MEMORY
    + """
import pyarrow, pyarrow.json, datasets
from corpora import open_corpus
for folder in sys.argv[1:]:
    corpus = open_corpus(folder)
    for split, batch in corpus.routed_batches():
        pass
    print(peak_memory() >> 20)
"""
)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "parquet", "txt"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, kind):
    def corpus(megabytes):
        folder = tmp_path / f"{kind}-{megabytes}"
        folder.mkdir()
        texts = [f"{i} " * 2000 for i in range(100)]
        if kind == "txt":
            for i in range(megabytes):
                (folder / f"{i:03}.txt").write_bytes(b"0123456789abcde\n" * (1 << 16))
        elif kind == "parquet":
            with pq.ParquetWriter(folder / "a.parquet", pa.schema([("text", pa.string())])) as writer:
                for _ in range(megabytes):
                    writer.write_table(pa.table({"text": texts * 2}))
        else:
            data = jsonl(texts * 2) * megabytes
            (folder / f"a.{kind}").write_bytes(data if kind == "jsonl" else zstd(data))
        return folder

    words = [sys.executable, "-c", MEMORY, corpus(24), corpus(240)]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    after_24, after_240 = map(int, output.split())
    assert after_240 < after_24 + 60


def test_a_long_single_line_file_is_not_copied_into_memory(tmp_path):
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(300 << 20)
    program = MEMORY.replace("(folder)", "(folder, max_document=10**9)").replace(
        "print(", "assert pyarrow.default_memory_pool().max_memory() < 100 << 20; print("
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True)

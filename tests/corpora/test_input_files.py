"""Files, folders and globs: which files are read, in which order, and which are skipped."""

import errno
import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus, open_pairs
from tests.conftest import PEAK_MEMORY
from tests.corpora.helpers import COMPRESSORS, all_documents, everything, jsonl, zstd


def test_folders_are_read_by_code_point_of_the_relative_path_and_hidden_files_are_not(tmp_path):
    names = ["Z.txt", "a.txt", "a/b.txt", "a/.hidden.txt", ".git/c.txt", "a-b/c.txt", "é.txt", "d.md", "b.TXT"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name + "\n")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    expected = ["Z.txt", "a-b/c.txt", "a.txt", "a/b.txt", "b.TXT", "é.txt"]
    with pytest.warns(UserWarning, match="circular link"):
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
    with pytest.raises(ValueError, match=r"a\.pdf is not a \.txt.* if it is text, add `suffix='\.pdf'`"):
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
    with pytest.raises(
        ValueError, match=rf"a\.txt is not UTF-8 at byte {len(start)} \(0xe9\).*`invalid='replace'`, skip"
    ):
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


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("specs", 3, "a corpus is a name or a path, or a list of them, not 3"),
        ("specs", None, "a corpus is a name or a path, or a list of them, not None"),
        ("specs", [3], "a corpus is a name or a path, or a list of them, not 3"),
        ("specs", [], "no corpus was given"),
        ("split", 5, 'split must be a rule such as "predefined" or "hash:0.05", not 5'),
        ("split", "validation", 'the split "validation" is not one of'),
        ("text_column", 3, "text_column must be a text, not 3"),
        ("suffix", 3, 'suffix must be one such as ".md", or a list of them, not 3'),
        ("suffix", [b".md"], "suffix must be one such as"),
        ("encoding", 3, "encoding must be a text, not 3"),
        ("max_document", "8k", "max_document is a number of bytes, at least 1, not '8k'"),
        ("encodng", "utf-8", "there is no option 'encodng' of a corpus"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, argument, value, message):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(ValueError, match=re.escape(message)):
        open_corpus(**{"specs": tmp_path / "a.txt", argument: value})


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


@pytest.mark.parametrize(
    "kind", ["jsonl.zst", "parquet", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("jsonl", "txt"))]
)
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


def write_small_files(folder, number, kind):
    """Write files of one document each; `kind` is their suffix, with that of a compression."""
    folder.mkdir()
    format_, _, compression = kind.partition(".")
    for i in range(number):
        text = f"text {i}\n"
        content = {"jsonl": jsonl([text]), "csv": f"text\n{text}".encode(), "json": json.dumps([text]).encode()}
        compressed = COMPRESSORS.get(f".{compression}", bytes)(content.get(format_, text.encode()))
        (folder / f"{i:04}.{kind}").write_bytes(compressed)


def calls_of(work):
    """Return how many functions `work` calls, those of C included."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", ["txt", "txt.gz", "txt.xz", "txt.zst", "jsonl", "jsonl.gz", "csv", "json"])
def test_the_work_for_each_small_file_is_bounded(tmp_path, kind):
    def read(number):
        corpus = open_corpus(str(tmp_path / str(number)), suffix=(".txt", ".jsonl", ".csv", ".json"))
        assert sum(len(batch) for _, batch in corpus.routed_batches()) == number

    for number in (300, 800):
        write_small_files(tmp_path / str(number), number, kind)
    read(300)  # imports
    assert calls_of(lambda: read(800)) - calls_of(lambda: read(300)) < 500 * 400


def test_a_bad_file_among_many_small_ones_is_named_replaced_or_skipped(tmp_path):
    write_small_files(tmp_path / "a", 700, "txt")
    (tmp_path / "a" / "0500.txt").write_bytes(b"caf\xe9")
    (tmp_path / "a" / "0600.txt").write_bytes(b"")
    corpus = open_corpus(str(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"0500\.txt is not UTF-8 at byte 3 \(0xe9\)"):
        everything(corpus)
    assert "caf\ufffd" in all_documents(tmp_path / "a", invalid="replace")
    assert b"caf\xe9" in all_documents(tmp_path / "a", invalid="bytes")
    skipped = open_corpus(str(tmp_path / "a"), invalid="skip")
    assert sum(len(texts) for texts in everything(skipped).values()) == 698
    assert (skipped.dropped.invalid_documents, skipped.dropped.empty_documents) == (1, 1)
    with pytest.raises(ValueError, match=r"0000\.txt has 7 bytes, above the limit of 6 bytes"):
        open_corpus(str(tmp_path / "a"), max_document=6, split="tail")
    (tmp_path / "a" / "0300.jsonl").write_bytes(jsonl(["a", "b" * 100]))
    with pytest.raises(ValueError, match=r"row 2 of .*0300\.jsonl has 100 bytes of text, above the limit"):
        everything(open_corpus(str(tmp_path / "a"), max_document=60))


def test_small_files_of_a_table_are_pairs_too(tmp_path):
    for i in range(400):
        (tmp_path / f"{i:03}.jsonl").write_text(json.dumps({"de": f"wort {i}", "en": f"word {i}" * (i % 3)}) + "\n")
    rows = [row for _, batch in open_pairs(str(tmp_path), ("de", "en")).routed_batches() for row in batch.to_pylist()]
    assert len(rows) == 266
    assert {"source": "wort 7", "target": "word 7"} in rows


@pytest.mark.parametrize("spec", ["", "*", "**/*.txt"])
def test_a_folder_that_cannot_be_listed_is_an_error_that_names_it(tmp_path, monkeypatch, spec):
    """Root can list every folder, so the error is simulated."""
    for name in ("a.txt", "sub/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n" * 10)
    list_folder, error = os.scandir, PermissionError(errno.EACCES, "Permission denied", f"{tmp_path}/sub")

    def refuse(folder):
        if os.fspath(folder) == f"{tmp_path}/sub":
            raise error
        return list_folder(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match=r"Permission denied: '.*/sub'"):
        open_corpus(str(tmp_path / spec))
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", f"{tmp_path}/sub")  # removed meanwhile
    assert all_documents(tmp_path / spec, split="none") == ["a.txt\n" * 10]


def test_broken_and_circular_links_are_counted_and_named(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("one\n")
    (folder / "sub" / "b.txt").write_text("two\n")
    (folder / "gone.txt").symlink_to("nowhere.txt")
    (folder / "mounted").symlink_to(tmp_path / "not-mounted")
    (folder / "self.txt").symlink_to("self.txt")
    (folder / "sub" / "up").symlink_to("..")
    (folder / "zagain").symlink_to("sub")  # leads to files that are read once
    names = [r"gone\.txt -> nowhere\.txt", r"mounted -> \S*not-mounted", r"self\.txt -> self\.txt", r"up -> \.\."]
    for spec in (folder, folder / "**"):
        with pytest.warns(UserWarning, match=r"left out 4 broken or circular links: .*" + ".*".join(names)):
            assert "".join(all_documents(spec)) == "one\ntwo\n"
    with pytest.warns(UserWarning, match=r"left out 1 broken or circular link: \S*gone\.txt -> nowhere\.txt"):
        assert "".join(all_documents(folder / "[ag]*.txt")) == "one\n"
    for i in range(20):
        (folder / f"{i}.txt").symlink_to("nowhere.txt")
    with pytest.warns(UserWarning, match=r"left out 24 broken or circular links: .*, 19 more$"):
        open_corpus(str(folder))
    with pytest.raises(ValueError, match=r"gone\.txt -> nowhere\.txt is a broken or circular link: repair it"):
        open_corpus(str(folder / "gone.txt"))
    with pytest.raises(ValueError, match=r"self\.txt -> self\.txt is a broken or circular link: repair it"):
        open_corpus(str(folder / "self.txt"))

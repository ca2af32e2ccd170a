"""No document is read beyond the limit, and only regular files are opened."""

import contextlib
import gzip
import lzma
import os
import socket
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from corpora import open_corpus
from tests.conftest import PEAK_MEMORY
from tests.corpora.helpers import everything, jsonl

MILLION = 1_000_000


def texts(*specs, **options):
    """Return all documents; a hash rule cuts none."""
    found = everything(open_corpus([str(spec) for spec in specs], split="hash:0.5", **options))
    return sorted(text for part in found.values() for text in part)


# Reads a file under the default limit, and prints its peak memory in MB above that of the libraries.
PEAK = (
    PEAK_MEMORY
    + """
import pyarrow, pyarrow.json
from corpora import open_corpus
before = peak_memory()
try:
    open_corpus(sys.argv[1], max_document=50_000_000)
except ValueError as error:
    print((peak_memory() - before) // 1_000_000, error)
"""
)


@pytest.mark.parametrize(
    "name",
    [
        *("a.txt.zst", "a.jsonl.zst", "a.txt.xz", "a.csv.zst", "a.json.gz"),
        pytest.param("a.txt.gz", marks=pytest.mark.slow),
    ],
)
def test_decompression_stops_at_the_limit(tmp_path, name):
    """A file of a few kilobytes decompresses to 300 MB."""
    piece = b"a" * (1 << 20)
    with (tmp_path / name).open("wb") as file:
        if name.endswith(".zst"):
            with zstandard.ZstdCompressor().stream_writer(file) as out:
                for _ in range(300):
                    out.write(piece)
        elif name.endswith(".xz"):
            with lzma.open(file, "wb", preset=0) as out:
                for _ in range(300):
                    out.write(piece)
        else:
            with gzip.open(file, "wb", compresslevel=1) as out:
                for _ in range(300):
                    out.write(piece)
    program = PEAK.replace("max_document", "suffix=['.txt', '.jsonl', '.csv', '.json'], max_document")
    done = subprocess.run([sys.executable, "-c", program, tmp_path / name], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    grown, _, message = done.stdout.partition(" ")
    assert name in message
    assert "50,000,000 bytes" in message
    assert int(grown) < 250


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_text_above_the_limit_is_refused_or_skipped_and_counted(tmp_path, suffix):
    write = gzip.compress if suffix else bytes
    (tmp_path / f"a.txt{suffix}").write_bytes(write(b"x" * (MILLION + 1)))
    (tmp_path / f"b.txt{suffix}").write_bytes(write(b"y" * MILLION))
    with pytest.raises(ValueError, match=r"a\.txt.* above the limit of 1,000,000 bytes a document"):
        texts(tmp_path, max_document=MILLION)
    assert texts(tmp_path, max_document=MILLION, invalid="skip") == ["y" * MILLION]
    corpus = open_corpus(str(tmp_path), max_document=MILLION, invalid="skip")
    everything(corpus)
    assert corpus.dropped.counts() == {"empty_documents": 0, "invalid_documents": 0, "long_documents": 1}
    assert len(texts(tmp_path)) == 2


def test_a_line_of_jsonl_above_the_limit_is_named_or_skipped(tmp_path):
    lines = [*["short"] * 3, "x" * (9 * MILLION), "é" * MILLION, "end"]
    (tmp_path / "a.jsonl").write_bytes(jsonl(lines))
    options = {"max_document": MILLION}
    with pytest.raises(ValueError, match=r"line 4 of .*a\.jsonl is longer than .* `max_document`"):
        texts(tmp_path, **options)
    corpus = open_corpus(str(tmp_path), split="hash:0.5", invalid="skip", **options)
    assert sorted(text for part in everything(corpus).values() for text in part) == ["end", *["short"] * 3]
    assert corpus.dropped.long_documents == 2
    (tmp_path / "a.jsonl").write_bytes(jsonl(["short", "é" * MILLION]))
    with pytest.raises(ValueError, match=r"row 2 of .*a\.jsonl has 2,000,000 bytes of text"):
        texts(tmp_path, **options)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "json"])
def test_a_cell_above_the_limit_is_refused_or_skipped(tmp_path, kind):
    column = ["short", "x" * 200, "end"]
    table = pa.table({"text": column})
    if kind == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    elif kind == "arrow":
        with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
            out.write_table(table)
    elif kind == "csv":
        (tmp_path / "a.csv").write_text("text\n" + "\n".join(column))
    else:
        (tmp_path / "a.json").write_text('["short", "' + "x" * 200 + '", "end"]')
    options = {"suffix": f".{kind}", "max_document": 199 if kind != "json" else 300}
    if kind == "json":  # which is read as a whole
        assert texts(tmp_path, **options) == sorted(column)
        options["max_document"] = 199
        with pytest.raises(ValueError, match=r"a\.json is longer than 199 bytes.*convert it to JSON lines"):
            texts(tmp_path, **options)
        return
    with pytest.raises(ValueError, match=rf"row 2 of .*a\.{kind} has 200 bytes of text, above the limit of 199"):
        texts(tmp_path, **options)
    assert texts(tmp_path, invalid="skip", **options) == ["end", "short"]


def test_an_endless_csv_cell_is_refused_under_every_policy_with_a_working_remedy(tmp_path):
    (tmp_path / "a.csv").write_text('text\n"' + "x" * (9 * MILLION))
    for policy in ("error", "skip"):
        with pytest.raises(
            ValueError, match=r"a\.csv has a .* 1,000 bytes .*: raise the limit with `max_document`"
        ) as e:
            texts(tmp_path, suffix=".csv", max_document=1000, invalid=policy)
        assert "`invalid='skip'`" not in str(e.value)


# Prints why each of the named files, folders and globs cannot be opened.
REFUSALS = """
import sys
from corpora import open_corpus
for spec in sys.argv[1:]:
    try:
        open_corpus(spec)
    except ValueError as error:
        print(error)
"""


def test_pipes_devices_and_sockets_are_refused_without_being_opened(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "good.txt").write_text("text")
    special = tmp_path / "folder" / "x.txt"
    listening = socket.socket(socket.AF_UNIX)

    def pipe():
        os.mkfifo(special)

    def device():
        special.symlink_to("/dev/zero")

    def bind():
        with contextlib.chdir(special.parent):  # a socket's path must be short
            listening.bind("x.txt")

    for make, kind in ((pipe, "a named pipe"), (device, "a device"), (bind, "a socket")):
        make()
        specs = (special, special.parent, special.parent / "*.txt")
        done = subprocess.run([sys.executable, "-c", REFUSALS, *specs], capture_output=True, text=True, timeout=300)
        assert done.stdout.count(f"x.txt is {kind}, not a regular file") == 3, done.stderr
        special.unlink()
    listening.close()


def test_a_limit_that_is_not_a_number_of_bytes_is_refused(tmp_path):
    for limit in (0, -1, 1.5, True, "1M"):
        with pytest.raises(ValueError, match="max_document is a number of bytes, at least 1"):
            open_corpus(str(tmp_path), max_document=limit)

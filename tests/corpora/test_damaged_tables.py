"""Tables with flipped bits: every one is read or refused by name, and none crashes the interpreter."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import open_corpus

# Reads 100 files that each have two flipped bits, in one process, which a crash would end.
FUZZ = """
import faulthandler, pathlib, random, sys
from corpora import open_corpus
faulthandler.enable()
path, generator, outcomes = pathlib.Path(sys.argv[1]), random.Random(int(sys.argv[2])), []
whole = path.read_bytes()
for _ in range(100):
    damaged = bytearray(whole)
    for _ in range(2):
        bit = generator.randrange(8 * len(damaged))
        damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    try:
        for _ in open_corpus(str(path), invalid="replace").routed_batches():
            pass
        outcomes.append("read")
    except (ValueError, MemoryError) as error:
        assert str(path) in str(error) and "\\n" not in str(error), repr(error)
        outcomes.append("refused")
print(outcomes.count("read"), outcomes.count("refused"))
"""


def write(path, kind, column):
    table = pa.table({"id": range(len(column)), "text": column})
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=100)
        return
    writers = {"stream": pa.ipc.new_stream, "file": pa.ipc.new_file}
    with pa.OSFile(str(path), "wb") as sink, writers[kind](sink, table.schema) as out:
        out.write_table(table, max_chunksize=100)


@pytest.mark.parametrize(
    ("kind", "text_type"),
    [
        ("stream", pa.string()),
        pytest.param("stream", pa.large_string(), marks=pytest.mark.slow),
        ("stream", pa.dictionary(pa.int32(), pa.string())),
        ("file", pa.string_view()),
        pytest.param("file", pa.string(), marks=pytest.mark.slow),
        ("parquet", pa.string()),
    ],
    ids=str,
)
def test_flipped_bits_in_a_table_never_crash_the_interpreter(tmp_path, kind, text_type):
    column = pa.array([f"word {i} é " * (1 + i % 8) for i in range(400)] + [None, ""] * 5).cast(text_type)
    path = tmp_path / ("a.parquet" if kind == "parquet" else "a.arrow")
    write(path, kind, column)
    done = subprocess.run([sys.executable, "-c", FUZZ, path, "0"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    read, refused = map(int, done.stdout.split())
    assert read + refused == 100
    assert read > 0
    assert refused > 0


def test_an_index_outside_its_dictionary_is_refused_by_name(tmp_path):
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 7]), pa.array(["a", "b"]), safe=False)
    write(tmp_path / "a.arrow", "stream", words)
    with pytest.raises(ValueError, match=r"a\.arrow is not a readable arrow file \(Index 7 out of bounds\)"):
        open_corpus(str(tmp_path))


def test_a_string_column_that_is_not_utf8_still_follows_the_policy(tmp_path):
    latin = pa.array([b"caf\xe9", b"tea"]).view(pa.string())
    write(tmp_path / "a.arrow", "stream", latin)
    with pytest.raises(ValueError, match=r"row 1 of .* is not UTF-8 at byte 3"):
        open_corpus(str(tmp_path), split="hash:0.5")
    replaced = open_corpus(str(tmp_path), split="hash:0.5", invalid="replace")
    texts = [text for _, batch in replaced.routed_batches() for text in batch.column(0).to_pylist()]
    assert sorted(texts) == ["caf\ufffd", "tea"]

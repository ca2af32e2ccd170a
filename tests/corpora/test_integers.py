"""Sequences of integers in .npy files and in columns of tables are documents."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpora import open_corpus
from tests.corpora.helpers import all_documents
from tokenizer.splitting.integers import as_text, from_text

ROWS = np.array([[0, 1, 2], [70_000, 131_071, 5]])


def integers(path, **options):
    corpus = open_corpus([str(path)], split="none", **options)
    texts = [text for batch in corpus.batches("train") for text in batch.column(0).to_pylist()]
    return [from_text(np.frombuffer(text.encode(), np.uint8)).tolist() for text in texts]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, ">i4"])
def test_rows_of_a_2d_array_are_sequences(tmp_path, dtype):
    np.save(tmp_path / "a.npy", ROWS.astype(dtype))
    assert integers(tmp_path / "a.npy", suffix=".npy") == ROWS.tolist()


def test_a_1d_array_is_one_sequence_and_a_folder_has_many_files(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(300, dtype=np.uint16))
    np.save(tmp_path / "b.npy", np.array([7, 8], np.uint8))
    assert integers(tmp_path, suffix=".npy") == [list(range(300)), [7, 8]]


def test_large_arrays_are_read_in_parts(tmp_path):
    rows = np.random.default_rng(0).integers(0, 9, (25, 100_000))
    np.save(tmp_path / "a.npy", rows)
    assert integers(tmp_path / "a.npy", suffix=".npy") == rows.tolist()


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.uint8()), pa.large_list(pa.int64()), pa.list_(pa.int16(), 2), pa.list_(pa.uint32())], ids=str
)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_lists_of_integers_in_tables_are_sequences(tmp_path, kind, suffix):
    rows = [[1, 2], [3, 4], None, [100, 7]]
    rows += [] if pa.types.is_fixed_size_list(kind) else [[], [5]]
    table = pa.table({"tokens": pa.array(rows, kind), "name": ["x"] * len(rows)}).slice(1)
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    assert integers(path, text_column="tokens") == [row for row in rows[1:] if row]  # empty documents are dropped


def test_documents_are_the_characters_that_the_tokenizer_reads(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(131_072).reshape(8, -1))
    texts = [as_text(row).tobytes().decode() for row in np.arange(131_072).reshape(8, -1)]
    corpus = open_corpus([str(tmp_path)], split="none", suffix=".npy")
    assert [text for batch in corpus.batches("train") for text in batch.column(0).to_pylist()] == texts


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([1.5]), "is 1-D of float64: give a 1-D or 2-D array of integers"),
        (np.zeros((2, 2, 2), int), "is 3-D of int64"),
        (np.array([3, -1]), "has the integer -1, but they must be from 0 to 131,071"),
        (np.array([131_072]), "has the integer 131072"),
        (np.array(["a"]), "is 1-D of <U1"),
    ],
)
def test_other_arrays_are_refused_by_name(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(ValueError, match=rf"a\.npy {message}"):
        integers(tmp_path / "a.npy", suffix=".npy")


def test_damaged_files_and_nulls_in_lists_are_refused_by_name(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(100))
    whole = (tmp_path / "a.npy").read_bytes()
    for data in (b"", whole[:50], whole[:-3], b"PK\x03\x04"):
        (tmp_path / "a.npy").write_bytes(data)
        with pytest.raises(ValueError, match=r"a\.npy is not a readable \.npy file"):
            integers(tmp_path / "a.npy", suffix=".npy")
    pq.write_table(pa.table({"tokens": [[1, None]]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r'column "tokens" of .*a\.parquet has a list with a null'):
        integers(tmp_path / "a.parquet")
    pq.write_table(pa.table({"tokens": [[1, -5]]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r'column "tokens" of .*b\.parquet has the integer -5'):
        integers(tmp_path / "b.parquet")
    np.save(tmp_path / "long.npy", np.arange(100))
    with pytest.raises(ValueError, match="has sequences of 100 integers, 400 bytes as text"):
        integers(tmp_path / "long.npy", suffix=".npy", max_document=300)
    assert all_documents(tmp_path / "long.npy", suffix=".npy")

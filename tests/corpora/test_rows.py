"""Rows of tables: formats, nested fields, errors and held-out rows."""

import gzip
import json
import lzma
import os

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from corpora.rows import Row, hash_split, read_rows

ROWS = [{"text": "naïve\n", "label": "b"}, {"text": "", "label": "b"}, {"text": "two", "label": "a", "more": [1]}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def fields(path):
    return [dict(row.fields) for row in read_rows(path)]


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("a.jsonl", bytes),
        ("a.jsonl.gz", gzip.compress),  # not its result: it holds the time, and would name the test
        ("a.jsonl.xz", lzma.compress),
        ("a.jsonl.zst", zstandard.compress),
        ("without-the-last-line-end.jsonl", lambda lines: lines[:-1]),
        ("with-blank-lines.jsonl", lambda lines: b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n\r\n")),
    ],
)
def test_json_lines_are_read_compressed_or_not(tmp_path, name, packed):
    (tmp_path / name).write_bytes(packed(LINES))
    assert fields(tmp_path / name) == ROWS


def test_tables_have_the_same_rows_and_the_names_of_labels(tmp_path):
    rows = [{"review": "good", "stars": 5, "kind": "x"}, {"review": None, "stars": 3, "kind": "y"}]
    table = pa.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    assert fields(tmp_path / "a.parquet") == fields(tmp_path / "a.arrow") == rows
    assert [row.place for row in read_rows(tmp_path / "a.arrow")][1] == f"row 2 of {tmp_path / 'a.arrow'}"
    named = datasets.Dataset.from_dict(
        {"text": ["a", "b", "c"], "label": [1, 0, -1]},
        features=datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
        ),
    )
    named.save_to_disk(tmp_path / "saved")
    assert [row["label"] for row in fields(tmp_path / "saved")] == ["yes", "no", -1]
    datasets.DatasetDict(train=named).save_to_disk(tmp_path / "splits")
    with pytest.raises(
        ValueError,
        match=r"splits is not a folder that the datasets library saved: name one of its splits, such as .*splits/train",
    ):
        fields(tmp_path / "splits")


def test_a_table_without_a_column_of_labels_that_its_metadata_names_is_read(tmp_path):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"text": ["a"], "label": [1]}, features=features).data.table
    pyarrow.parquet.write_table(table.select(["text"]), tmp_path / "a.parquet")
    assert fields(tmp_path / "a.parquet") == [{"text": "a"}]
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    assert fields(tmp_path / "b.parquet") == [{"text": "a", "label": "yes"}]


def test_fields_are_found_by_name_within_others_and_checked():
    row = Row("line 3 of a.jsonl", {"doc": {"text": "deep"}, "a.b": "flat", "n": 3, "yes": True, "bad": "\ud800"})
    assert row.text("doc.text") == "deep" and row.text("a.b") == "flat"
    assert row.value("n", "a number", int) == 3
    for name, kinds, message in [
        ("text", (str,), 'line 3 of a.jsonl has no field "text": it has doc, a.b, n, yes, bad; choose with `columns`'),
        ("doc.title", (str,), 'has no field "doc.title"'),
        ("n", (str,), r'"n" in line 3 of a.jsonl is 3, not the kind: fix it, or choose with `columns`'),
        ("yes", (int,), '"yes" in line 3 of a.jsonl is True, not the kind'),
        ("bad", (str,), '"bad" in line 3 of a.jsonl has the lone surrogate .ud800'),
    ]:
        with pytest.raises(ValueError, match=message):
            row.value(name, "the kind", *kinds)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ('{"text": ' + 5000 * "[" + 5000 * "]" + "}", "line 1 of .* is not JSON"),
        ('{"text": "a", "label": 1}\n{"text"\n', "line 2 of .* is not JSON"),
        ("[1]\n", "line 1 of .* is not a JSON object"),
    ],
)
def test_an_unreadable_row_is_named(tmp_path, contents, message):
    path = tmp_path / "a.jsonl"
    path.write_text(contents, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        fields(path)


def test_other_file_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a.pdf is not a file of examples: give a .jsonl"):
        fields(tmp_path / "a.pdf")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"a.parquet is not a readable parquet file"):
        fields(tmp_path / "a.parquet")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1), st.floats(0.01, 0.99))
def test_equal_examples_are_on_the_same_side(keys, fraction):
    held_out = hash_split([*keys, *keys], fraction)
    assert (held_out[: len(keys)] == held_out[len(keys) :]).all()


def test_a_pipe_is_refused_without_being_opened(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r"a\.jsonl is a named pipe, not a regular file"):
        fields(tmp_path / "a.jsonl")


def test_a_line_that_never_ends_is_refused(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wb", compresslevel=1) as out:
        for _ in range(257):
            out.write(b"a" * 1_000_000)
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz has a line of more than 256,000,000 bytes"):
        fields(tmp_path / "a.jsonl.gz")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_is_read_with_its_quotes_and_lines_in_any_encoding(tmp_path, separator):
    rows = [("id", "text", "label"), ("1", '"naïve,\t; ""quoted""\nline"', "b"), ("2", "", "b"), ("3", "two", "4")]
    table = "".join(separator.join(row) + "\r\n" for row in rows)
    texts = ['naïve,\t; "quoted"\nline', "", "two"]
    expected = [
        {"id": str(i + 1), "text": text, "label": label}
        for i, (text, label) in enumerate(zip(texts, "bb4", strict=True))
    ]
    (tmp_path / "a.csv").write_text(table, newline="")
    assert fields(tmp_path / "a.csv") == expected
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(table.encode("utf-8-sig")))
    assert fields(tmp_path / "b.tsv.gz") == expected
    (tmp_path / "c.csv").write_bytes(table.encode("utf-16"))
    with pytest.warns(UserWarning, match=r"c\.csv is not UTF-8 but read as utf-16"):
        assert fields(tmp_path / "c.csv") == expected


@pytest.mark.parametrize("name", ["a.tsv", "a.TSV.gz"])
def test_tabs_separate_the_cells_of_tsv_if_commas_are_not_more_frequent(tmp_path, name):
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(pack(b"text\nHello, world\n"))
    assert fields(tmp_path / name) == [{"text": "Hello, world"}]
    (tmp_path / name).write_bytes(pack(b"text, raw\tlabel\nHello, world\tb\n"))
    assert fields(tmp_path / name) == [{"text, raw": "Hello, world", "label": "b"}]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("text,label\na\n", "row 1 of .* has 1 cells, but the first row names 2: fix it"),
        ("text,label\na,b,c\n", "row 1 of .* has 3 cells, but the first row names 2: fix it"),
        ('text,label\n"a" b,c\n', r"row 1 of .* is not CSV \(.*\): fix it"),
    ],
)
def test_an_unreadable_row_of_csv_is_named(tmp_path, contents, message):
    (tmp_path / "a.csv").write_text(contents)
    with pytest.raises(ValueError, match=message):
        fields(tmp_path / "a.csv")

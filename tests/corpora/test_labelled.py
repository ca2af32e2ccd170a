"""Labelled texts: formats, errors, and the held-out rows."""

import gzip
import json
import lzma
import os

import pyarrow as pa
import pyarrow.parquet
import pytest
import zstandard
from corpora.labelled import LabelledTexts, read_labelled
from hypothesis import given
from hypothesis import strategies as st

ROWS = [{"text": "naïve\n", "label": "b"}, {"text": "", "label": "b"}, {"text": "two", "label": "a", "more": [1]}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


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
    assert read_labelled(tmp_path / name) == LabelledTexts(["naïve\n", "two"], ["b", "a"], empty=1)


def test_parquet_has_the_same_texts_and_any_kind_of_whole_number(tmp_path):
    columns = {
        "review": pa.array(["good", None, "bad"], pa.large_string()),
        "stars": pa.array([5, 3, 1], pa.int8()),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert read_labelled(tmp_path / "a.parquet", "review", "stars") == LabelledTexts(["good", "bad"], [5, 1], empty=1)
    assert read_labelled(tmp_path / "a.parquet", "review", "kind").labels == ["x", "x"]
    with pytest.raises(ValueError, match=r'a.parquet has no field "text": it has review, stars, kind'):
        read_labelled(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ('{"text": "a", "label": 1}\n{"text": "b"}\n', 'line 2 of .* has no field "label": it has text; .* `label_f'),
        ('{"words": "a", "label": 1}\n', 'line 1 of .* has no field "text": it has words, label; .* `text_field'),
        ('{"text": ["a"], "label": 1}\n', r"\"text\" in line 1 of .* is \['a'\], not a text"),
        ('{"text": "a", "label": 0.5}\n', '"label" in line 1 of .* is 0.5, not a string or a whole number'),
        ('{"text": "a", "label": null}\n', '"label" in line 1 of .* is None, not a string'),
        ('{"text": "a", "label": true}\n', '"label" in line 1 of .* is True, not a string'),
        ('{"text": "\\ud800", "label": 1}\n', '"text" in line 1 of .* has the lone surrogate .ud800'),
        ('{"text": "a", "label": "x\\ud83d"}\n', '"label" in line 1 of .* has the lone surrogate .ud83d'),
        ('{"text": ' + 5000 * "[" + 5000 * "]" + "}", "line 1 of .* is not JSON"),
        ('{"text": "a", "label": 1}\n{"text"\n', "line 2 of .* is not JSON"),
        (
            '{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n\n{"text": "c", "label": "1"}\n',
            '"label" is the number 1 in line 1 of .* and the string "1" in line 4 of .*: make all labels strings, or',
        ),
        (
            '{"text": "a", "label": "no"}\n{"text": "b", "label": 2}\n',
            '"label" is the string "no" in line 1 of .* and the number 2 in line 2 of .*: make all labels',
        ),
        ("[1]\n", "line 1 of .* is not a JSON object"),
        ("", r"holds no text \(0 empty rows\)"),
        ('{"text": "", "label": 1}\n', r"holds no text \(1 empty rows\)"),
    ],
)
def test_an_unreadable_row_is_named(tmp_path, contents, message):
    path = tmp_path / "a.jsonl"
    path.write_text(contents, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_labelled(path)


def test_other_file_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a.pdf is not a file of labelled texts: give a .jsonl"):
        read_labelled(tmp_path / "a.pdf")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"a.parquet is not a readable parquet file"):
        read_labelled(tmp_path / "a.parquet")


@given(st.lists(st.tuples(st.text(min_size=1), st.sampled_from(["a", "b", 3])), min_size=1), st.floats(0.01, 0.99))
def test_held_out_texts_are_not_trained_on_and_every_held_out_label_is(rows, fraction):
    both = LabelledTexts([text for text, _ in rows], [label for _, label in rows])
    train, test = both.hold_out(fraction)
    divided = [*zip(train.texts, train.labels, strict=True), *zip(test.texts, test.labels, strict=True)]
    assert sorted(divided, key=repr) == sorted(rows, key=repr)
    assert not set(train.texts) & set(test.texts)
    assert set(train.labels) == set(both.labels)


def test_labels_are_in_order():
    assert LabelledTexts(["x"] * 5, ["b", 10, 9, "a", 9]).distinct_labels() == [9, 10, "a", "b"]


def test_a_pipe_of_labelled_texts_is_refused_without_being_opened(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r"a\.jsonl is a named pipe, not a regular file"):
        read_labelled(tmp_path / "a.jsonl")


def test_a_line_of_labelled_texts_that_never_ends_is_refused(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wb", compresslevel=1) as out:
        for _ in range(257):
            out.write(b"a" * 1_000_000)
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz has a line of more than 256,000,000 bytes"):
        read_labelled(tmp_path / "a.jsonl.gz")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_is_read_with_its_quotes_and_lines_in_any_encoding(tmp_path, separator):
    rows = [("id", "text", "label"), ("1", '"naïve,\t; ""quoted""\nline"', "b"), ("2", "", "b"), ("3", "two", "4")]
    table = "".join(separator.join(row) + "\r\n" for row in rows)
    expected = LabelledTexts(['naïve,\t; "quoted"\nline', "two"], ["b", "4"], empty=1)
    (tmp_path / "a.csv").write_text(table, newline="")
    assert read_labelled(tmp_path / "a.csv") == expected
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(table.encode("utf-8-sig")))
    assert read_labelled(tmp_path / "b.tsv.gz") == expected
    (tmp_path / "c.csv").write_bytes(table.encode("utf-16"))
    with pytest.warns(UserWarning, match=r"c\.csv is not UTF-8 but read as utf-16"):
        assert read_labelled(tmp_path / "c.csv") == expected


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("text,label\na\n", "row 1 of .* has 1 cells, but the first row names 2: fix it"),
        ("text,label\na,b,c\n", "row 1 of .* has 3 cells, but the first row names 2: fix it"),
        ("words,label\na,b\n", 'row 1 of .* has no field "text": it has words, label; choose with `text_field`'),
        ('text,label\n"a" b,c\n', r"row 1 of .* is not CSV \(.*\): fix it"),
        ("text,label\n", r"holds no text \(0 empty rows\)"),
        ("", r"holds no text \(0 empty rows\)"),
    ],
)
def test_an_unreadable_row_of_csv_is_named(tmp_path, contents, message):
    (tmp_path / "a.csv").write_text(contents)
    with pytest.raises(ValueError, match=message):
        read_labelled(tmp_path / "a.csv")

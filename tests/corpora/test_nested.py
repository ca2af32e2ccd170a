"""Texts in a field within a column: doc.text, messages[].content."""

import json

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from corpora import open_corpus, open_pairs
from tests.corpora.helpers import everything

ROWS = [
    {"doc": {"text": "naïve", "id": 1}, "messages": [{"role": "user", "content": "Hi"}, {"content": "Hello\nyou"}]},
    {"doc": {"text": None}, "messages": []},
    {"doc": None, "messages": None},
    {"doc": {"text": "two"}, "messages": [{"content": None}, {"role": "user", "content": "only"}]},
]


def texts(path, column, **options):
    corpus = open_corpus(str(path), split="hash:0.5", text_column=column, **options)
    return sorted(text for part in everything(corpus).values() for text in part)


def write(folder, kind, rows=ROWS):
    path = folder / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        pyarrow.feather.write_feather(pa.Table.from_pylist(rows), path, compression="uncompressed")
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow"])
def test_a_field_within_a_column_is_the_text(tmp_path, kind):
    path = write(tmp_path, kind)
    assert texts(path, "doc.text", suffix=[".json"]) == ["naïve", "two"]
    assert texts(path, "messages[].content", suffix=[".json"]) == ["Hi\nHello\nyou", "only"]


def test_long_files_and_their_ranges_hold_the_same_texts(tmp_path):
    rows = [{"meta": {"lines": [f"{number} " * 90, "end"]}} for number in range(20_000)]
    path = write(tmp_path, "jsonl", rows)
    corpus = open_corpus(str(path), split="hash:0.5", text_column="meta.lines[]")
    expected = ["\n".join(row["meta"]["lines"]) for row in rows]
    found = [text.decode() for _, batch in corpus.documents() for text in batch.to_pylist()]
    assert found == expected
    ranges = corpus.ranges(1_000_000)
    assert len(ranges) > 3
    assert [
        t.decode() for part in ranges for _, batch in part.documents(corpus.dropped) for t in batch.to_pylist()
    ] == found


def test_a_column_whose_name_has_a_dot_comes_first(tmp_path):
    path = write(tmp_path, "jsonl", [{"doc.text": "the column", "doc": {"text": "the field"}}])
    assert texts(path, "doc.text") == ["the column"]


def test_pairs_may_be_fields_within_a_column(tmp_path):
    path = write(tmp_path, "jsonl", [{"translation": {"en": f"word {i}", "de": f"Wort {i}"}} for i in range(50)])
    pairs = open_pairs(str(path), ("translation.de", "translation.en"))
    rows = [row for _, batch in pairs.routed_batches() for row in batch.to_pylist()]
    assert {"source": "Wort 7", "target": "word 7"} in rows
    assert len(rows) == 50


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("doc.id", "a number, not a string"),
        ("doc[]", r"an object where \[\] needs a list"),
        ("messages.content", r"a list where .content needs an object"),
        ("messages[].content.more", "a string where .more needs an object"),
        ("doc", "not (a string|text)|an object, not a string"),
        ("nothing.text", 'has no column "nothing.text"'),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path, kind, column, reason):
    with pytest.raises(ValueError, match=reason) as raised:
        texts(write(tmp_path, kind), column, suffix=[".json"])
    assert f"a.{kind}" in str(raised.value)


def test_csv_has_no_fields_within_a_column(tmp_path):
    (tmp_path / "a.csv").write_text("doc,doc.text\nwhole,part\n")
    assert texts(tmp_path, "doc.text", suffix=".csv") == ["part"]
    (tmp_path / "a.csv").write_text("doc,id\nwhole,1\n")
    with pytest.raises(ValueError, match=r'a\.csv has no column "doc\.text"'):
        texts(tmp_path, "doc.text", suffix=".csv")

"""The formats of files: every byte comes through unchanged, and a damaged file is refused by name."""

import json
import lzma

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from tests.corpora.helpers import COMPRESSORS, all_documents, documents, everything, jsonl

ODD_TEXTS = ["a\u2028b\u2029", "c\rd\r\n\n", "\x85\x0b\x0c\x1c", "\x00nul", "\ufeffmark", "2020-01-01", "😀", " "]


@pytest.mark.parametrize("text", ["a\nb\nc", "a\r\nb\r\nc\r\n", "a\rb\rc", "a\ufeffb", "\x00\n\x1a\x0b"])
def test_a_txt_file_is_read_byte_for_byte(tmp_path, text):
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert "".join(all_documents(tmp_path / "a.txt")) == text


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_text_of_several_members_is_read_to_its_end(tmp_path, suffix):
    compress = COMPRESSORS[suffix]
    (tmp_path / f"a.txt{suffix}").write_bytes(compress(b"one\r\n") + compress(b"two\n" * 200_000))
    assert "".join(all_documents(tmp_path)) == "one\r\n" + "two\n" * 200_000


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
def test_jsonl_documents_with_any_line_separators_are_exact(tmp_path, suffix):
    data = jsonl(ODD_TEXTS * 3)
    compress = COMPRESSORS.get(suffix, bytes)
    (tmp_path / f"a.jsonl{suffix}").write_bytes(compress(data[:100]) + compress(data[100:]))
    assert sorted(all_documents(tmp_path)) == sorted(ODD_TEXTS * 3)


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_compressed_file_cut_short_is_refused_by_name(tmp_path, suffix, kind):
    data = b"a line\n" * 1000 if kind == "txt" else jsonl(str(i) for i in range(100_000))
    whole = COMPRESSORS[suffix](data)
    path = tmp_path / f"a.{kind}{suffix}"
    path.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match=r"a\.\w+\.\w+ is damaged or cut short") as raised:
        all_documents(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("padding", [0, 4, 8, 1 << 20])
def test_an_xz_file_is_read_to_its_end_over_padding_between_its_streams(tmp_path, padding):
    nuls = b"\0" * padding
    streams = [lzma.compress(b"one\n" * 100), lzma.compress(b""), lzma.compress(b"two\n" * 100_000)]
    (tmp_path / "a.txt.xz").write_bytes(nuls.join(streams) + nuls)
    assert "".join(all_documents(tmp_path)) == "one\n" * 100 + "two\n" * 100_000


@pytest.mark.parametrize("between", [b"garbage", b"\0\0\0\0garbage", b"\xfd7zXZ"])
def test_bytes_after_the_first_stream_of_an_xz_file_are_not_ignored(tmp_path, between):
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"one\n" * 100) + between)
    with pytest.raises(ValueError, match=r"a\.txt\.xz is damaged or cut short"):
        all_documents(tmp_path)


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_file_that_is_not_compressed_as_its_name_says_is_refused_by_name(tmp_path, suffix):
    (tmp_path / f"a.txt{suffix}").write_bytes(b"plain text, really")
    with pytest.raises(ValueError, match="is damaged or cut short"):
        all_documents(tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=40), crlf=st.booleans())
def test_jsonl_written_by_python_is_read_back(tmp_path, texts, crlf):
    end = b"\r\n" if crlf else b"\n"
    rows = [json.dumps({"text": text, "n": i}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)]
    (tmp_path / "a.jsonl").write_bytes(end.join(row.encode() for row in rows))
    assert sorted(all_documents(tmp_path, split="hash")) == sorted(texts)


def test_jsonl_larger_than_a_chunk_keeps_its_order_and_long_lines(tmp_path):
    texts = [f"{i} " * 5000 for i in range(500)] + ["long " * 2_000_000] + ["end"] * 50
    (tmp_path / "a.jsonl").write_bytes(jsonl(texts))
    corpus = open_corpus(str(tmp_path), split="tail:0.000001")
    assert documents(corpus, "train") + documents(corpus, "validation") == texts


def test_jsonl_lines_need_not_have_the_same_fields(tmp_path):
    lines = jsonl(["a"], meta={"x": 1}) + b"\n" + jsonl(["b"], meta=[2], extra="2020-01-01") + b'{"meta": "c"}\n'
    (tmp_path / "a.jsonl").write_bytes(lines + jsonl(["d"] * 20))
    corpus = open_corpus(str(tmp_path))
    assert sorted(all_documents(tmp_path)) == sorted(["a", "b"] + ["d"] * 20)
    everything(corpus)
    assert corpus.dropped.empty_documents == 1


@pytest.mark.parametrize("escape", ["d800", "dbff", "dc00", "dc80", "dfff"])
@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_a_lone_surrogate_escape_is_called_by_its_name_and_replaced_by_one_character(tmp_path, kind, escape):
    lines = jsonl(["fine"] * 30) + b'{"text": "\xc3\xa9\\u%bb"}\n' % escape.encode()
    content = lines if kind == "jsonl" else b"[" + b",".join(lines.splitlines()) + b"]"
    (tmp_path / f"a.{kind}").write_bytes(content)
    options = {"suffix": f".{kind}", "split": "hash:1e-15"}
    place = "line 31" if kind == "jsonl" else "element 31"
    with pytest.raises(
        ValueError, match=rf"{place} of \S*a\.{kind} has the lone surrogate \\u{escape}, .* fix it, or choose"
    ):
        all_documents(tmp_path, **options)
    assert "é\ufffdb" in all_documents(tmp_path, invalid="replace", **options)
    skipping = open_corpus(str(tmp_path), invalid="skip", **options)
    assert everything(skipping)["train"] == ["fine"] * 30
    assert skipping.dropped.invalid_documents == 1
    surrogate = chr(int(escape, 16)).encode("utf-8", "surrogatepass")
    assert b"\xc3\xa9" + surrogate + b"b" in all_documents(tmp_path, invalid="bytes", **options)


def test_a_pair_of_surrogate_escapes_is_one_character(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "\\ud83d\\ude00"}\n')
    assert "".join(all_documents(tmp_path)) == "😀"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(
            [
                b'{"text": "a"}',
                b'{"id": [1e999, NaN], "text": "\xc3\xa9\\u0000\\ud83d\\ude00"}',
                b'{"text": "x", "text": "y"}',
                b'{"text": "\\ud800"}',
                b'{"text": "caf\xe9"}',
                b'{"text": null}',
                b'{"text": ""}',
                b'{"id": 1}',
                b'{"text": 1}',
                b'{"text": "a"} {"text": "b"}',
                b'{"text":',
                b'"c"}',
                b"null",
                b"[]",
                b" \r",
                b"",
                b'\xef\xbb\xbf{"text": "mark"}',
                b'{"text": "tab\t"}',
                b'{"text": "a", "id": %b}' % (b"9" * 5000),
            ]
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["error", "skip", "replace", "bytes"]),
)
def test_short_and_long_jsonl_files_give_the_same_documents(tmp_path, lines, policy):
    """Only a file of less than 4 KB is parsed by Python first, and spaces change no document."""

    def read(content):
        (tmp_path / "a.jsonl").write_bytes(content)
        try:
            corpus = open_corpus(str(tmp_path / "a.jsonl"), invalid=policy, text_column="text", split="hash:1e-15")
            return everything(corpus)["train"], corpus.dropped.counts()
        except ValueError as error:
            return str(error)

    content = b'{"text": "first"}\n' + b"\n".join(lines) + b"\n"
    assert read(content) == read(content + b" " * 5000 + b"\n")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"text": "cut sh', r"line 12345 of .*a\.jsonl is not JSON"),
        (b"garbage", r"line 12345 of .*a\.jsonl is not JSON"),
        (b'["text"]', r"line 12345 of .*a\.jsonl is not a JSON object"),
        (b'{"text": 12}', r'"text" in line 12345 of .*a\.jsonl is a number'),
        (b'{"text": ["x"]}', r'"text" in line 12345 of .*a\.jsonl is a list'),
    ],
)
def test_a_bad_line_of_jsonl_is_named_in_one_sentence(tmp_path, line, complaint):
    (tmp_path / "a.jsonl").write_bytes(b"\n" + jsonl(["x" * 1000] * 12343) + line)
    with pytest.raises(ValueError, match=complaint) as raised:
        all_documents(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_field_may_appear_late(tmp_path):
    """The field appears after the lines that are sampled for field names."""
    late = jsonl(["a"] * 1500).replace(b'"text"', b'"title"') + jsonl(["b"] * 20).replace(b'"text"', b'"body"')
    (tmp_path / "a.jsonl").write_bytes(late)
    assert all_documents(tmp_path, text_column="body") == ["b"] * 20
    with pytest.raises(ValueError, match=r'no column "words": choose one of its columns \(title, body\)'):
        all_documents(tmp_path, text_column="words")


def test_a_late_text_field_makes_the_only_column_ambiguous(tmp_path):
    titles = jsonl(["a"] * 1500).replace(b'"text"', b'"title"')
    refused = r'the first lines of .* have only "title", and later lines have "text": choose one with `text_column`'
    (tmp_path / "a.jsonl").write_bytes(titles)
    assert all_documents(tmp_path) == ["a"] * 1500
    for late in (jsonl(["b"], title="a"), b'{"title": "a", "text": "\\ud83d"}\n'):  # Arrow refuses a lone surrogate
        (tmp_path / "a.jsonl").write_bytes(titles + late)
        with pytest.raises(ValueError, match=refused):
            all_documents(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(titles + jsonl(["b"], title="a"))
    assert all_documents(tmp_path, text_column="text") == ["b"]


def test_a_line_may_be_nested_deeply(tmp_path):
    deep = b"[" * 5000 + b"]" * 5000
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x", "more": ' + deep + b"}\n" + jsonl(["y"] * 20))
    assert sorted(all_documents(tmp_path)) == ["x"] + ["y"] * 20
    (tmp_path / "a.jsonl").write_bytes(jsonl(["y"] * 20) + b'{"text": ' + deep + b"}\n")
    with pytest.raises(ValueError, match=r"line 21 of .*a\.jsonl"):
        all_documents(tmp_path)


@pytest.mark.parametrize("line", [b"null\n", b"null", b'null\n{"text": "b"}\n'])
def test_a_null_line_of_jsonl_is_an_empty_document(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(jsonl(["a"] * 20))
    (tmp_path / "b.jsonl").write_bytes(line)
    corpus = open_corpus(str(tmp_path))
    assert set(all_documents(tmp_path)) <= {"a", "b"}
    everything(corpus)
    assert corpus.dropped.empty_documents == 1


@pytest.mark.parametrize(
    "text_type", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_gives_its_text_column_and_counts_nulls_as_empty(tmp_path, text_type):
    texts = pa.array([*ODD_TEXTS, None, ""] * 300).cast(text_type)
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), tmp_path / "a.parquet", row_group_size=700)
    corpus = open_corpus(str(tmp_path), split="tail:0.1")
    found = everything(corpus)
    assert "".join(found["train"] + found["validation"]) == "".join(ODD_TEXTS * 300)
    assert corpus.dropped.empty_documents == 600


@pytest.mark.parametrize("writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_files_of_both_kinds_are_read(tmp_path, writer):
    table = pa.table({"text": ODD_TEXTS * 10})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, writer(sink, table.schema) as out:
        out.write_table(table)
    assert sorted(all_documents(tmp_path)) == sorted(ODD_TEXTS * 10)


@pytest.mark.parametrize("writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_brackets_and_stars_in_file_names_are_literal(tmp_path, writer):
    for name, text in (("x[1]", "right"), ("x1", "wrong"), ("*", "right")):
        table = pa.table({"text": [text] * 30})
        with pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as sink, writer(sink, table.schema) as out:
            out.write_table(table)
    assert set(all_documents(tmp_path / "x[1].arrow")) == {"right"}


@pytest.mark.parametrize("contents", [b"", b"ARROW1", b"ARROW1" + b"x" * 1000, b"neither"])
def test_a_damaged_arrow_file_is_named(tmp_path, contents):
    (tmp_path / "a.arrow").write_bytes(contents)
    with pytest.raises(ValueError, match=r"a\.arrow is (not a readable arrow file|empty)"):
        all_documents(tmp_path)


def test_a_saved_dataset_dict_is_a_corpus_with_its_own_splits(tmp_path):
    parts = {
        name: datasets.Dataset.from_dict({"text": [f"{name} {i}" for i in range(30)]}) for name in ("train", "test")
    }
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    data = (tmp_path / "saved" / "train" / "data-00000-of-00001.arrow").read_bytes()
    (tmp_path / "saved" / "train" / "cache-0123.arrow").write_bytes(data)  # left behind by a map
    for pattern in ("", "*", "**", "*/*.arrow", "**/*.arrow"):
        found = everything(open_corpus(str(tmp_path / "saved" / pattern)))
        assert found["test"] == parts["test"]["text"]
        assert sorted(found["train"] + found["validation"]) == sorted(parts["train"]["text"])
    assert sorted(all_documents(tmp_path / "saved" / "train" / "cache-*.arrow")) == sorted(parts["train"]["text"])


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_broken_table_is_refused_by_name_in_one_sentence(tmp_path, kind):
    (tmp_path / f"a.{kind}").write_bytes(b"PAR1" + b"nonsense" * 100)
    with pytest.raises(ValueError, match=rf"a\.{kind} is not a readable {kind} file") as raised:
        all_documents(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_error_for_a_table_without_a_text_column_names_its_columns(tmp_path, kind):
    table = pa.table({"title": ["a"] * 30, "body": ["b"] * 30})
    if kind == "parquet":
        pq.write_table(table, tmp_path / "a.parquet")
    else:
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    with pytest.raises(ValueError, match=r'no column "text".*\(title, body\).*`text_column`'):
        open_corpus(str(tmp_path))
    with pytest.raises(ValueError, match=r'no column "bodi".*\(title, body\)'):
        open_corpus(str(tmp_path), text_column="bodi")
    assert all_documents(tmp_path, text_column="body") == ["b"] * 30


def test_a_text_column_of_numbers_is_refused(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="holds int64, not text"):
        open_corpus(str(tmp_path))

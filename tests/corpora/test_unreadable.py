"""Unreadable lines and files are errors that name them; with invalid="skip" they are left out and counted."""

import gzip
import hashlib
import json
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from tests.corpora.helpers import COMPRESSORS, documents, everything
from tests.corpora.test_ranges import assert_ranges_hold_the_corpus

SOUND = st.text(max_size=20).map(lambda text: json.dumps({"text": text, "other": [1]}))
BROKEN = st.sampled_from(
    [
        "{",
        '{"text": "cut',
        '{"text": 3}',
        '{"text": ["a"]}',
        '["a list"]',
        '"a string"',
        '{"text": "one"} {"text": "two"}',
        '{"text":\n"in two lines"}',
        '{"other": {"text": "one"}\n, "text": "in two lines"}',
        "<html>",
        "\0\0\0",
    ]
)
READABLE = st.sampled_from(["", "  ", "null", "{}", '{"text": null}', '{"text": "a", "text": "b"}'])


def texts_and_dropped(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        corpus = open_corpus(str(path), split="hash:0.5", invalid="skip", **options)
        found = sorted(text for texts in everything(corpus).values() for text in texts)
    return found, corpus.dropped


def texts_of_lines(lines):
    """Return the texts of the valid lines, and the number of the other lines."""
    texts, invalid = [], 0
    for line in lines.split("\n"):
        try:
            row = json.loads(line) if line.strip() else None
            text = row.get("text") if row is not None else None
            assert text is None or isinstance(text, str)
            texts += [text] if text else []
        except (ValueError, AttributeError, AssertionError):
            invalid += 1
    return sorted(texts), invalid


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(SOUND, SOUND, BROKEN, READABLE), max_size=40), st.integers(1, 400))
def test_invalid_lines_are_left_out_and_counted(tmp_path, lines, size):
    content = "\n".join([*lines, '{"text": "the last"}'])
    (tmp_path / "a.jsonl").write_text(content)
    texts, invalid = texts_of_lines(content)
    found, dropped = texts_and_dropped(tmp_path)
    assert (found, dropped.invalid_documents) == (texts, invalid)
    for split in ("hash:0.3", "tail:0.3"):
        assert_ranges_hold_the_corpus(open_corpus(str(tmp_path), split, invalid="skip"), size)


@pytest.mark.parametrize("policy", ["error", "replace", "bytes"])
def test_an_invalid_line_is_an_error_that_names_it_unless_it_is_skipped(tmp_path, policy):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' * 6 + '{"text": "cut\n' + '{"text": "fine"}\n')
    with pytest.raises(ValueError, match=r"line 7 of .*a\.jsonl is not JSON"):
        everything(open_corpus(str(tmp_path), split="hash:0.5", invalid=policy))


@pytest.mark.parametrize("before", [b"ok", b"a" * 5000])
@pytest.mark.parametrize(
    ("last", "problem"),
    [("ééé".encode() + b"\xff", "is not UTF-8 at byte 6"), (b"b" * 6000, "has 6,000 bytes of text")],
)
def test_a_line_after_blank_lines_is_named_by_its_number(tmp_path, before, last, problem):
    lines = [b"", b" \r", b"", b'{"text": "%s"}' % before, b"", b"", b'{"text": "%s"}' % last, b""]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match=rf"row 7 of .*a\.jsonl {problem}"):
        open_corpus(str(tmp_path), max_document=5500)
    _, dropped = texts_and_dropped(tmp_path, max_document=5500)
    assert [reason.partition(" of ")[0] for reason in dropped.reasons] == ["row 7"]


def test_an_element_after_an_invalid_one_is_named_by_its_number(tmp_path):
    (tmp_path / "a.json").write_text('["one", 2, "three", ""]')
    _, dropped = texts_and_dropped(tmp_path, suffix=".json")
    assert [reason.partition(" of ")[0] for reason in dropped.reasons] == ["element 2", "row 4"]


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_truncated_file_is_an_error_that_names_it_or_its_rest_is_left_out(tmp_path, suffix):
    lines = [json.dumps({"text": f"{number:07} " * 40}) for number in range(60_000)]
    whole = COMPRESSORS[suffix]("\n".join(lines).encode())
    damaged = tmp_path / f"b.jsonl{suffix}"
    damaged.write_bytes(whole[: 3 * len(whole) // 4])
    for name in ("a", "c"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name}"}}\n' for _ in range(50)))
    named = rf"b\.jsonl{suffix} is damaged or cut short \(.*\): fetch or write it again"
    with pytest.raises(ValueError, match=named):
        everything(open_corpus(str(tmp_path), split="hash:0.5"))
    with pytest.warns(UserWarning, match=f"^left out unreadable documents: .*{named}"):
        everything(open_corpus(str(tmp_path), split="hash:0.5", invalid="skip"))
    found, dropped = texts_and_dropped(tmp_path)
    assert found.count("a") == found.count("c") == 50
    read = len(found) - 100
    assert 20_000 < read < 45_001
    assert sorted(found)[:read] == [f"{number:07} " * 40 for number in range(read)]
    assert dropped.counts() == {"empty_documents": 0, "invalid_documents": 0, "damaged_parts": 1}
    for split in ("hash:0.3", "tail:0.3"):
        with pytest.warns(UserWarning, match=named):
            assert_ranges_hold_the_corpus(open_corpus(str(tmp_path), split, invalid="skip"), 300)


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_rows_before_the_damage_of_a_short_file_are_kept(tmp_path, name, suffix):
    texts = [hashlib.sha256(bytes([number])).hexdigest() for number in range(200)]
    rows = [json.dumps({"text": text}) for text in texts] if name == "a.jsonl" else ["text", *texts]
    path = tmp_path / f"{name}{suffix}"
    first, second = ("\n".join([*part, ""]).encode() for part in (rows[:101], rows[101:]))
    path.write_bytes(COMPRESSORS[suffix](first) + COMPRESSORS[suffix](second)[:-40])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = documents(open_corpus(str(path), split="none", invalid="skip", suffix=[".jsonl", ".csv"]), "train")
    assert len(found) >= 100
    assert found == texts[: len(found)]


def test_a_damaged_row_group_of_parquet_is_left_out_and_the_others_are_read(tmp_path):
    texts = [f"{number:05}" for number in range(600)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=100, compression="zstd", use_dictionary=False)
    page = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[page : page + 60] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.parquet is not a readable parquet file"):
        everything(open_corpus(str(path), split="hash:0.5"))
    found, dropped = texts_and_dropped(path)
    assert found == [*texts[:200], *texts[300:]]
    assert dropped.counts()["damaged_parts"] == 1
    with pytest.warns(UserWarning, match=r"a\.parquet is not a readable parquet file"):
        assert_ranges_hold_the_corpus(open_corpus(str(path), "hash:0.5", invalid="skip"), 1)
    path.write_bytes(content[:-100])
    (tmp_path / "b.txt").write_text("a text")
    with pytest.warns(UserWarning, match=r"a\.parquet is not a readable parquet file"):
        assert_ranges_hold_the_corpus(open_corpus(str(tmp_path), "tail:0.5", invalid="skip"), 1)


def test_other_damaged_files_are_left_out_too(tmp_path):
    (tmp_path / "a.json").write_text('["cut')
    (tmp_path / "b.json").write_text('["one", 2, null, "three"]')
    (tmp_path / "c.csv").write_text("id,text\n1,four\n2\n3,five\n")
    (tmp_path / "d.csv").write_text('text\nsix\n"seven" eight\nnine\n')
    (tmp_path / "e.jsonl").write_bytes(('{"text": "ten"}\n' * 9).encode("utf-16") + b"\0")
    (tmp_path / "f.arrow").write_bytes(b"ARROW1\0\0" + bytes(100))
    (tmp_path / "g.txt.gz").write_bytes(gzip.compress(b"eleven" * 1000)[:-9])
    (tmp_path / "h.jsonl").write_text('{"text": "twelve"}\n')
    suffixes = [".json", ".csv", ".jsonl", ".arrow", ".txt"]
    found, dropped = texts_and_dropped(tmp_path, suffix=suffixes)
    assert found == sorted(["one", "three", "four", "five", "six", *["ten"] * 9, "twelve"])
    counts = {"empty_documents": 1, "invalid_documents": 2, "damaged_parts": 5}
    assert dropped.counts() == counts
    named = [message.split(" is ")[0].rpartition("/")[2] for message in dropped.damaged_parts]
    assert [name[-8:] for name in named] == ["a.json", "d.csv", "e.jsonl", "f.arrow", "g.txt.gz"]
    with pytest.warns(UserWarning):
        assert_ranges_hold_the_corpus(open_corpus(str(tmp_path), "hash:0.5", invalid="skip", suffix=suffixes), 1)

"""The encoding of each text file is found, and named where it is not UTF-8."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from tests.corpora.helpers import everything

TEXTS = {
    "cp1252": "Der Rückzug über die Brücke war schön, aber die Straße führte später zu großen Häusern. “Natürlich!” ",
    "cp1251": "Сегодня утром мы вышли из дома и пошли по дороге к старой мельнице у реки. ",
    "koi8-r": "Сегодня утром мы вышли из дома и пошли по дороге к старой мельнице у реки. ",
    "gb18030": "今天早上我们离开家，沿着路走到河边的老磨坊，然后坐下来休息了很长时间。",
    "shift_jis": "今日の朝、私たちは家を出て、川のそばの古い水車小屋まで歩きました。",
    "cp949": "오늘 아침 우리는 집을 나와 강가의 오래된 방앗간까지 길을 따라 걸었습니다. ",
    "cp1255": "הבוקר יצאנו מהבית והלכנו בדרך אל הטחנה הישנה שעל שפת הנהר. ",
    "cp1253": "Σήμερα το πρωί φύγαμε από το σπίτι και περπατήσαμε μέχρι τον παλιό μύλο. ",
}


def read(path, **options):
    corpus = open_corpus(str(path), split="hash:0.5", **options)
    return sorted(text for part in everything(corpus).values() for text in part), corpus.dropped


@pytest.mark.parametrize("encoding", TEXTS)
def test_a_text_in_any_common_encoding_is_read_and_its_encoding_is_named(tmp_path, encoding):
    text = TEXTS[encoding] * 20
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode(encoding)))
    (tmp_path / "c.csv").write_bytes(f'id,text\n1,"{text}"\n'.encode(encoding))
    (tmp_path / "d.jsonl").write_bytes(json.dumps({"text": text}, ensure_ascii=False).encode(encoding))
    (tmp_path / "e.txt").write_text(text, encoding="utf-8")
    found, dropped = read(tmp_path, suffix=[".txt", ".csv", ".jsonl"])
    assert found == [text] * 5
    assert [Path(name).name for name in dropped.encodings] == ["a.txt", "b.txt.gz", "c.csv", "d.jsonl"]
    assert dropped.invalid_documents == 0
    for name in dropped.encodings.values():
        assert text.encode(name) == text.encode(encoding)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_utf16_and_utf32_are_read_and_never_taken_for_another_encoding(tmp_path, encoding):
    text = "One line, été\nanother, 😀\n" * 30_000
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    (tmp_path / "b.jsonl").write_bytes("".join(f'{{"text": "{x}"}}\n' for x in "aé😀" * 9).encode(encoding))
    found, dropped = read(tmp_path)
    assert found == sorted([text, *"aé😀" * 9])
    assert {Path(file).name: name[:6] for file, name in dropped.encodings.items()} == {
        "a.txt": encoding[:6],
        "b.jsonl": encoding[:6],
    }
    for name in ("latin-1", "utf-8"):
        with pytest.raises(
            ValueError, match=rf"a\.txt is not \S+, but looks like {encoding[:6]}\S*: leave `encoding` out"
        ):
            read(tmp_path / "a.txt", encoding=name)
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    assert read(tmp_path / "b.txt", encoding=encoding)[0] == [text]


@pytest.mark.parametrize(
    ("found", "given"), [("utf-16-le", "utf-16-be"), ("utf-16-be", "utf-16-le"), ("utf-32-be", "utf-32-le")]
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_other_byte_order_is_refused(tmp_path, found, given, mark):
    (tmp_path / "a.txt").write_bytes(f"{mark}hello, this is a text\n".encode(found))
    assert read(tmp_path, encoding=found)[0] == read(tmp_path)[0] == ["hello, this is a text\n"]
    with pytest.raises(ValueError, match=rf"a\.txt is not {given}, but looks like {found[:6]}"):
        read(tmp_path, encoding=given)


def test_an_encoding_that_is_given_is_not_overruled(tmp_path):
    text = TEXTS["cp1251"] * 20
    (tmp_path / "a.txt").write_bytes(text.encode("cp1251"))
    found, dropped = read(tmp_path, encoding="koi8-r")
    assert found == [text.encode("cp1251").decode("koi8-r")]
    assert dropped.encodings == {}
    with pytest.raises(ValueError, match=r"a\.txt is not utf-8 after byte 0 .*name another `encoding`"):
        read(tmp_path, encoding="utf-8")
    assert read(tmp_path, invalid="bytes")[0] == [text.encode("cp1251")]


def test_damaged_utf8_is_not_taken_for_another_encoding(tmp_path):
    data = (TEXTS["cp1252"] * 20).encode()
    for place in (len(data) // 2, 3):
        (tmp_path / "a.txt").write_bytes(data[:place] + b"\xff" + data[place:])
        with pytest.raises(ValueError, match=rf"a\.txt is not UTF-8 at byte {place} \(0xff\): name its `encoding`, or"):
            read(tmp_path)
        found, dropped = read(tmp_path, invalid="replace")
        assert (found[0].count("\ufffd"), dropped.encodings) == (1, {})


def test_a_poor_guess_is_not_taken_but_named(tmp_path):
    (tmp_path / "a.txt").write_bytes("Müller".encode("latin-1"))
    with pytest.raises(
        ValueError, match=r"a\.txt is not UTF-8 at byte 1 \(0xfc\): name its `encoding` \(it may be \S+\)"
    ):
        read(tmp_path)


def test_documents_left_out_are_named_with_their_reasons(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_bytes(bytes(range(160, 256)))
    (tmp_path / "c.txt").write_text("x" * 200)
    (tmp_path / "d.txt").write_text("kept")
    (tmp_path / "e.jsonl").write_text('{"text": "kept too"}\n{"text": ""}\n{"text": 3}\n')
    found, dropped = read(tmp_path, invalid="skip", max_document=100)
    assert found == ["kept", "kept too"]
    assert [reason.replace(f"{tmp_path}/", "") for reason in dropped.reasons][:3] == [
        "a.txt: empty",
        "b.txt: not UTF-8 at byte 0 (0xa0)",
        "c.txt has 200 bytes, above the limit of 100 bytes a document",
    ]
    assert any("row 2 of e.jsonl: empty" in reason.replace(f"{tmp_path}/", "") for reason in dropped.reasons)
    assert any("line 3" in reason and "not a string" in reason for reason in dropped.reasons)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_completely_or_refused(tmp_path, data):
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.txt").write_text("so that the corpus is not empty")
    try:
        found, dropped = read(tmp_path)
    except ValueError as error:
        assert "a.txt" in str(error)
        return
    if encoding := dropped.encodings.get(str(tmp_path / "a.txt")):
        data = data.decode(encoding).removeprefix("\ufeff").encode()
    expected = [data.removeprefix(b"\xef\xbb\xbf").decode()] if data else []
    assert sorted(filter(None, [*expected, "so that the corpus is not empty"])) == found

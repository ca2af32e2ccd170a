"""Records cache large tokenizer.json files: a second reading is faster and gives the same tokenizer."""

import json
import os
import pickle
import subprocess
import sys

import pytest

from tokenizer import Tokenizer
from tokenizer.formats.records import MOST_RECORDS, SMALLEST_FILE


@pytest.fixture(scope="module")
def large(shared, tmp_path_factory):
    """Return a tokenizer.json of 100,000 tokens, some of them special and with flags."""
    folder = tmp_path_factory.mktemp("large")
    ranks = shared / "vectors" / "cl100k" / "cl100k_base.tiktoken"
    special = {"<|endoftext|>": 100257, "<|end of prompt|>": 100276}
    Tokenizer.load(ranks, pattern="cl100k", special_tokens=special).save(folder)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["added_tokens"][1] |= {"special": False}
    content["post_processor"] = {"type": "ByteLevel", "trim_offsets": False}
    content["truncation"] = {"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
    return folder / "tokenizer.json"


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Return an empty folder for records."""
    monkeypatch.setenv("BYTELM_CACHE", str(tmp_path / "records"))
    return tmp_path / "records"


def test_a_vocabulary_from_its_record_is_the_same(large, records, tmp_path, random_strings):
    read = Tokenizer.load(large)
    assert len(list(records.iterdir())) == 1
    again = Tokenizer.load(large)
    texts = random_strings(500, 60)
    for text in ("hello world", *texts[:50]):
        assert again.encode(text, disallowed_special=()) == read.encode(text, disallowed_special=())
    assert again.encode("a<|end of prompt|>", allowed_special="all") == [64, 100276]
    assert again.encode_batch(texts) == read.encode_batch(texts)
    assert (again.fingerprint, again.merges, again.special_tokens) == (
        read.fingerprint,
        read.merges,
        read.special_tokens,
    )
    assert pickle.loads(pickle.dumps(again)).fingerprint == read.fingerprint
    read.save(tmp_path / "read")
    again.save(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (tmp_path / "read" / "tokenizer.json").read_bytes()
    assert b'"max_length": 512' in (tmp_path / "again" / "tokenizer.json").read_bytes()


def test_a_second_process_reads_the_record(large, records):
    """It parses no JSON and imports no large library."""
    Tokenizer.load(large)
    script = (
        "import sys\n"
        "def refuse(content): raise AssertionError('parsed')\n"
        "import tokenizer.formats.vocabulary_files; tokenizer.formats.vocabulary_files.parse_json = refuse\n"
        "from tokenizer import Tokenizer\n"
        f"print(Tokenizer.load({str(large)!r}).encode('hello world'), 'numpy' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[15339, 1917] False"


def test_a_changed_file_has_no_record(large, records, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(large.read_bytes())
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    assert Tokenizer.load(path).encode("hello world") == [15339, 1917]
    changed = large.read_bytes().replace(b'"hello": 15339,', b'"hellq": 15339,')
    path.write_bytes(changed)
    os.utime(path, ns=times)
    with pytest.raises(ValueError, match=r"tokenizer\.json.*hello"):
        Tokenizer.load(path)


def test_a_record_with_any_byte_changed_is_ignored(large, records):
    expected = Tokenizer.load(large).vocabulary.fingerprint
    (record,) = records.iterdir()
    whole = record.read_bytes()
    places = [0, 5, 20, 25, 50, 60, 90, 200, 5000, len(whole) // 2, len(whole) - 300_000, len(whole) - 1]
    damaged = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in places]
    for content in [*damaged[::3], whole[:-1], whole[:40], b"", whole + b"x"]:
        record.write_bytes(content)
        assert Tokenizer.load(large).fingerprint == expected
        assert record.read_bytes() == whole


def test_the_oldest_records_are_removed(large, records, tmp_path):
    records.mkdir()
    for number in range(MOST_RECORDS):
        (records / f"{number:02}.vocabulary").write_bytes(b"")
        os.utime(records / f"{number:02}.vocabulary", (number, number))
    (records / "of-another-program").write_bytes(b"")
    Tokenizer.load(large)
    names = sorted(path.name for path in records.iterdir())
    assert len(names) == MOST_RECORDS + 1
    assert "00.vocabulary" not in names
    assert "of-another-program" in names


def test_no_record_is_kept_if_the_cache_is_unusable_or_disabled(large, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", ""):
        monkeypatch.setenv("BYTELM_CACHE", str(folder))
        assert Tokenizer.load(large).encode("hello world") == [15339, 1917]
    monkeypatch.delenv("BYTELM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    Tokenizer.load(large)
    assert len(list((tmp_path / "caches" / "bytelm").iterdir())) == 1


def test_small_files_leave_no_record(saved_small, records):
    assert saved_small.stat().st_size < SMALLEST_FILE
    Tokenizer.load(saved_small)
    assert not records.exists()


@pytest.fixture
def saved_small(trained, tmp_path):
    trained["gpt2"].save(tmp_path / "small")
    return tmp_path / "small" / "tokenizer.json"

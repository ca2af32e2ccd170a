"""benchmarks.duplicates: all contestants get the same text, from the whole corpus."""

import json

import pytest

from benchmarks import duplicates
from benchmarks.duplicates import measure, starts


def test_the_text_of_the_peers_has_all_languages_of_the_corpus():
    documents = [("你好，世界。" * 300).encode()] * 3 + [b"It was a dark night. " * 900] * 2
    few = starts(documents, 4000)
    assert len(few) == len(documents) and sum(map(len, few)) == pytest.approx(4000, abs=10)
    assert all(whole.startswith(part) and part.decode() for whole, part in zip(documents, few, strict=True))
    assert starts(documents, 10**6) == documents


def test_one_row_of_ours_is_measured_on_the_text_of_the_peers(tmp_path, monkeypatch):
    pytest.importorskip("datasketch"), pytest.importorskip("rensa")
    monkeypatch.setattr(duplicates, "PEER_BYTES", 20_000)
    lines = (json.dumps({"text": f"{number} bottles of beer on the wall. " * 40}) for number in range(100))
    (tmp_path / "bottles.jsonl").write_text("\n".join(lines))
    texts: dict[str, set[str]] = {}
    for _, name, size, _ in measure(tmp_path / "bottles.jsonl"):
        texts.setdefault(name, set()).add(size)
    assert texts["datasketch"] == texts["rensa"] < texts["bytelm, signatures"]

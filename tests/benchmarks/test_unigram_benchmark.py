"""The benchmark of Unigram training writes a page with times, memory and likelihoods of both trainers."""

import argparse
import inspect
import subprocess
import sys
import tempfile

import pytest

from benchmarks import unigram
from benchmarks.peers import installed_version


@pytest.mark.skipif(installed_version("sentencepiece") is None, reason="sentencepiece is not installed")
def test_a_page_has_the_command_the_memory_and_the_targets(tmp_path, monkeypatch):
    text, out = tmp_path / "text.txt", tmp_path / "training.md"
    text.write_text("".join(map(inspect.getsource, (argparse, subprocess, tempfile)))[:120_000], encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["unigram", "--quick", "--sizes", "300", "--out", str(out), str(text)])
    unigram.main()
    page = out.read_text(encoding="utf-8")
    assert "`python -m benchmarks.unigram --quick --sizes 300 --out training.md text.txt` on " in page
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| text | 300 |")]
    targets, measured = rows[:3], rows[3:]
    assert [row[2] for row in targets] == [
        "5 times the speed of sentencepiece",
        "no more memory growth than sentencepiece",
        "no more bits per byte than sentencepiece",
    ]
    assert [row[2] for row in measured] == ["bytelm", "sentencepiece"]
    for *_, peak, before, grown, bits, normalized in measured:
        assert float(peak) > float(before) > 10
        assert float(grown) >= 0
        assert 2 < float(normalized) <= float(bits) < 6

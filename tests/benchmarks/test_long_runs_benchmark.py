"""The benchmark of long runs measures each command on each text and records errors."""

import json

import pytest

from benchmarks import long_runs


def test_a_command_is_measured_and_a_failed_one_has_its_error(tmp_path):
    works, fails = long_runs.measure("corpus", "list"), long_runs.measure("corpus", "show", tmp_path / "absent.txt")
    assert works["error"] is None and works["cpu_seconds"] > 0 and works["peak"] > 10_000_000
    assert "absent.txt" in fails["error"]


@pytest.mark.slow
def test_each_command_is_measured_on_each_text(tmp_path, monkeypatch):
    monkeypatch.setattr(long_runs, "TEXTS", {"a letter": "a"})
    long_runs.main(["--size", "200000", "--out", str(tmp_path)])
    rows = json.loads((tmp_path / "long_runs.json").read_text())["rows"]
    assert [row["command"].split(",")[0] for row in rows] == ["train-tokenizer", "build-dataset", "build-dataset"]
    assert all(row["error"] is None and row["cpu_seconds"] > 0 for row in rows)
    assert "| train-tokenizer | a letter |" in (tmp_path / "long_runs.md").read_text()

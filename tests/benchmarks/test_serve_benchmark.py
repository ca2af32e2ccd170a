"""The serving benchmark measures a real server with clients of every kind."""

import json

import pytest

from benchmarks import serve


@pytest.mark.slow
def test_every_request_of_a_short_run_is_answered(tmp_path, trained_gpt, monkeypatch):
    monkeypatch.setattr(serve, "IN_PROMPT", (1, 16))
    monkeypatch.setattr(serve, "IN_ANSWER", (1, 16))
    options = ["--seconds", "0.5", "--rounds", "1", "--clients", "1", "2", "--crowd", "8", "--endurance", "1"]
    serve.main([*options, "--threads", "1", "--run", str(trained_gpt), "--out", str(tmp_path)])
    result = json.loads((tmp_path / "cpu.json").read_text())
    assert result["crowd"]["errors"] == []
    assert result["crowd"]["lost"] == 0
    assert [turn["clients"] for turn in result["turns"]] == [1, 2]
    assert all(turn["tokens_per_s"] > 0 for turn in result["turns"])
    assert "| 2 |" in (tmp_path / "cpu.md").read_text()

"""The contention benchmark measures the training speed under each load and reports its share of the quiet speed."""

import json

import pytest

from benchmarks.contention import main


@pytest.mark.slow
def test_every_load_is_measured_and_reported(tmp_path):
    main(["--shapes", "gpt-tiny", "--rounds", "1", "--seconds", "0.5", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "contention.json").read_text())
    rows = result["shapes"][0]["rows"]
    assert [row["busy_processes"] for row in rows] == [0, 1, 2]
    assert all(0 < row["min_tokens_per_s"] <= row["tokens_per_s"] for row in rows)
    assert rows[0]["to_quiet"] == 1.0
    assert "| gpt-tiny | 2 |" in (tmp_path / "contention.md").read_text()

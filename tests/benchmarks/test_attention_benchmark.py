"""The attention benchmark measures every backend and the memory that it keeps."""

import json

import torch

from benchmarks.attention import Options, bytes_kept, main


def test_memory_that_two_tensors_share_counts_once():
    x, y = torch.randn(1000, requires_grad=True), torch.randn(1000)
    assert bytes_kept(lambda: (x * y)[:100] + x[:100] * y[:100]) == y.nbytes


def test_every_backend_is_measured_and_written_down(tmp_path):
    assert main(Options(quick=True, out=tmp_path)) == 0
    result = json.loads((tmp_path / "attention.json").read_text(encoding="utf-8"))
    for case in result["cases"]:
        assert {"reference", "sdpa", "blocked", "closed_form"} <= {row["backend"] for row in case["rows"]}
        tolerance = 0.05 if case["shape"]["dtype"] == "bfloat16" else 1e-4
        assert all(row["difference"] < tolerance and row["forward"] for row in case["rows"])
    report = (tmp_path / "attention.md").read_text(encoding="utf-8")
    assert "## Targets" in report
    assert report.count("###") == len(result["cases"])

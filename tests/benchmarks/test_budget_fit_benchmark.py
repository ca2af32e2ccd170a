"""The benchmark behind the law of `bytelm train`: fits that recover known laws, and one run of each setting."""

import json

import numpy as np
import pytest

from benchmarks.budget_fit import main
from benchmarks.budget_fit_page import FITTED, best_rates, held_out_error, law_of, law_runs, page, predicted, rate_law
from lm.metrics.scaling_law import ScalingLaw

LAW = ScalingLaw(0.9, 20.0, 0.3, 60.0, 0.4)


def run(layers, width, tflop, rate=0.004, **fields):
    """Return a row whose bits per byte follow `LAW`, plus a parabola with its minimum at 0.5 / width."""
    weights = 12 * layers * width**2 + 4096 * width
    tokens = round(tflop * 1e12 / 6 / weights)
    row = FITTED | {"layers": layers, "width": width, "tflop": tflop, "muon_lr": rate, "processor_seconds": 1.0}
    bits = LAW.loss(weights, tokens) + 0.02 * np.log(rate * width / 0.5) ** 2
    return row | {"weights": weights, "tokens": tokens, "bits_per_byte": bits} | fields


def exact(layers, width, tflop):
    return run(layers, width, tflop, rate=0.5 / width)


EXACT = [exact(*shape, tflop) for shape in [(2, 64), (2, 128), (3, 192)] for tflop in (1, 4, 16)]


def test_the_best_rate_is_the_minimum_of_a_parabola_and_follows_the_width():
    best = best_rates([run(2, width, 4, rate) for width in (64, 128, 256) for rate in (0.001, 0.002, 0.004, 0.008)])
    assert [each.rate for each in best] == pytest.approx([0.5 / 64, 0.5 / 128, 0.5 / 256])
    assert rate_law(best) == pytest.approx((-1, -1, -1))


def test_a_best_rate_beyond_those_tried_is_marked():
    (best,) = best_rates([run(2, 64, 4, rate) for rate in (0.001, 0.002, 0.004)])
    assert best.at_end and best.rate == pytest.approx(0.004)


def test_the_law_is_recovered_from_exact_runs_and_predicts_them():
    rows = [*EXACT, exact(2, 64, 4) | {"bits_per_byte": 9.0}, run(2, 64, 4, entries=512, bits_per_byte=0.1)]
    runs = law_runs(rows)
    assert len(runs) == len(EXACT)
    assert law_of(runs).loss(1e6, 1e7) == pytest.approx(LAW.loss(1e6, 1e7))
    assert law_of(runs, (0.3, 0.4)).entropy == pytest.approx(0.9)
    assert held_out_error(runs, (0.3, 0.4)) == pytest.approx(0, abs=1e-9)
    assert predicted(runs, 4e6, 2e7, (0.3, 0.4)) == pytest.approx([LAW.loss(4e6, 2e7)] * 3)


def test_the_page_shows_a_prediction_beside_its_run():
    key = {"seed": 1, "layers": 4, "width": 256, "tflop": 150}
    prediction = FITTED | key | {"predicted": 1.5, "low": 1.4, "high": 1.6}
    text = page([*EXACT, prediction, run(4, 256, 150) | key | {"bits_per_byte": 1.55}], "command", "machine")
    assert "| 4 x 256 | 150 | 1.500 (1.400 to 1.600) | 1.5500 |" in text


def test_each_setting_is_trained_once(tmp_path):
    lines = (json.dumps({"text": f"{number} bottles, {number % 7} of them full. " * 40}) for number in range(300))
    (tmp_path / "bottles.jsonl").write_text("\n".join(lines))
    size = ["--shapes", "1x64", "--entries", "300", "--tflop", "0.002", "--dtype", "float32"]
    options = ["--text", str(tmp_path / "bottles.jsonl"), *size, "--folder", str(tmp_path), "--out", str(tmp_path)]
    main([*options, "--rates", "0.004"])
    main([*options, "--rates", "0.004", "0.008"])
    rows = [json.loads(line) for line in (tmp_path / "budget_fit.jsonl").read_text().splitlines()]
    assert [(row["muon_lr"], row["lr"]) for row in rows] == [(0.004, 0.006), (0.008, 0.012)]
    assert all(0 < row["bits_per_byte"] < 9 for row in rows)
    assert not list(tmp_path.glob("runs/*"))

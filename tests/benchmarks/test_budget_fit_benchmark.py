"""The benchmark behind the law of `bytelm train`: fits that recover known laws, and one run of each setting."""

import json
import re
import shlex

import numpy as np
import pytest

from benchmarks.budget_fit import main, rows_of
from benchmarks.budget_fit_page import (
    FITTED,
    LITERATURE,
    best_rates,
    held_out_error,
    law_of,
    law_runs,
    page,
    predicted,
    rate_law,
)
from benchmarks.harness import RESULTS
from lm.metrics.scaling_law import ScalingLaw
from pipelines.first_model import fit

LAW = ScalingLaw(0.9, 20.0, 0.3, 60.0, 0.4)


def best_rate(width, tokens):
    return 100 / width * tokens**-0.3


def run(layers, width, tflop, rate=0.004, **fields):
    """Return a row whose bits per byte follow `LAW`, plus a parabola with its minimum at `best_rate`."""
    weights = 12 * layers * width**2 + 4096 * width
    tokens = round(tflop * 1e12 / 6 / weights)
    row = FITTED | {"corpus": "books.jsonl.xz", "dtype": "bfloat16"}
    row |= {"layers": layers, "width": width, "tflop": tflop, "muon_lr": rate, "processor_seconds": 1.0}
    bits = LAW.loss(weights, tokens) + 0.02 * np.log(rate / best_rate(width, tokens)) ** 2
    return row | {"weights": weights, "tokens": tokens, "bits_per_byte": bits} | fields


def exact(layers, width, tflop):
    return run(layers, width, tflop, rate=best_rate(width, run(layers, width, tflop)["tokens"]))


EXACT = [exact(*shape, tflop) for shape in [(2, 64), (2, 128), (3, 192)] for tflop in (16, 64, 256)]
RATES = (0.0005, 0.002, 0.008, 0.032)


def test_the_best_rate_is_the_minimum_of_a_parabola_and_follows_width_and_tokens():
    best = best_rates([run(2, width, tflop, rate) for width in (64, 128) for tflop in (1, 4) for rate in RATES])
    assert [each.rate for each in best] == pytest.approx(
        [best_rate(each.row["width"], each.row["tokens"]) for each in best]
    )
    law = rate_law(best)
    assert law.factor == pytest.approx(100)
    assert law.exponents["width"] == pytest.approx((-1, -1, -1))
    assert law.exponents["tokens"] == pytest.approx((-0.3, -0.3, -0.3))
    narrow = rate_law([each for each in best if each.row["width"] == 64] * 2, ["tokens"])
    assert narrow.factor == pytest.approx(100 / 64) and narrow.exponents["tokens"][0] == pytest.approx(-0.3)


def test_a_best_rate_beyond_those_tried_is_marked_and_left_out():
    best = best_rates([run(2, 64, tflop, rate) for tflop in (1, 4, 16, 64) for rate in RATES[:2]])
    best += best_rates([run(2, 64, 1, rate) for rate in (0.0005, 0.001, 0.002)])
    assert [each.at_end for each in best] == [True]
    with pytest.raises(ValueError, match="needs 4 of them, but there are 0"):
        rate_law(best)


def test_the_law_is_recovered_from_exact_runs_and_predicts_them():
    short = exact(3, 192, 4) | {"bits_per_byte": 0.1}  # less than 1M tokens
    rows = [*EXACT, exact(2, 64, 16) | {"bits_per_byte": 9.0}, run(2, 64, 16, entries=512, bits_per_byte=0.1), short]
    runs = law_runs(rows)
    assert len(runs) == len(EXACT)
    assert law_of(runs).loss(1e6, 1e7) == pytest.approx(LAW.loss(1e6, 1e7))
    assert law_of(runs, (0.3, 0.4)).entropy == pytest.approx(0.9)
    assert held_out_error(runs, (0.3, 0.4)) == pytest.approx(0, abs=1e-9)
    assert predicted(runs, 4e6, 2e7) == pytest.approx([LAW.loss(4e6, 2e7)] * 3)


def test_the_page_shows_a_prediction_beside_its_run():
    key = {"seed": 1, "layers": 4, "width": 256, "tflop": 150, "muon_lr": 0.004}
    prediction = FITTED | key | {"corpus": "books", "dtype": "bfloat16", "predicted": 1.5, "low": 1.4, "high": 1.6}
    one, other = run(4, 256, 150) | key, run(4, 256, 150) | key | {"batch_tokens": 4096, "bits_per_byte": 1.57}
    text = page([*EXACT, prediction, one | {"bits_per_byte": 1.55}, other], "machine")
    assert "| 4 x 256 | 150 | 1.500 (1.400 to 1.600) | 1.5500 |" in text


def test_a_law_needs_three_sizes_without_the_longest_run():
    longest = exact(3, 192, 1024)
    for shapes in ([(2, 64)], [(2, 64), (2, 128)]):
        runs = [exact(*shape, tflop) for shape in shapes for tflop in (16, 32, 64, 128, 256, 512)]
        assert "This needs six runs of three sizes" in page([*runs, longest], "machine")


def test_each_setting_is_trained_once_and_predicted_once_and_the_page_has_the_command(tmp_path):
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
    text = (tmp_path / "budget_fit.md").read_text()
    (command,) = re.findall(r"`python -m benchmarks.budget_fit (.*)`", text)
    recorded = (tmp_path / "budget_fit.jsonl").read_text()
    again = command.replace("bottles.jsonl", str(tmp_path / "bottles.jsonl"))
    main([*shlex.split(again), "--folder", str(tmp_path), "--out", str(tmp_path)])  # trains these rows and no other
    assert (tmp_path / "budget_fit.jsonl").read_text() == recorded
    (tmp_path / "budget_fit.jsonl").write_text("".join(json.dumps(row) + "\n" for row in EXACT))
    for _ in range(2):
        main([*options, "--predict"])
    *_, prediction = map(json.loads, (tmp_path / "budget_fit.jsonl").read_text().splitlines()[: len(EXACT) + 1])
    found = LAW.loss(prediction["weights"], prediction["tokens"])
    assert prediction["predicted"] == pytest.approx(found, rel=1e-3)
    assert len((tmp_path / "budget_fit.jsonl").read_text().splitlines()) == len(EXACT) + 1


def test_train_uses_the_fits_of_the_recorded_runs():
    rows = rows_of(RESULTS / "budget_fit.jsonl")
    law, runs = law_of(law_runs(rows), LITERATURE), law_runs(rows)
    for row in runs:
        used = fit.LAW.loss(row["weights"], row["tokens"])
        assert used == pytest.approx(law.loss(row["weights"], row["tokens"]), abs=0.002)
    rates = rate_law(best_rates(rows), ["tokens"])
    for tokens in (3e5, 1e6, 5e6):
        assert fit.muon_rate(tokens) == pytest.approx(rates.factor * tokens ** rates.exponents["tokens"][0], rel=0.02)
    assert max(each.rate for each in best_rates(rows)) == pytest.approx(fit.HIGHEST_RATE, rel=0.05)


def test_the_recorded_page_follows_from_the_recorded_rows():
    recorded = (RESULTS / "budget_fit.md").read_text(encoding="utf-8")
    (machine,) = re.findall(r"^On (.*)\. Each table", recorded, re.MULTILINE)
    assert page(rows_of(RESULTS / "budget_fit.jsonl"), machine) == recorded

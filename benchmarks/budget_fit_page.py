"""The fits of benchmarks.budget_fit, and its page.

The law is fitted to the runs of the fields `FITTED` with at least `LEAST_TOKENS` tokens, each shape and FLOPs at the
best of its rates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from benchmarks.harness import command_line, table
from lm.metrics.intervals import interval
from lm.metrics.scaling_law import ScalingLaw, bootstrap, fit

Row = dict[str, Any]
"""The settings of one training with its result, or with a prediction of the result."""

FITTED: Row = {"text": "books", "entries": 4096, "batch_tokens": 1024, "seed": 0}
# Shorter runs have fewer than a thousand steps, and bend the law: a law that included runs from 0.28M tokens on missed
# the run of 5.3M tokens by 0.08 bits per byte.
LEAST_TOKENS = 1_000_000
# Alpha and beta of Besiroglu et al. 2024: the runs of Hoffmann et al. 2022, fitted again.
LITERATURE = (0.348, 0.366)
PARAMETERS = 5  # of the law
PREDICTED_BY = ("text", "layers", "width", "entries", "tflop", "batch_tokens", "muon_lr")


class BestRate(NamedTuple):
    """The best of Muon's learning rates for a shape at given FLOPs."""

    row: Row
    """The best run"""
    rate: float
    """The minimum of the parabola of bits per byte by the logarithm of the rate, within the rates tried"""
    at_end: bool
    """Whether this is the lowest or the highest rate tried"""


def measured(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are trainings."""
    return [row for row in rows if "bits_per_byte" in row]


def groups(rows: Sequence[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows by the values of these fields, sorted by the values."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return dict(sorted(found.items()))


def best_rates(rows: Sequence[Row]) -> list[BestRate]:
    """Return the best rate for each shape and FLOPs of the fitted text that has runs at three rates or more."""
    found = []
    for same in groups(_fitted(rows), "width", "layers", "tflop").values():
        if len(same) >= 3:
            rates = np.log([row["muon_lr"] for row in same])
            second, first, _ = np.polyfit(rates, [row["bits_per_byte"] for row in same], 2)
            best = min(same, key=lambda row: row["bits_per_byte"])
            vertex = -first / (2 * second) if second > 0 else np.log(best["muon_lr"])
            rate = float(np.exp(np.clip(vertex, rates.min(), rates.max())))
            found.append(BestRate(best, rate, bool(rate in np.exp([rates.min(), rates.max()]))))
    return found


class RateLaw(NamedTuple):
    """The law rate = factor * width^a * tokens^b, or the same without the width."""

    factor: float
    exponents: dict[str, tuple[float, float, float]]
    """The exponent of each field, and the ends of its 95 % interval"""


def rate_law(best: Sequence[BestRate], fields: Sequence[str] = ("width", "tokens")) -> RateLaw:
    """Return the law with the least squares of the logarithms of the best rates.

    Rates at an end of the range tried are left out. Raises ValueError if the others do not determine the law.
    """
    inside = [each for each in best if not each.at_end]
    freedom = len(inside) - 1 - len(fields)
    if freedom < 1:
        raise ValueError(f"a law of rates needs {len(fields) + 2} of them, but there are {len(inside)}")
    logarithms = np.log([[each.rate, *(each.row[name] for name in fields)] for each in inside])
    columns = np.column_stack([np.ones(len(inside)), logarithms[:, 1:]])
    found, *_ = np.linalg.lstsq(columns, logarithms[:, 0], rcond=None)
    error = logarithms[:, 0] - columns @ found
    variances = np.diag(np.linalg.inv(columns.T @ columns)) * (error @ error) / freedom
    halves = stats.t.ppf(0.975, freedom) * np.sqrt(variances)
    ends = [(float(x), float(x - half), float(x + half)) for x, half in zip(found, halves, strict=True)]
    return RateLaw(float(np.exp(found[0])), dict(zip(fields, ends[1:], strict=True)))


def _fitted(rows: Sequence[Row]) -> list[Row]:
    return [row for row in measured(rows) if row.items() >= FITTED.items()]


def law_runs(rows: Sequence[Row]) -> list[Row]:
    """Return the runs that the law is fitted to: the best rate of each shape and FLOPs."""
    used = [row for row in _fitted(rows) if row["tokens"] >= LEAST_TOKENS]
    same = groups(used, "tflop", "width", "layers").values()
    return [min(each, key=lambda row: row["bits_per_byte"]) for each in same]


def _columns(runs: Sequence[Row]) -> tuple[list[float], list[float], list[float]]:
    """Return weights, tokens and bits per byte."""
    weights, tokens, bits = ([row[name] for row in runs] for name in ("weights", "tokens", "bits_per_byte"))
    return weights, tokens, bits


def law_of(runs: Sequence[Row], exponents: tuple[float, float] | None = None) -> ScalingLaw:
    """Return the law of bits per byte by weights and tokens; without `exponents`, these are fitted too."""
    return fit(*_columns(runs), exponents=exponents)


def _length(row: Row) -> tuple[float, int]:
    """Return what orders runs from the shortest to the longest."""
    return row["tflop"], row["weights"]


def held_out_error(runs: Sequence[Row], exponents: tuple[float, float] | None = None) -> float:
    """Return the measured minus the predicted bits per byte of the longest run, by the law of the other runs."""
    *others, last = sorted(runs, key=_length)
    return float(last["bits_per_byte"] - law_of(others, exponents).loss(last["weights"], last["tokens"]))


def residuals(law: ScalingLaw, runs: Sequence[Row]) -> list[float]:
    """Return the measured minus the predicted bits per byte of each run."""
    return [row["bits_per_byte"] - law.loss(row["weights"], row["tokens"]) for row in runs]


def predicted(runs: Sequence[Row], weights: float, tokens: float) -> tuple[float, float, float]:
    """Return the predicted bits per byte of a run and a 95 % interval.

    The interval is over laws of bootstrap samples of the runs, each with normal noise of the residuals' deviation.
    """
    law = law_of(runs)
    deviation = np.sqrt(np.sum(np.square(residuals(law, runs))) / max(1, len(runs) - PARAMETERS))
    laws = bootstrap(*_columns(runs))
    noise = np.random.default_rng(0).normal(0, deviation, len(laws))
    drawn = np.array([each.loss(weights, tokens) for each in laws]) + noise
    return law.loss(weights, tokens), *interval(drawn)


def commands(rows: Sequence[Row], *options: str) -> list[str]:
    """Return the lines of the commands that train these rows, each with shapes that were trained at the same rates."""
    lines = []
    for same in groups(rows, "corpus", "tflop", "entries", "batch_tokens", "seed", "dtype").values():
        shapes: dict[tuple[str, ...], list[str]] = {}
        for (layers, width), each in groups(same, "layers", "width").items():
            rates = sorted({row["muon_lr"] for row in each})
            shapes.setdefault(tuple(map(str, rates)), []).append(f"{layers}x{width}")
        row = same[0]
        text = ("--text", row["corpus"], "--tflop", f"{row['tflop']:g}", "--entries", f"{row['entries']}")
        run = ("--batches", f"{row['batch_tokens']}", "--seeds", f"{row['seed']}", "--dtype", row["dtype"], *options)
        for rates, words in shapes.items():
            command = command_line("benchmarks.budget_fit", [*text, "--shapes", *words, "--rates", *rates, *run])
            lines.append(f"- `{command}`")
    return [*lines, ""]


def page(rows: Sequence[Row], machine: str) -> str:
    """Return budget_fit.md."""
    lines = [
        "# Learning rate, batch, shape and vocabulary by FLOPs",
        "",
        f"On {machine}. Each table has the commands that train its rows.",
        "",
        "`bytelm train`'s recipe `gpt-tiny` with other settings, trained for equal FLOPs. Bits per byte are of all "
        "held-out passages (benchmarks/budget_texts.py), once, at the end. `weights` counts the weights applied to "
        "each token: the matrices of blocks, and the head. `rate` is Muon's; AdamW's is 1.5 times as high.",
        "",
    ]
    head = ("layers x width", "weights", "entries", "batch", "rate", "seed", "tokens", "bits per byte", "CPU s", "GPU")
    for (text, tflop), same in groups(measured(rows), "text", "tflop").items():
        ranked = sorted(same, key=lambda row: row["bits_per_byte"])
        lines += [f"## {text}, {tflop:g} TFLOP", "", *commands(same), *table(head, map(_cells, ranked)), ""]
    return "\n".join([*lines, *_rate_lines(rows), *_law_lines(rows)])


def _shape(row: Row) -> str:
    return f"{row['layers']} x {row['width']}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        *(_shape(row), f"{row['weights']:,}", f"{row['entries']:,}", f"{row['batch_tokens']:,}"),
        *(f"{row['muon_lr']:g}", f"{row['seed']}", f"{row['tokens']:,}"),
        *(f"{row['bits_per_byte']:.4f}", f"{row['processor_seconds']:.0f}" if row["processor_seconds"] else "-"),
        row.get("gpu", "-"),
    )


def _rate_lines(rows: Sequence[Row]) -> list[str]:
    best = best_rates(rows)
    lines = ["## Best learning rate", ""]
    cells = [
        (
            *(_shape(each.row), f"{each.row['tflop']:g}", f"{each.row['tokens']:,}", f"{each.row['muon_lr']:g}"),
            f"{each.rate:.4f}" + (" (end of the range)" if each.at_end else ""),
        )
        for each in best
    ]
    head = ("layers x width", "TFLOP", "tokens", "best rate tried", "minimum of a parabola")
    lines += [*table(head, cells), ""]
    if sum(not each.at_end for each in best) < 4:
        return lines
    for fields in (("width", "tokens"), ("width",), ("tokens",)):
        law = rate_law(best, fields)
        powers = [
            f"{name}^{x:.2f} (95 % interval {low:.2f} to {high:.2f})" for name, (x, low, high) in law.exponents.items()
        ]
        lines.append(f"- The best rate by {' and '.join(fields)}: {law.factor:.3g} x {' x '.join(powers)}.")
    return [*lines, ""]


def _law_lines(rows: Sequence[Row]) -> list[str]:
    runs = law_runs(rows)
    lines = ["## Law of bits per byte by weights N and tokens D", ""]
    others = sorted(runs, key=_length)[:-1]
    if len(others) < 6 or min(len({row[name] for row in others}) for name in ("weights", "tokens")) < 3:
        return [*lines, "This needs six runs of three sizes and three numbers of tokens, and a longer run.", ""]
    used = "exponents of the literature, which `bytelm train` uses"
    for name, exponents in (("fitted exponents", None), (used, LITERATURE)):
        law = law_of(runs, exponents)
        worst = max(map(abs, residuals(law, runs)))
        lines.append(
            f"- {name}: {law.entropy:.4f} + {law.size_factor:.2f} / N^{law.size_exponent:.3f} + "
            f"{law.token_factor:.2f} / D^{law.token_exponent:.3f}. The largest residual is {worst:.4f}. The law of the "
            f"other runs misses the longest run by {held_out_error(runs, exponents):+.4f}."
        )
    law = law_of(runs, LITERATURE)
    cells = [
        (
            *(_shape(row), f"{row['tflop']:g}", f"{row['weights']:,}", f"{row['tokens']:,}"),
            *(f"{row['muon_lr']:g}", f"{row['bits_per_byte']:.4f}", f"{residual:+.4f}"),
        )
        for row, residual in zip(runs, residuals(law, runs), strict=True)
    ]
    head = ("layers x width", "TFLOP", "weights", "tokens", "rate", "bits per byte", "residual")
    return [*lines, "", *table(head, cells), "", *_prediction_lines(rows)]


def _prediction_lines(rows: Sequence[Row]) -> list[str]:
    cells = []
    for row in rows:
        if "predicted" in row:
            key = {name: row[name] for name in PREDICTED_BY}
            found = [f"{other['bits_per_byte']:.4f}" for other in measured(rows) if key.items() <= other.items()]
            interval = f"{row['predicted']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
            cells.append((_shape(row), f"{row['tflop']:g}", interval, ", ".join(found) or "not measured"))
    if not cells:
        return []
    head = ("layers x width", "TFLOP", "predicted, with a 95 % interval", "measured")
    recorded = commands([row for row in rows if "predicted" in row], "--predict")
    return ["## Predictions, recorded before the runs", "", *recorded, *table(head, cells), ""]

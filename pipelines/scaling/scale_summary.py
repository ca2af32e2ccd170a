"""The summary of `bytelm scale`: the fitted law, its intervals, a predicted run, the best models and conclusions."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from lm.metrics.intervals import interval
from lm.metrics.scaling_law import DRAWS, ScalingLaw, bootstrap, fit
from pipelines.cli.display import quantity

Result = Mapping[str, Any]
"""The result of a run, see `pipelines.scaling.scale_runs.finish`"""
# Budgets as multiples of the FLOPs of the longest run of the largest model. Multiples above 1 are extrapolated.
BUDGETS = (1 / 16, 1 / 4, 1, 10, 100)
# E is not identified if its interval is as wide as this share of the lowest loss.
WIDE = 0.25
# The law does not describe the runs if its error exceeds this many standard deviations over seeds.
MISFIT = 4.0
PARAMETERS = {
    "entropy": ("E", "bits per byte"),
    "size_factor": ("A", ""),
    "size_exponent": ("alpha", ""),
    "token_factor": ("B", ""),
    "token_exponent": ("beta", ""),
}


@dataclass(frozen=True, kw_only=True)
class ScaledRun:
    """A finished run that the law is fitted to."""

    width: int
    size: float
    """Parameters as applied: FLOPs per token / 6"""
    tokens: int
    epochs: float
    flops: float
    bits_per_byte: float
    """On held-out text"""
    fitted: float
    """Bits per byte by the law that is fitted to all runs"""
    seed: int


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A number that follows from the law, with its interval: the middle 95 % of a bootstrap over runs."""

    value: float | None
    """None if the law has no finite value"""
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class HeldOutRun:
    """The run with the most FLOPs, and its loss by the law that is fitted to the other runs."""

    run: ScaledRun
    predicted: Fitted
    """Bits per byte. The interval includes the errors of single runs."""


@dataclass(frozen=True, kw_only=True)
class BestModel:
    """The model with the lowest loss for a budget."""

    flops: float
    size: Fitted
    tokens: Fitted
    bits_per_byte: Fitted
    extrapolated: bool
    """Whether the FLOPs exceed those of every run, or the size is outside the sizes of the runs"""


@dataclass(frozen=True, kw_only=True, repr=False)
class ScaleSummary:
    """The result of `bytelm scale`. Sizes are parameters as applied; losses are bits per byte on held-out text."""

    runs: list[ScaledRun]
    law: dict[str, Fitted]
    """E, A, alpha, B and beta by the names of the fields of `ScalingLaw`, fitted to all runs"""
    at_bounds: list[str]
    """Parameters of the law at a bound of the fit"""
    entropy_is_identified: bool
    """Whether the interval of E excludes 0 and is narrower than a quarter of the lowest loss"""
    error: float
    """Root mean square error of the law, corrected for its degrees of freedom, in bits per byte"""
    deviation: float
    """Standard deviation of bits per byte over seeds"""
    held_out: HeldOutRun
    best: list[BestModel]
    text_tokens: int
    """Tokens of the text to train on"""
    doubling: Fitted
    """Bits per byte by which the loss falls, at every size, if the text doubles and is read once"""
    rates: dict[str, float]
    """Bits per byte at the smallest size by multiple of the recipe's learning rate"""
    rate: float
    """The multiple in the runs that the law is fitted to"""

    def to_json(self) -> dict[str, Any]:
        """Return the contents of results.json."""
        return asdict(self)

    def __repr__(self) -> str:
        return "\n".join(sentences(self))


class Laws:
    """The law fitted to runs, and the laws of the bootstrap."""

    def __init__(self, results: Sequence[Result], draws: int) -> None:
        names = ("size", "tokens", "bits_per_byte")
        sizes, tokens, losses = ([float(result[name]) for result in results] for name in names)
        self.law = fit(sizes, tokens, losses)
        self.draws = bootstrap(sizes, tokens, losses, draws)
        errors = np.array([loss - self.law.loss(n, d) for n, d, loss in zip(sizes, tokens, losses, strict=True)])
        freedom = max(1, len(results) - len(PARAMETERS))
        self.errors = errors * math.sqrt(len(results) / freedom)
        self.error = float(np.sqrt(np.mean(self.errors**2)))

    def number(self, of: Callable[[ScalingLaw], float]) -> Fitted:
        """Return the value of a function of the law, with its bootstrap interval."""
        return _fitted(of(self.law), np.array([of(law) for law in self.draws]))

    def prediction(self, size: float, tokens: float) -> Fitted:
        """Return the loss of one more run, with an interval that includes the errors of single runs."""
        errors = np.random.default_rng(0).choice(self.errors, len(self.draws))
        drawn = np.array([law.loss(size, tokens) for law in self.draws]) + errors
        return _fitted(self.law.loss(size, tokens), drawn)


def _fitted(value: float, drawn: np.ndarray) -> Fitted:
    """Return a number with the interval of its draws. Infinite numbers, which JSON lacks, become None."""
    low, high = interval(np.minimum(drawn, np.finfo(np.float64).max))
    ends = [each if each < 1e300 else None for each in (value, low, high)]
    return Fitted(value=ends[0], low=ends[1], high=ends[2])


def summarize(
    results: Sequence[Result], seeds: Sequence[Result], search: Sequence[Result], draws: int = DRAWS
) -> ScaleSummary:
    """Return the summary of the law that is fitted to `results` and `seeds`.

    A second law, without the run of `results` with the most FLOPs, predicts this run. `seeds`: results of one size and
    number of tokens that differ in the seed; `search`: those that differ in the learning rate. `draws`: samples of the
    bootstrap.
    """
    largest = max(results, key=lambda result: result["flops"])
    points = [*results, *(result for result in seeds if result not in results)]
    laws = Laws(points, draws)
    earlier = Laws([result for result in points if result is not largest], draws)
    runs = [_scaled(result, laws.law) for result in points]
    law = {name: laws.number(attrgetter(name)) for name in PARAMETERS}
    text_tokens = round(largest["tokens"] / largest["epochs"])
    return ScaleSummary(
        runs=sorted(runs, key=lambda run: (run.size, run.tokens, run.seed)),
        law=law,
        at_bounds=laws.law.bounds(),
        entropy_is_identified=_is_identified(law["entropy"], min(run.bits_per_byte for run in runs)),
        error=laws.error,
        deviation=float(np.std([result["bits_per_byte"] for result in seeds], ddof=1)),
        held_out=HeldOutRun(
            run=_scaled(largest, laws.law), predicted=earlier.prediction(largest["size"], largest["tokens"])
        ),
        best=[_best(laws, share * largest["flops"], runs) for share in BUDGETS],
        text_tokens=text_tokens,
        doubling=laws.number(lambda law: law.token_gain(text_tokens, 2 * text_tokens)),
        rates={f"{result['rate']:g}": result["bits_per_byte"] for result in search},
        rate=largest["rate"],
    )


def _scaled(result: Result, law: ScalingLaw) -> ScaledRun:
    same = ("width", "size", "tokens", "epochs", "flops", "bits_per_byte", "seed")
    return ScaledRun(**{name: result[name] for name in same}, fitted=law.loss(result["size"], result["tokens"]))


def _is_identified(entropy: Fitted, lowest: float) -> bool:
    low, high = entropy.low, entropy.high
    return low is not None and high is not None and low > 0 and high - low < WIDE * lowest


def _best(laws: Laws, flops: float, runs: Sequence[ScaledRun]) -> BestModel:
    def loss(law: ScalingLaw) -> float:
        size = law.best_size(flops)
        return law.loss(size, flops / 6 / size) if 0 < size < math.inf else law.entropy

    size = laws.number(lambda law: law.best_size(flops))
    sizes = [run.size for run in runs]
    inside = size.value is not None and min(sizes) <= size.value <= max(sizes)
    return BestModel(
        flops=flops,
        size=size,
        tokens=laws.number(lambda law: flops / 6 / law.best_size(flops) if law.best_size(flops) else math.inf),
        bits_per_byte=laws.number(loss),
        extrapolated=flops > max(run.flops for run in runs) * (1 + 1e-9) or not inside,
    )


RUN_HEADS = ("parameters", "width", "tokens", "epochs", "FLOPs", "bits per byte", "by the law", "error")
LAW_HEADS = ("law", "value", "95 % interval", "unit")
BEST_HEADS = ("FLOPs", "best parameters", "95 % interval", "tokens", "bits per byte", "95 % interval")


def run_cells(summary: ScaleSummary) -> list[tuple[str, ...]]:
    """Return the rows of the table of runs under RUN_HEADS."""
    return [
        (
            quantity(run.size, ""),
            f"{run.width:,}",
            quantity(run.tokens, ""),
            f"{run.epochs:.2g}",
            quantity(run.flops, ""),
            f"{run.bits_per_byte:.4f}",
            f"{run.fitted:.4f}",
            f"{run.bits_per_byte - run.fitted:+.4f}",
        )
        for run in summary.runs
    ]


def law_cells(summary: ScaleSummary) -> list[tuple[str, ...]]:
    """Return the rows of the table of the law under LAW_HEADS."""
    return [
        (symbol, _number(summary.law[name].value), _range(summary.law[name], _number), unit)
        for name, (symbol, unit) in PARAMETERS.items()
    ]


def best_cells(summary: ScaleSummary) -> list[tuple[str, ...]]:
    """Return the rows of the table of best models under BEST_HEADS. A * marks extrapolations."""
    return [
        (
            f"{quantity(best.flops, '')}{'*' if best.extrapolated else ' '}",
            _amount(best.size.value),
            _range(best.size, _amount),
            _amount(best.tokens.value),
            _loss(best.bits_per_byte.value),
            _range(best.bits_per_byte, _loss),
        )
        for best in summary.best
    ]


def _range(number: Fitted, shown: Callable[[float | None], str]) -> str:
    return f"{shown(number.low)} to {shown(number.high)}"


def _number(value: float | None) -> str:
    return "no limit" if value is None else f"{value:.3g}"


def _amount(value: float | None) -> str:
    """Return a number of parameters or tokens; "no limit" without a finite one."""
    return "no limit" if value is None or value >= 1e18 else quantity(value, "")


def _loss(value: float | None) -> str:
    return "no limit" if value is None else f"{value:.3f}"


def sentences(summary: ScaleSummary) -> list[str]:
    """Return the conclusions, and how to read the tables."""
    held_out = summary.held_out
    measured, predicted = held_out.run.bits_per_byte, held_out.predicted
    inside = predicted.low is not None and predicted.high is not None and predicted.low <= measured <= predicted.high
    lines = [
        f"L(N, D) = E + A / N^alpha + B / D^beta, fitted to {len(summary.runs)} runs: error of a run "
        f"{summary.error:.4f} bits per byte, standard deviation over seeds {summary.deviation:.4f}",
        f"the largest run held out: the others predict {_loss(predicted.value)} ({_range(predicted, _loss)}) bits per "
        f"byte, measured {measured:.3f}, {'inside' if inside else 'outside'} the 95 % interval",
        _entropy_sentence(summary),
    ]
    if summary.error > MISFIT * summary.deviation > 0:
        lines.append(
            f"the error is {summary.error / summary.deviation:.0f} times the deviation over seeds, so the law does not "
            "describe these runs: a larger `budget` gives runs past the first plateau of the loss"
        )
    names = {name: symbol for name, (symbol, _) in PARAMETERS.items()}
    if others := [names[name] for name in summary.at_bounds if name != "entropy"]:
        lines.append(
            f"{' and '.join(others)} at a bound of the fit: these runs do not determine the law, so do not read a "
            "best size from it"
        )
    lines.append(
        f"doubling the text from {quantity(summary.text_tokens, 'tok')}, with both texts read once, lowers the loss of "
        f"every size by {_loss(summary.doubling.value)} ({_range(summary.doubling, _loss)}) bits per byte"
    )
    rates = ", ".join(f"{loss:.3f} at {rate}x" for rate, loss in summary.rates.items())
    lines.append(
        f"learning rate: {summary.rate:g}x the recipe's at the recipe's width, lower in wider models; bits per byte of "
        f"the smallest size: {rates}{_rate_end(summary)}"
    )
    lines.append(
        "parameters are counted as applied (FLOPs per token / 6): with the output matrix and attention's products, "
        "without the embedding. *: extrapolated beyond the runs"
    )
    return lines


def _entropy_sentence(summary: ScaleSummary) -> str:
    entropy = summary.law["entropy"]
    found = f"E, the loss in the limit of size and text, is {_loss(entropy.value)} ({_range(entropy, _loss)})"
    if summary.entropy_is_identified:
        return f"{found} by this law. It is an extrapolation, not a measured entropy of the text"
    return f"{found}: these runs do not identify it, so do not read it as the entropy of the text"


def _rate_end(summary: ScaleSummary) -> str:
    """Return a warning if the best learning rate is the highest or lowest that was tried."""
    tried = [float(rate) for rate in summary.rates]
    end = {max(tried): "highest", min(tried): "lowest"}.get(summary.rate) if len(tried) > 1 else None
    return f". The {end} rate tried is the best, so a better one may lie beyond it" if end else ""

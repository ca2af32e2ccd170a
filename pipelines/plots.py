"""The plots of a report, as SVG."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.training.run import Run

COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568")


@dataclass(frozen=True)
class Subject:
    """A run as the page shows it; `samples` as `pipelines.samples` makes them."""

    run: Run
    metrics: list[dict[str, Any]]
    evaluation: dict[str, Any] | None
    samples: list[dict[str, str]]
    parameters: int
    inside: Any = None  # a `pipelines.inside.Inside`, which imports torch

    @property
    def tokens_seen(self) -> int:
        """Training tokens so far."""
        return max((m["tokens"] for m in self.metrics), default=0)

    @property
    def speed(self) -> float:
        """Training tokens a second, validation and checkpoints left out."""
        last = self.metrics[-1] if self.metrics else {}
        return last["tokens"] / last["time_s"] if last.get("time_s") else 0.0

    @property
    def scored_text(self) -> tuple[str, str]:
        """What text the numbers are of: the dataset's fingerprint and the split."""
        evaluation = self.evaluation or {}
        return evaluation.get("dataset_fingerprint", ""), next(iter(evaluation.get("splits", {})), "")

    @property
    def numbers(self) -> dict[str, Any]:
        """The scores on the first split that was evaluated."""
        splits = (self.evaluation or {}).get("splits", {})
        return next(iter(splits.values()), {})


def plots(subjects: Sequence[Subject]) -> list[tuple[str, str, str]]:
    """(title, explanation, SVG) of each plot that there is data for."""
    import matplotlib

    matplotlib.use("Agg")
    drawn = [
        ("Loss", "Cross-entropy in bits per target, during training.", _draw_loss(subjects)),
        ("Learning rate", "", _draw_series(subjects, "lr", "learning rate")),
        ("Speed", "Training tokens a second.", _draw_series(subjects, "tokens_per_s", "tokens/s")),
        (
            "Loss by position",
            "Validation cross-entropy by position in the context: what a longer context is worth.",
            _draw_positions(subjects),
        ),
        (
            "Bits per byte",
            "On the same validation text; shorter is better. Hatched: given the training text.",
            _draw_bits_per_byte(subjects),
        ),
        (
            "Reliability",
            "Accuracy against confidence of the most probable token; a calibrated model is on the diagonal.",
            _draw_reliability(subjects),
        ),
    ]
    return [(title, text, figure) for title, text, figure in drawn if figure]


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def draw_svg(figure: Any, text: str = "path") -> str:
    """`figure` as an <svg>; `text` is "path" for outlines of letters, "none" for the reader's own fonts, which have
    more letters than the one that comes with matplotlib."""
    import warnings

    import matplotlib

    out = io.StringIO()
    # Without a date and with fixed ids, the same run gives the same page.
    with matplotlib.rc_context({"svg.hashsalt": "bytelm", "svg.fonttype": text}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    return svg[svg.index("<svg") :]


def _draw_loss(subjects: Sequence[Subject]) -> str:
    figure, axes = _figure()
    for each, colour in zip(subjects, COLOURS * len(subjects), strict=False):
        for split, style in (("train", {"alpha": 0.45}), ("validation", {"marker": "o", "markersize": 3})):
            points = [(m["tokens"], m["loss"] / math.log(2)) for m in each.metrics if m["split"] == split]
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, label=_label(f"{each.run.name}, {split}"), **style)
    return _finish(figure, axes, "training tokens", "bits per target")


def _draw_series(subjects: Sequence[Subject], key: str, label: str) -> str:
    figure, axes = _figure()
    for each, colour in zip(subjects, COLOURS * len(subjects), strict=False):
        points = [(m["tokens"], m[key]) for m in each.metrics if key in m]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=_label(each.run.name))
    axes.set_ylim(bottom=0)
    return _finish(figure, axes, "training tokens", label)


def _draw_positions(subjects: Sequence[Subject]) -> str:
    figure, axes = _figure()
    for each, colour in zip(subjects, COLOURS * len(subjects), strict=False):
        losses = each.numbers.get("curves", {}).get("loss_by_position", [])
        points = [(p, value / math.log(2)) for p, value in enumerate(losses) if value is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, label=_label(each.run.name), linewidth=1)
    return _finish(figure, axes, "position in the context", "bits per target")


def _draw_bits_per_byte(subjects: Sequence[Subject]) -> str:
    """Bars of the decoders that were scored on the same text as the first of them, beside its baselines."""
    decoders = [each for each in subjects if each.numbers.get("bits_per_byte") is not None]
    if not decoders:
        return ""
    first = decoders[0]
    per_byte = first.numbers["tokens"] / first.numbers["bytes"]
    bars = [
        (name, first.numbers[f"{name}_cross_entropy_bits"] * per_byte, "#a0aec0", "") for name in ("unigram", "bigram")
    ]
    for name, bits in first.numbers.get("compressors", {}).items():
        bars.append((name, bits["alone"], "#cbd5e0", ""))
        bars.append((f"{name}, given train", bits["given_train"], "#cbd5e0", "//"))
    for each, colour in zip(decoders, COLOURS * len(decoders), strict=False):
        if each.scored_text == first.scored_text:
            bars.append((_label(each.run.name), each.numbers["bits_per_byte"], colour, ""))
    figure, axes = _figure()
    names, values, colours, hatches = zip(*bars, strict=True)
    places = range(len(bars))
    drawn = axes.barh(places, values, color=colours, hatch=hatches, edgecolor="white")
    axes.set_yticks(places, names)
    axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("bits per byte")
    return draw_svg(figure)


def _draw_reliability(subjects: Sequence[Subject]) -> str:
    figure, axes = _figure()
    axes.plot([0, 1], [0, 1], color="#a0aec0", linestyle="--", linewidth=1)
    drawn = False
    for each, colour in zip(subjects, COLOURS * len(subjects), strict=False):
        bins = [b for b in each.numbers.get("curves", {}).get("reliability", []) if b["count"]]
        if bins:
            drawn = True
            total = sum(b["count"] for b in bins)
            sizes = [20 + 400 * b["count"] / total for b in bins]
            x, y = [b["confidence"] for b in bins], [b["accuracy"] for b in bins]
            axes.plot(x, y, color=colour, linewidth=1)
            axes.scatter(x, y, s=sizes, color=colour, alpha=0.5, label=_label(each.run.name))
    return _finish(figure, axes, "confidence", "accuracy") if drawn else ""


def _label(name: str) -> str:
    """A run's name as matplotlib shows it: "$" begins a formula there, and what begins with "_" is left out."""
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def _finish(figure: Any, axes: Any, x: str, y: str) -> str:
    handles, _ = axes.get_legend_handles_labels()
    if not handles:
        return ""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize="small")
    return draw_svg(figure)

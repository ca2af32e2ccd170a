"""The picture of scaling runs: loss and best size by training FLOPs."""

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from lm.metrics.scaling_law import ScalingLaw
from pipelines.cli.display import quantity
from pipelines.reporting.svg import INK, LINE, SERIES, SOFT, new_figure, style
from pipelines.scaling.scale_summary import ScaleSummary
from tokenizer.formats.whole_files import whole_file

SIZE = (11.0, 6.2)  # inches
RESOLUTION = 150  # dots per inch
POINTS = 60  # of a curve
WIDE = 1000  # largest x / smallest x above which only powers of ten have labels


def draw(summary: ScaleSummary, title: str, path: Path) -> None:
    """Write the picture of a summary, as PNG or SVG by the suffix of `path`. The file appears whole or not at all."""
    with whole_file(path) as partial, style():
        figure_of(summary, title).savefig(partial, format=path.suffix[1:], dpi=RESOLUTION, facecolor="white")


def figure_of(summary: ScaleSummary, title: str) -> Figure:
    """Return the picture of a summary."""
    figure = new_figure(*SIZE)
    loss, size = figure.subplots(1, 2)
    _draw_loss(loss, summary)
    _draw_size(size, summary)
    for axes, label in ((loss, "bits per byte, held out"), (size, "parameters as applied")):
        _label_decades(axes)
        axes.set_xlabel("training FLOPs")
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    figure.suptitle(title, fontsize="medium", x=0.01, ha="left")
    return figure


def _label_decades(axes: Axes) -> None:
    """Label powers of ten on the x axis; on a short axis, also 2 and 5 times each power."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > WIDE else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(lambda value, _: quantity(value, ""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_loss(axes: Axes, summary: ScaleSummary) -> None:
    """Draw the runs, the law of each size between its runs, the lowest loss of the law, and the prediction."""
    law = _law(summary)
    sizes = sorted({run.size for run in summary.runs})
    for size, colour in zip(sizes, SERIES, strict=False):
        runs = [run for run in summary.runs if run.size == size]
        axes.plot(
            [run.flops for run in runs],
            [run.bits_per_byte for run in runs],
            linestyle="",
            marker="o",
            markersize=5,
            color=colour,
            label=f"{quantity(size, '')} parameters",
        )
        tokens = np.geomspace(min(run.tokens for run in runs), max(run.tokens for run in runs), POINTS)
        axes.plot(6 * size * tokens, [law.loss(size, d) for d in tokens], color=colour, linewidth=1)
    flops = np.geomspace(min(run.flops for run in summary.runs), max(run.flops for run in summary.runs), POINTS)
    best = [(c, law.best_size(c)) for c in flops if 0 < law.best_size(c) < math.inf]
    if best:
        lowest = [law.loss(size, c / 6 / size) for c, size in best]
        axes.plot([c for c, _ in best], lowest, color=INK, linestyle="--", linewidth=1, label="best size by the law")
    held_out = summary.held_out
    predicted = held_out.predicted
    if predicted.value is not None and predicted.low is not None and predicted.high is not None:
        axes.errorbar(
            [held_out.run.flops * 1.12],  # beside the measurement
            [predicted.value],
            [[max(0.0, predicted.value - predicted.low)], [max(0.0, predicted.high - predicted.value)]],
            color=INK,
            marker="x",
            capsize=3,
            linestyle="",
            label="largest run, predicted from the others",
        )


def _draw_size(axes: Axes, summary: ScaleSummary) -> None:
    """Draw the best size by FLOPs with its interval, on a logarithmic scale that ends near the sizes of the runs."""
    sizes = [run.size for run in summary.runs]
    low, high = min(sizes) / 10, 100 * max(sizes)
    best = [each for each in summary.best if each.size.value is not None and each.size.value > 0]
    flops = [each.flops for each in best]
    bands = [
        (max(each.size.low or 0.0, low), high if each.size.high is None else min(each.size.high, high)) for each in best
    ]
    if best:
        values = [each.size.value for each in best]
        bottom, top = zip(*bands, strict=True)
        axes.fill_between(flops, bottom, top, color=SERIES[0], alpha=0.2, linewidth=0, label="95 % interval")
        axes.plot(flops, values, color=SERIES[0], marker="o", markersize=4, label="best size by the law")  # type: ignore[arg-type]
    most = max(run.flops for run in summary.runs)
    axes.axvline(most, color=SOFT, linestyle="--", linewidth=1, label="largest run; extrapolated beyond it")
    axes.plot(
        [run.flops for run in summary.runs], sizes, linestyle="", marker=".", markersize=4, color=INK, label="runs"
    )
    axes.set_yscale("log")
    axes.set_ylim(low, high)


def _law(summary: ScaleSummary) -> ScalingLaw:
    return ScalingLaw(**{name: number.value or 0.0 for name, number in summary.law.items()})

"""What the figures share: bars with labels, matrices with printed numbers, and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipelines.reporting.svg import INK, PALE, SERIES, style
from tokenizer.formats.whole_files import whole_file

SHADES = LinearSegmentedColormap.from_list("shades", ["#ffffff", SERIES[5]])
"""From white to a blue on which black numbers are readable."""
SMALL = 9.0  # points: the smallest text
DPI = 150
SUFFIXES = ("svg", "png")


def show_bars(
    axes: Axes,
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    marked: int | None = None,
    limit: float | None = None,
) -> None:
    """Draw horizontal bars from top to bottom, each with its label at the end; `marked` is hatched.

    `limit`: the longest bar that the axes have room for; by default the longest of `values`.
    """
    rows = range(len(names))
    bars = axes.barh(rows, values, height=0.7, color=SERIES[5], edgecolor=INK, linewidth=0.8)
    if marked is not None:
        bars[marked].set(hatch="///", facecolor=SERIES[4])
    axes.bar_label(bars, labels, padding=3, fontsize=SMALL + 1)
    axes.set_yticks(rows, [escaped(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, (limit or max(values)) * 1.3)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def show_matrix(
    axes: Axes, matrix: NDArray[np.float64], title: str, rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Draw a matrix with its numbers to two decimals. Larger magnitudes are darker."""
    hidden = np.isneginf(matrix)
    magnitudes = np.abs(np.where(hidden, 0.0, matrix))
    axes.imshow(magnitudes, cmap=SHADES, vmin=0, vmax=max(1.0, magnitudes.max()), aspect="equal")
    for (row, column), value in np.ndenumerate(matrix):
        text = "−∞" if hidden[row, column] else f"{value:.2f}".replace("-", "−")
        axes.text(column, row, text, ha="center", va="center", fontsize=SMALL + 1, color=INK)
    axes.set_title(title, fontsize=SMALL + 2)
    axes.set_xticks(range(len(columns)), columns, fontsize=SMALL)
    axes.set_yticks(range(len(rows)), rows, fontsize=SMALL)
    axes.tick_params(length=0)
    axes.spines[:].set_color(PALE)


def probability(value: float) -> str:
    """Return a probability to two decimals, or a smaller one to its first digit."""
    return f"{value:.2f}" if value >= 0.005 else f"{value:.1g}"


def escaped(text: str) -> str:
    """Return `text` for matplotlib, in which "$" begins a formula."""
    return text.replace("$", r"\$")


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.svg and NAME.png to a folder, on white; return both paths. Each file appears whole or not at all.

    Letters of the SVG are outlines, so it looks the same without matplotlib's fonts.
    """
    paths = [folder / f"{name}.{suffix}" for suffix in SUFFIXES]
    with style(), matplotlib.rc_context({"svg.fonttype": "path"}):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            with whole_file(path) as partial:
                figure.savefig(partial, format=path.suffix[1:], dpi=DPI, facecolor="white", metadata=metadata)
    return paths

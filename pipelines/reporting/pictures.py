"""Pictures of what an instrument finds: heat maps, bars, curves and arrows.

A result describes its pictures, and each draws itself. matplotlib is imported only when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Sequence[float]] | np.ndarray
Point = tuple[str, float, float]
"""Label, x and y"""
PAGE_INCHES, WRITTEN = 11.0, 320  # width of a picture, and cells of a heat map up to which values are written into them
MOST_LABELS, ROOM = 64, 100  # labels of an axis, and characters of horizontal labels in all maps
LONGEST_WORD = 10  # characters of a word in a cell


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture with a title, and a text that says how to read it."""

    title: str
    text: str = ""

    def figure(self) -> Figure:
        """Return a new figure."""
        raise NotImplementedError

    def save(self, path: Path | str) -> None:
        """Write the picture to a file; its suffix, such as .png or .svg, sets the format."""
        from pipelines.reporting.svg import style

        with style():
            self.figure().savefig(path, dpi=130, facecolor="white", bbox_inches="tight")


@dataclass(frozen=True, kw_only=True)
class HeatMap(Picture):
    """Values as colours, in one map or in several named maps side by side."""

    maps: Mapping[str, Rows]
    """Values (rows, columns) of each map; NaN is left empty"""
    rows: Sequence[str]
    columns: Sequence[str]
    x: str = ""
    """Name of the columns"""
    y: str = ""
    """Name of the rows"""
    words: Sequence[Sequence[str]] | None = None
    """Texts in the cells of the only map, instead of its values"""
    signed: bool = False
    """Whether values can be negative: blue above zero, red below"""
    most: float | None = None
    """Value of the darkest colour; by default the largest one"""
    digits: int = 2
    """Digits of the values after the decimal point"""

    def figure(self) -> Figure:
        from pipelines.reporting.svg import new_figure

        tall = len(self.rows)
        figure = new_figure(PAGE_INCHES, 1.5 + max(0.6, min(10.0, 0.34 * tall)) + 0.06 * _longest(self.columns))
        panels = figure.subplots(1, len(self.maps), squeeze=False, sharey=True)[0]
        for number, (axes, (name, values)) in enumerate(zip(panels, self.maps.items(), strict=True)):
            self._draw(figure, axes, np.asarray(values, dtype=float), number == 0)
            if len(self.maps) > 1:
                axes.set_title(name, fontsize=11)
        return figure

    def _draw(self, figure: Figure, axes: Axes, values: np.ndarray, first: bool) -> None:
        most = self.most or float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
        colours, least = ("RdBu", -most) if self.signed else ("Blues", 0.0)
        image = axes.imshow(values, cmap=colours, vmin=least, vmax=most, aspect="auto", interpolation="none")
        bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=9)
        crowded = len(self.maps) * sum(map(len, self.columns)) > ROOM
        axes.set_xticks(*_ticks(self.columns), rotation=90 if crowded or _longest(self.columns) > 3 else 0)
        axes.set_yticks(*_ticks(self.rows))
        axes.tick_params(length=0, labelsize=9)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_parse_math(False)
        axes.set_xlabel(self.x, fontsize=10)
        axes.set_ylabel(self.y if first else "", fontsize=10)
        if values.size * len(self.maps) <= WRITTEN:
            self._write(axes, values, most)

    def _write(self, axes: Axes, values: np.ndarray, most: float) -> None:
        """Write the values, or the words, into the cells."""
        size = max(6.0, min(9.0, 90.0 / len(self.columns) / len(self.maps)))
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                text = f"{value:z.{self.digits}f}" if self.words is None else _shortened(self.words[row][column])
                colour = "white" if abs(value) > 0.6 * most else "black"
                axes.text(
                    column, row, text, ha="center", va="center", fontsize=size, color=colour, parse_math=False,
                    clip_on=True,
                )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Bars(Picture):
    """A horizontal bar for each value, from the top."""

    values: Mapping[str, float]
    x: str
    """Name and unit of the values"""
    intervals: Mapping[str, tuple[float, float]] | None = None
    """Lower and upper ends"""

    def figure(self) -> Figure:
        from pipelines.reporting.svg import INK, SERIES, SOFT, new_figure

        figure = new_figure(PAGE_INCHES, 1.0 + 0.27 * len(self.values))
        axes = figure.subplots()
        places, values = range(len(self.values)), list(self.values.values())
        axes.barh(places, values, color=[SERIES[0] if value >= 0 else SERIES[1] for value in values], height=0.7)
        if self.intervals is not None:
            ends = [self.intervals[name] for name in self.values]
            axes.hlines(places, *zip(*ends, strict=True), color=INK, linewidth=1.2)
        axes.axvline(0.0, color=SOFT, linewidth=0.8)
        axes.set_yticks(places, list(self.values), fontsize=9, parse_math=False)
        axes.invert_yaxis()
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.patch.set_alpha(0.0)
        axes.set_xlabel(self.x, fontsize=10)
        return figure


@dataclass(frozen=True, kw_only=True)
class Curves(Picture):
    """Lines over the same x, in one panel or in several named panels that share the x axis."""

    x: Sequence[float]
    panels: Mapping[str, Mapping[str, Sequence[float]]]
    """Lines by name in each panel; a panel's name labels its y axis"""
    label: str
    """Name and unit of x"""
    logarithmic: bool = False
    """Whether the x axis is logarithmic"""

    def figure(self) -> Figure:
        from pipelines.cli.display import quantity
        from pipelines.reporting.svg import SERIES, new_figure

        figure = new_figure(PAGE_INCHES, 0.8 + 2.4 * len(self.panels))
        every = figure.subplots(len(self.panels), 1, squeeze=False, sharex=True)[:, 0]
        for axes, (name, lines) in zip(every, self.panels.items(), strict=True):
            for number, (line, values) in enumerate(lines.items()):
                colour, dashes = SERIES[number % len(SERIES)], "-" if number < len(SERIES) else "--"
                axes.plot(self.x, values, dashes, color=colour, label=line, marker="o", markersize=3.5, linewidth=1.5)
            axes.set_ylabel(name, fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(linewidth=0.8)
            axes.patch.set_alpha(0.0)
            axes.tick_params(labelsize=9)
            if len(lines) > 1:
                axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        if self.logarithmic:
            every[-1].set_xscale("log")
        elif all(float(x).is_integer() for x in self.x):
            every[-1].xaxis.get_major_locator().set_params(integer=True)
        every[-1].xaxis.set_major_formatter(lambda value, _: quantity(value, "").strip())
        every[-1].set_xlabel(self.label, fontsize=10)
        figure.align_ylabels()
        return figure


@dataclass(frozen=True, kw_only=True)
class Arrows(Picture):
    """Arrows between labelled points of a plane, a colour for each group."""

    groups: Sequence[Sequence[tuple[Point, Point]]]
    """The beginning and the end of each arrow"""
    x: str
    y: str

    def figure(self) -> Figure:
        from pipelines.reporting.svg import INK, PAGE, SERIES, new_figure

        figure = new_figure(PAGE_INCHES, 6.0)
        axes = figure.subplots()
        for number, group in enumerate(self.groups):
            looks = {
                "arrowstyle": "->",
                "color": SERIES[number % len(SERIES)],
                "linewidth": 1.6,
                "shrinkA": 0,
                "shrinkB": 0,
            }
            for begin, end in group:
                axes.annotate("", end[1:], begin[1:], arrowprops=looks)
        points = {point for group in self.groups for arrow in group for point in arrow}
        axes.scatter([x for _, x, _ in points], [y for *_, y in points], s=12, color=INK)
        looks = {"facecolor": PAGE, "edgecolor": "none", "alpha": 0.7, "pad": 0.6}
        for label, x, y in sorted(points):
            axes.annotate(
                label, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=9, bbox=looks, parse_math=False
            )
        axes.margins(0.1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.patch.set_alpha(0.0)
        axes.tick_params(labelsize=9)
        axes.set_xlabel(self.x, fontsize=10)
        axes.set_ylabel(self.y, fontsize=10)
        return figure


def _ticks(labels: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the places and labels of an axis: at most MOST_LABELS of `labels`, evenly spaced."""
    places = [round(place) for place in np.linspace(0, len(labels) - 1, min(len(labels), MOST_LABELS))]
    return places, [labels[place] for place in places]


def _shortened(word: str) -> str:
    return word if len(word) <= LONGEST_WORD else f"{word[: LONGEST_WORD - 1]}…"


def _longest(labels: Sequence[str]) -> int:
    return max(map(len, labels), default=0)

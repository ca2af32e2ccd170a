"""The picture of a sweep: bits per byte, bytes per token and the embedding's share, by number of entries."""

from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.reporting.svg import INK, LINE, SERIES, SOFT, new_figure, style
from pipelines.sweep.sweep_summary import BestVocabulary, SweepSummary, SweptVocabulary
from tokenizer.formats.whole_files import whole_file
from tokenizer.kinds.registry import KINDS

# The last of the seven kinds of texts has the colour of the first. Integers are compared with none of them.
ORDER = dict.fromkeys(("bpe", "superwords", "wordpiece", "unigram", "characters", "words", "character-bpe", *KINDS))
MARKERS: dict[str, str] = dict(zip(ORDER, cycle("o*s^DvP"), strict=False))
COLOURS: dict[str, str] = dict(zip(MARKERS, cycle(SERIES), strict=False))
RING: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 13, "fillstyle": "none"}
SIZE = (8.0, 7.0)  # inches
RESOLUTION = 150  # dots per inch


def draw(summary: SweepSummary, title: str, path: Path) -> None:
    """Write the picture of a summary as PNG. The file appears whole or not at all."""
    with whole_file(path) as partial, style():
        figure_of(summary, title).savefig(partial, format="png", dpi=RESOLUTION, facecolor="white")


def figure_of(summary: SweepSummary, title: str) -> Figure:
    """Return the picture of a summary; with one seed it has no intervals."""
    figure = new_figure(*SIZE)
    axes: dict[str, Axes] = figure.subplot_mosaic([["bits", "bits"], ["bytes", "share"]], height_ratios=(1.7, 1))
    for kind in dict.fromkeys(row.kind for row in summary.rows):
        rows = [row for row in summary.rows if row.kind == kind]
        _draw_bits(axes["bits"], kind, rows, summary.best[kind])
        sizes = [row.size for row in rows]
        axes["bytes"].plot(
            sizes, [row.bytes_per_token for row in rows], color=COLOURS[kind], marker=MARKERS[kind], markersize=4
        )
    _draw_tao(axes["bits"], summary)
    shares = {row.size: 100 * row.embedding_share for row in summary.rows}  # equal for all kinds
    sizes = sorted(shares)
    axes["share"].plot(sizes, [shares[size] for size in sizes], color=SOFT, marker="o", markersize=4)
    labels = {"bits": "bits per byte, held out", "bytes": "bytes per token", "share": "embedding, % of all"}
    for name, label in labels.items():
        _finish(axes[name], sizes, label)
    ring = "lowest of its kind, or not significantly worse"
    if not summary.degrees_of_freedom:
        ring = "lowest of its kind in one run: no test of differences"
    axes["bits"].plot([], [], label=ring, **RING, color=SOFT)
    axes["bits"].legend(frameon=False, fontsize="small")
    axes["bits"].set_title(title, fontsize="medium", loc="left")
    axes["share"].set_ylim(0, 100)
    return figure


def _draw_bits(axes: Axes, kind: str, rows: list[SweptVocabulary], best: BestVocabulary) -> None:
    """Draw means with their intervals if they have one, and each run as a dot. Rings mark what is `marked`."""
    colour, sizes = COLOURS[kind], [row.size for row in rows]
    means = [row.bits_per_byte for row in rows]
    margins = [row.margin for row in rows if row.margin is not None] or None
    look: dict[str, Any] = {"color": colour, "marker": MARKERS[kind], "markersize": 5, "capsize": 3, "linewidth": 1.4}
    axes.errorbar(sizes, means, margins, label=kind, **look)
    for row in rows:
        runs = list(row.runs.values())
        axes.plot([row.size] * len(runs), runs, linestyle="", marker=".", markersize=3, color=INK, alpha=0.5)
    good = {marked.size for marked in best.marked}
    points = [(size, mean) for size, mean in zip(sizes, means, strict=True) if size in good]
    axes.plot(*zip(*points, strict=True), **RING, color=colour)


def _draw_tao(axes: Axes, summary: SweepSummary) -> None:
    tao = summary.tao_2024
    label = f"Tao et al. 2024{', extrapolated' if tao.extrapolated else ''}: {tao.size:,}"
    axes.axvline(tao.size, color=SOFT, linestyle="--", linewidth=1, label=label)


def _finish(axes: Axes, sizes: list[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [_short(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("entries (1k = 1,024)" if any(size % 1024 == 0 for size in sizes) else "entries")
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)


def _short(size: int) -> str:
    """Return a size as 512, 2k or 64k (1k = 1,024) if it is a power of two, otherwise in full."""
    return f"{size // 1024}k" if size % 1024 == 0 else f"{size:,}"

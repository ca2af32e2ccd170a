"""The picture of benchmarks.mixers: held-out loss by training tokens."""

from pathlib import Path

from matplotlib.axes import Axes

from benchmarks.mixer_page import by_mixer, mean_point
from benchmarks.mixer_training import POINTS
from pipelines.reporting.svg import LINE, SERIES, new_figure, style
from tokenizer.formats.whole_files import whole_file

SIZE = (11.0, 6.2)  # inches
RESOLUTION = 150  # dots per inch
STYLES = ("-", "--", ":")  # with the colours of SERIES: enough for all mixers
PARTS = ("quality", "long")  # those with curves in bits per byte


def draw(results: dict, device: str, path: Path) -> None:
    """Draw the mean learning curves of the parts in PARTS that are measured on a device: at least one.

    A mixer has the same colour and dashes in all parts.
    """
    parts = [results[f"{part} {device}"] for part in PARTS if f"{part} {device}" in results]
    names = dict.fromkeys(row["job"]["mixers"] for part in parts for row in part["rows"])
    looks = {
        name: {"color": SERIES[number % len(SERIES)], "linestyle": STYLES[number // len(SERIES) % len(STYLES)]}
        for number, name in enumerate(names)
    }
    figure = new_figure(*SIZE)
    with whole_file(path) as partial, style():
        for axes, part in zip(figure.subplots(1, len(parts), squeeze=False, sharey=True)[0], parts, strict=True):
            _draw_curves(axes, part["rows"], looks)
        figure.savefig(partial, format="png", dpi=RESOLUTION, facecolor="white")


def _draw_curves(axes: Axes, rows: list[dict], looks: dict[str, dict]) -> None:
    """Draw a curve for each mixer; the legend has them in the order of their ends."""
    tokens = rows[0]["job"]["tokens"]
    curves = {}
    for name, jobs in by_mixer(rows).items():
        means = [(tokens * point / POINTS, mean_point(jobs, point)) for point in range(1, POINTS + 1)]
        curves[name] = [(at, bits) for at, bits in means if bits is not None]
    drawn = {name: points for name, points in curves.items() if points}
    for name, points in sorted(drawn.items(), key=lambda item: item[1][-1][1], reverse=True):
        axes.plot(*zip(*points, strict=True), label=name, linewidth=1.8, **looks[name])
    axes.set_xlabel("million training bytes")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g}")
    axes.set_ylabel("bits per byte, held out")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(facecolor="white", edgecolor="none", fontsize="small", loc="upper right", ncols=2)

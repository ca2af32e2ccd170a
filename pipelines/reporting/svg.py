"""matplotlib figures as SVG for a page: real text, unique ids, a title, and colours that follow light and dark mode."""

import io
import re
import warnings
from collections import Counter
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.cli.display import quantity

# Figures are drawn in these colours, which `draw_svg` replaces with the page's variables for light and dark mode.
# Okabe and Ito's colours, which people with any colour vision can distinguish; the orange is darker, to show on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#56b4e9")
INK, SOFT, LINE, PAGE = "#1a202c", "#4a5568", "#e2e8f0", "#fefefe"
PALE, PALER = "#a0aec0", "#cbd5e0"
VARIABLES = {
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)},
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    LINE: "var(--line)",
    PAGE: "var(--page)",
    PALE: "var(--pale)",
    PALER: "var(--paler)",
}
WIDTH, HEIGHT = 5.6, 3.9  # of a plot, inches
STYLE = {
    "font.size": 12,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "grid.color": LINE,
    "legend.labelcolor": INK,
    "hatch.color": PAGE,
    "svg.fonttype": "none",
    "svg.hashsalt": "bytelm",  # the same run gives the same page
}


class Plot(NamedTuple):
    """A plot of the page, with its title and explanation. `name` is unique on the page."""

    name: str
    title: str
    text: str
    svg: str


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure with a transparent background. `width` and `height` are in inches."""
    matplotlib.use("Agg")
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0.0)
    return figure


def new_axes(height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return a figure of a plot's width with empty axes."""
    figure = new_figure(WIDTH, height)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.8)
    axes.set_axisbelow(True)
    axes.patch.set_alpha(0.0)
    return figure, axes


def label_axes(figure: Figure, axes: Axes, x: str, y: str) -> Figure | None:
    """Label the axes, abbreviate their numbers (k, M) and add a legend; return the figure, or None if it is empty."""
    handles, _ = axes.get_legend_handles_labels()
    if not handles:
        return None
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: quantity(value, "").strip())
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize="small")
    return figure


def style() -> AbstractContextManager[None]:
    """Return a context in which matplotlib draws in the style of the page."""
    return matplotlib.rc_context(STYLE)


def draw_svg(figure: Figure, name: str, title: str, crop: bool = False) -> str:
    """Return `figure` as an <svg> whose ids begin with `name`, which must be unique on the page.

    `crop` leaves out the empty space around the drawing.
    """
    out = io.StringIO()
    with style(), warnings.catch_warnings():
        # The page uses the reader's fonts, which have more letters than matplotlib's font.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        box = "tight" if crop else None
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None}, bbox_inches=box, pad_inches=0.05)
    svg = out.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = _with_unique_ids(re.sub("<[^>]*>", lambda tag: _for_page(tag[0], name), svg))
    label = f'<title id="{name}-title">{escape(title)}</title>'
    return re.sub(r"<svg([^>]*)>", rf'<svg\1 role="img" aria-labelledby="{name}-title">{_literal(label)}', svg, count=1)


def as_image(svg: str) -> str:
    """Return a drawing of `draw_svg` with the colours and the font of the page inside, for use as an image."""
    colours = (Path(__file__).parent / "colours.css.j2").read_text(encoding="utf-8")
    return svg.replace(">", f"><style>{colours}</style>", 1)


def _for_page(tag: str, name: str) -> str:
    """Return a tag with ids that begin with `name`, and with the font and the colours of the page."""
    tag = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font)", tag)
    return re.sub("|".join(VARIABLES), lambda match: VARIABLES[match[0]], tag)


def _with_unique_ids(svg: str) -> str:
    """Return `svg` with repeated ids numbered: matplotlib gives equal images, such as colour bars, the same id."""
    seen: Counter[str] = Counter()

    def number_id(match: re.Match[str]) -> str:
        seen[match[1]] += 1
        return match[0] if seen[match[1]] == 1 else f' id="{match[1]}-{seen[match[1]]}"'

    return re.sub(r' id="([^"]*)"', number_id, svg)


def _literal(text: str) -> str:
    """Return `text` escaped for use as the replacement of a regular expression."""
    return text.replace("\\", r"\\")

"""Write the page of `bytelm entropy`: numbers, plots and definitions, rendered by entropy.html.j2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterMathtext

from pipelines import own_version
from pipelines.cli.display import count_text
from pipelines.cli.escapes import safe
from pipelines.evaluation.entropy_results import TextEntropy, WordNumbers
from pipelines.evaluation.entropy_tables import (
    divergence_table,
    information_table,
    ngram_table,
    rate_table,
    word_table,
)
from pipelines.evaluation.text_entropy import DEFINITIONS
from pipelines.files import write_whole
from pipelines.reporting.svg import PALE, SERIES, Plot, draw_svg, label_axes, new_axes, style

LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")


def write_entropy_page(numbers: TextEntropy, path: Path) -> None:
    """Write the page about the numbers of `text_entropy` to `path`, whole or not at all."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    with style():
        plots = entropy_plots(numbers)
    page = environment.get_template("entropy.html.j2").render(
        numbers=numbers,
        facts=_facts(numbers),
        ngrams=ngram_table(numbers),
        information=information_table(numbers),
        rates=rate_table(numbers),
        words=word_table(numbers),
        against=divergence_table(numbers) if numbers.against else None,
        plots=plots,
        definitions=DEFINITIONS,
    )
    write_whole(path, safe(page))


def _facts(numbers: TextEntropy) -> list[tuple[str, list[str]]]:
    """Return the rows of the first table."""
    unit = numbers.unit
    rows = [
        ("documents", f"{numbers.documents:,}"),
        ("bytes", f"{numbers.bytes:,}"),
        *([(unit, f"{numbers.symbols:,}")] if unit != "bytes" else ()),
        (f"different {unit}", f"{numbers.alphabet:,}"),
        *([(f"bytes per {unit[:-1]}", f"{numbers.bytes_per_symbol:.3f}")] if unit != "bytes" else ()),
        ("sample for the entropy rate", count_text(numbers.entropy_rate.sample_bytes, "byte")),
        ("time", ", ".join(f"{name.replace('_', ' ')} {time:.1f} s" for name, time in numbers.seconds.items())),
        ("bytelm", own_version()),
    ]
    return [(name, [value]) for name, value in rows]


def entropy_plots(numbers: TextEntropy) -> dict[str, Plot]:
    """Return the plots that have data, by name."""
    drawn = {
        "ngrams": ("Conditional entropy", _NGRAMS, _draw_ngrams(numbers)),
        "information": ("Mutual information by distance", _INFORMATION, _draw_information(numbers)),
        "rates": ("Entropy rate by sample size", _RATES, _draw_rates(numbers)),
        "zipf": ("Frequency by rank", _ZIPF, _draw_zipf(numbers.words)),
        "heaps": ("Distinct words by length", _HEAPS, _draw_heaps(numbers.words)),
    }
    return {
        name: Plot(name, title, text, draw_svg(figure, f"plot-{name}", title))
        for name, (title, text, figure) in drawn.items()
        if figure is not None
    }


def _draw_ngrams(numbers: TextEntropy) -> Figure | None:
    figure, axes = new_axes()
    rows = numbers.ngrams
    if not rows:
        return None
    first_bad = next((place for place, row in enumerate(rows) if not row.reliable), len(rows))
    lines = {"h_n": "conditional", "MM of h_n": "conditional_miller_madow", "true": "true_conditional"}
    for number, (label, key) in enumerate(lines.items()):
        if getattr(rows[0], key) is None:
            continue
        points = [(row.n, getattr(row, key)) for row in rows]
        look: dict[str, Any] = {"color": SERIES[number], "marker": MARKERS[number], "markersize": 5}
        axes.plot(*_columns(points[:first_bad]), linestyle=LINES[number], label=label, **look)
        # Unreliable points are hollow and have no line.
        axes.plot(*_columns(points[first_bad:]), linestyle="", markerfacecolor="none", **look)
    axes.set_ylim(bottom=0)
    axes.set_xticks([row.n for row in rows])
    return label_axes(figure, axes, "n", f"bits per {numbers.unit[:-1]}")


def _draw_information(numbers: TextEntropy) -> Figure | None:
    found = numbers.mutual_information
    if not found.distances:
        return None
    figure, axes = new_axes()
    curves = {
        "text": (found.text, SERIES[0]),
        "shuffled within documents": (found.shuffled_within, SERIES[1]),
        "shuffled: bias": (found.shuffled, PALE),
        **({"true": (found.true, SERIES[2])} if found.true else {}),
    }
    for (label, (values, colour)), line in zip(curves.items(), LINES, strict=False):
        shown = [value if value > 0 else np.nan for value in values]
        axes.plot(found.distances, shown, color=colour, linestyle=line, label=label)
    lowest = min([value for value in (*found.text, *found.shuffled) if value > 0], default=None)
    if lowest is None:
        return None
    axes.set_ylim(bottom=lowest / 3)
    return _logarithmic(label_axes(figure, axes, f"distance, {numbers.unit}", "bits"))


def _draw_rates(numbers: TextEntropy) -> Figure | None:
    figure, axes = new_axes()
    rate = numbers.entropy_rate
    for number, (name, values) in enumerate(rate.bits_per_byte.items()):
        points = [(size, value) for size, value in zip(rate.sizes, values, strict=True) if value is not None]
        look: dict[str, Any] = {"color": SERIES[number % len(SERIES)], "linestyle": LINES[number % len(LINES)]}
        axes.plot(*_columns(points), marker=MARKERS[number % len(MARKERS)], markersize=5, label=name, **look)
    if rate.true is not None:
        axes.axhline(rate.true, color=PALE, label="true")
    axes.set_ylim(bottom=0)
    axes.set_xscale("log")
    figure_or_none = label_axes(figure, axes, "bytes of sample", "bits per byte")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    return figure_or_none


def _draw_zipf(words: WordNumbers) -> Figure | None:
    if not words.ranks:
        return None
    figure, axes = new_axes()
    axes.plot(words.ranks, words.rank_counts, color=SERIES[0], marker=".", linestyle="", label="text")
    if words.zipf:
        ranks = np.array([rank for rank in words.ranks if rank <= words.zipf.ranks], dtype=np.float64)
        exponent, every = words.zipf.exponent, np.arange(1, words.zipf.ranks + 1, dtype=np.float64)
        total = words.zipf.occurrences / (every**-exponent).sum()
        axes.plot(ranks, total * ranks**-exponent, color=SERIES[1], linestyle="--", label=f"fit, s = {exponent:.2f}")
    return _logarithmic(label_axes(figure, axes, "rank", "occurrences"))


def _draw_heaps(words: WordNumbers) -> Figure | None:
    if not words.growth:
        return None
    figure, axes = new_axes()
    lengths, distinct = _columns(words.growth)
    axes.plot(lengths, distinct, color=SERIES[0], marker=".", linestyle="", label="text")
    if heaps := words.heaps:
        fitted = [heaps.factor * length**heaps.exponent for length in lengths]
        axes.plot(lengths, fitted, color=SERIES[1], linestyle="--", label=f"fit, β = {heaps.exponent:.2f}")
    return _logarithmic(label_axes(figure, axes, words.kind, "distinct"))


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _logarithmic(figure: Figure | None) -> Figure | None:
    """Return the figure with logarithmic axes, labelled in powers of ten."""
    if figure is not None:
        for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
            axis.set_major_formatter(LogFormatterMathtext())
    return figure


_NGRAMS = (
    "Bits of a symbol given the n - 1 symbols before it. Hollow points are unreliable: the text has too few n-grams, "
    "and the true values are higher."
)
_INFORMATION = (
    "Mutual information of two symbols at a distance in one document. The grey line is the bias of the estimate. Where "
    "the curve of the text meets that of the text shuffled within documents, order adds no information."
)
_RATES = (
    "Estimates of the bits per byte of an endless text. Compressors give upper bounds. A curve that still "
    "falls has not converged."
)
_ZIPF = "Occurrences of words by rank, and Zipf's law fitted to the words that occur at least 10 times."
_HEAPS = "The number of distinct words among the first n words of the text, and Heaps' law."

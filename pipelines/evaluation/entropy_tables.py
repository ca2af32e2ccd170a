"""Arrange the numbers of `bytelm entropy` in tables, for the terminal and the page."""

from pipelines.cli.display import quantity
from pipelines.evaluation.entropy_results import TextEntropy
from pipelines.evaluation.measurement import Table
from pipelines.evaluation.text_entropy import CLASSIC, PPM, SLOPE

SHOWN_DISTANCES = (1, 2, 5, 10, 100, 1000, 10_000, 100_000)
NONE = "-"


def ngram_table(numbers: TextEntropy) -> Table:
    """Return a row for each n; an asterisk marks a coverage below 95 %."""
    rows = numbers.ngrams
    columns = {
        "H_n": "block",
        "MM of H_n": "block_miller_madow",
        "true H_n": "true_block",
        "h_n": "conditional",
        "MM of h_n": "conditional_miller_madow",
        "true h_n": "true_conditional",
    }
    shown = {head: key for head, key in columns.items() if rows and getattr(rows[0], key) is not None}
    cells = [
        [
            quantity(row.distinct, "").strip(),
            f"{100 * row.coverage:.2f} %{' ' if row.reliable else '*'}",
            *(f"{getattr(row, key):.4f}" for key in shown.values()),
        ]
        for row in rows
    ]
    return Table(
        "",
        "n",
        ["distinct", "coverage ", *shown],
        [(str(row.n), each) for row, each in zip(rows, cells, strict=True)],
    )


def information_table(numbers: TextEntropy) -> Table:
    """Return a row for each of SHOWN_DISTANCES; "order" is the text minus the text shuffled within documents."""
    information = numbers.mutual_information
    rows = []
    for place, distance in enumerate(information.distances):
        if distance in SHOWN_DISTANCES:
            values = [getattr(information, key)[place] for key in ("text", "shuffled", "shuffled_within")]
            values += [
                values[0] - values[2],
                *(information.true[place : place + 1] if information.true else ()),
            ]
            rows.append((f"{distance:,}", [f"{value:.6f}" for value in values]))
    heads = ["bits", "shuffled", "within documents", "order", *(["true"] if information.true else ())]
    return Table("", "distance", heads, rows)


def rate_table(numbers: TextEntropy) -> Table:
    """Return a row for each estimate of the entropy rate, and a column for each size of the sample."""
    rate, unit = numbers.entropy_rate, numbers.unit[:-1]
    per_unit = numbers.unit != "bytes"
    rows = []
    for name in dict.fromkeys((SLOPE, CLASSIC, PPM, *rate.bits_per_byte)):
        values = rate.bits_per_byte.get(name, [None] * len(rate.sizes))
        in_units = [None if values[-1] is None else values[-1] * numbers.bytes_per_symbol] if per_unit else []
        rows.append((name, [NONE if value is None else f"{value:.3f}" for value in (*values, *in_units)]))
    if rate.true is not None:
        rows.append(("true", [f"{rate.true:.3f}"] * (len(rate.sizes) + per_unit)))
    heads = [quantity(size, "B") for size in rate.sizes]
    return Table("", "bits per byte", [*heads, *([f"per {unit}"] if per_unit else ())], rows)


def word_table(numbers: TextEntropy) -> Table:
    """Return the number and entropy of words, and the fits of Zipf's and Heaps' laws."""
    words = numbers.words
    rows = [
        (words.kind, [f"{words.count:,}", ""]),
        ("distinct", [f"{words.distinct:,}", ""]),
        ("entropy, bits", [f"{words.entropy:.3f}", ""]),
    ]
    zipf, heaps = words.zipf, words.heaps
    fit = f"{zipf.ranks:,} ranks, distance {zipf.distance:.3f}" if zipf else "too few"
    rows.append(("Zipf exponent", [f"{zipf.exponent:.3f}" if zipf else NONE, fit]))
    fit = f"K = {heaps.factor:.3g}, deviation {100 * heaps.deviation:.1f} %" if heaps else "too few"
    rows.append(("Heaps exponent", [f"{heaps.exponent:.3f}" if heaps else NONE, fit]))
    return Table("", "word frequencies", ["", "fit"], rows)


def divergence_table(numbers: TextEntropy) -> Table:
    """Return the divergences from the other corpus."""
    against = numbers.against
    assert against is not None
    found = {"unigrams": against.unigrams, "bigrams": against.bigrams}
    rows = [(name, [f"{number:.4f}" for number in (each.kl, each.reverse_kl, each.js)]) for name, each in found.items()]
    heads = ["D(text || other)", "D(other || text)", "JS"]
    return Table("", f"other: {against.corpus}", heads, rows)


def tables(numbers: TextEntropy) -> list[Table]:
    """Return the tables that have rows."""
    tables = [ngram_table(numbers), information_table(numbers), rate_table(numbers), word_table(numbers)]
    if numbers.against:
        tables.append(divergence_table(numbers))
    return [table for table in tables if table.rows]

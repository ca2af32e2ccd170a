"""The results in an entry of evaluation.json, and its numbers as people read them."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from pipelines.cli.display import count_text, perplexity_text
from pipelines.evaluation.core import (
    Difference,
    Divergences,
    Intervals,
    Numbers,
    Settings,
    TrainedText,
)
from pipelines.evaluation.measurement import Number, Result
from pipelines.evaluation.measurements import kinds

OVERFLOW = "A perplexity above 1.8e308 is written as a power of e. In JSON it is null, because no float holds it."
CORE = (Numbers, TrainedText, Divergences, Intervals, Difference)


@cache
def results() -> tuple[type[Result], ...]:
    """Return the kinds of results in an entry, in the order of their numbers."""
    return (*CORE, *(kind.result for kind in kinds()), Settings)


@cache
def numbers() -> dict[str, Number]:
    """Return the entries of a split that are numbers to read, by key."""
    return {name: number for result in results() if not result.key for name, number in result.numbers().items()}


def results_of(entry: Mapping[str, Any]) -> list[Result]:
    """Return the results in the entry of a split; ValueError if one is damaged, or Numbers missing."""
    found: list[Result | None] = []
    for kind in results():
        if kind.key:
            found.append(kind.from_json(entry[kind.key]) if kind.key in entry else None)
        elif kind is Numbers or any(entry.get(name) is not None for name in kind.__dataclass_fields__):
            found.append(kind.from_json(entry))
    return [each for each in found if each is not None]


def sentences_of(entry: Mapping[str, Any], above: bool | None = None) -> list[str]:
    """Return the sentences about the results of a split; with `above`, only the ones above or below the numbers."""
    chosen = [each for each in results_of(entry) if above is None or each.above == above]
    return [sentence for each in chosen for sentence in each.sentences(entry["tokens"])]


def by_sentence(sentences: Mapping[str, list[str]]) -> list[str]:
    """Return the sentences about texts, by the name of the text. Sentences that do not hold for all name theirs."""
    names: dict[str, list[str]] = {}
    for name, of_name in sentences.items():
        for sentence in of_name:
            names.setdefault(sentence, []).append(name)
    return [
        sentence if len(found) == len(sentences) else f"{' and '.join(found)}: {sentence}"
        for sentence, found in names.items()
    ]


def in_words(key: str) -> str:
    """Return the name of a number of evaluation.json, with its unit."""
    return numbers()[key].name if key in numbers() else key.replace("_", " ")


def format_number(key: str, value: Any) -> str:
    """Return the value of a number of evaluation.json in its usual format; "–" for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.{numbers()[key].digits if key in numbers() else 4}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def overflows(entry: Mapping[str, Any]) -> list[str]:
    """Return the keys of the perplexities that are None because no float holds them."""
    exponentials = {key: number.exp_of for key, number in numbers().items() if number.exp_of}
    return [
        key
        for key, logarithm in exponentials.items()
        if key in entry and entry[key] is None and entry.get(logarithm) is not None
    ]


def with_overflow(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a split, with `overflow` if a perplexity is None because no float holds it."""
    found = overflows(entry)
    return entry | ({"overflow": found} if found else {})


def value_of(key: str, entry: Mapping[str, Any]) -> str:
    """Return the value of a number of a split in its usual format."""
    if key in overflows(entry):
        return perplexity_text(entry[numbers()[key].exp_of], ",.2f")
    return format_number(key, entry.get(key))


def with_interval(key: str, entry: Mapping[str, Any]) -> str:
    """Return the value of a number of a split with its 95 % interval, if it has one: "1.20 (1.17 to 1.23)"."""
    value, intervals = value_of(key, entry), entry.get("intervals") or {}
    found = intervals.get(key) if key in numbers() else None
    if not found:
        return value
    if None in found:
        low, high = (perplexity_text(nats, ",.2f") for nats in intervals[numbers()[key].exp_of])
    else:
        low, high = (format_number(key, bound) for bound in found)
    return f"{value} ({low} to {high})"


def rows_of(
    entries: list[dict[str, Any]], cell: Callable[[str, dict[str, Any]], str] = value_of
) -> list[tuple[str, list[str]]]:
    """Return (key, a cell for each of `entries`) for every number that occurs in them, and further rows of results."""
    known = [*numbers(), *(key for entry in entries for key, value in entry.items() if isinstance(value, int | float))]
    rows = [(key, [cell(key, entry) for entry in entries]) for key in dict.fromkeys(known) if _occurs(key, entries)]
    further = [dict(row for result in results_of(entry) for row in result.rows().items()) for entry in entries]
    names = dict.fromkeys(name for column in further for name in column)
    return [*rows, *((name, [column.get(name, format_number(name, None)) for column in further]) for name in names)]


def not_held_out(numbers: dict[str, Any], run: str) -> str | None:
    """Return a sentence if a part of a split was also in the training text of `run`; None otherwise."""
    if not numbers.get("trained_documents"):
        return None
    documents = count_text(numbers["trained_documents"], "document")
    return (
        f"{numbers['trained_share']:.1%} of this text ({documents}) was also in the training text of {run}: the loss "
        "on it is not that of held-out text."
    )


def definitions(entries: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return (name, key in evaluation.json, definition) of the numbers in the entries."""
    own = [(number.name, key, number.definition) for key, number in numbers().items() if _occurs(key, entries)]
    further = dict.fromkeys(type(result) for entry in entries for result in results_of(entry) if result.rows())
    return [*own, *((each.name, kind.key, each.definition) for kind in further for each in kind.more_definitions)]


def _occurs(key: str, entries: list[dict[str, Any]]) -> bool:
    return any(entry.get(key) is not None or key in overflows(entry) for entry in entries)

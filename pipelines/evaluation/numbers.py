"""The results of an evaluation as people read them: names, values with intervals, sentences and definitions."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from pipelines.cli.display import perplexity_text
from pipelines.evaluation.measurement import Number, Result
from pipelines.evaluation.measurements import kinds
from pipelines.evaluation.measurements.predictions import PER_BYTE
from pipelines.tasks import task_class, task_names
from pipelines.tasks.comparison import Comparison
from pipelines.tasks.seeds import Seeds
from pipelines.tasks.task import TaskSettings

if TYPE_CHECKING:
    from pipelines.evaluation.results import SplitEvaluation

OVERFLOW = "A perplexity above 1.8e308 is written as a power of e. In JSON it is null, because no float holds it."


@cache
def measured_results() -> tuple[type[Result], ...]:
    """Return the kinds of results of language models, in the order of their numbers."""
    return tuple(kind.result for kind in kinds())


@cache
def task_results(task: str) -> tuple[type[Result], ...]:
    """Return the kinds of results of a task, in the order of their numbers."""
    return (*task_class(task).kinds, Comparison, Seeds, TaskSettings)


@cache
def results() -> tuple[type[Result], ...]:
    """Return all kinds of results, in the order of their numbers."""
    of_tasks = (kind for task in task_names() for kind in task_results(task))
    return tuple(dict.fromkeys((*measured_results(), *of_tasks)))


@cache
def numbers() -> dict[str, Number]:
    """Return the entries of a split that are numbers to read, by key; the first kind with a key defines it."""
    known: dict[str, Number] = {}
    for result in (kind for kind in results() if not kind.key):
        for name, number in result.numbers().items():
            known.setdefault(name, number)
    return known


def numbers_of(evaluations: Sequence["SplitEvaluation"]) -> dict[str, Number]:
    """Return `numbers`, with the names and definitions of the evaluations.

    If kinds of results share a key, the first result in the evaluations that has the key defines it.
    """
    own = [result.numbers() for one in evaluations for result in one.results if not result.key]
    first = {key: number for numbers in reversed(own) for key, number in numbers.items()}
    return {key: first.get(key, number) for key, number in numbers().items()}


@cache
def keys() -> frozenset[str]:
    """Return the names of all entries of a split."""
    return frozenset(key for kind in results() for key in ([kind.key] if kind.key else kind.__dataclass_fields__))


def headline(evaluation: "SplitEvaluation") -> str:
    """Return the numbers that people quote: "perplexity 12.30, 1.2345 bits per byte"."""
    if evaluation.entries.get("task") is not None:
        quoted = [(key, shown) for result in evaluation.results for key, shown in result.numbers().items()]
        measured = [(key, shown) for key, shown in quoted if shown.headline and evaluation.entries.get(key) is not None]
        return ", ".join(f"{shown.name} {value_of(key, evaluation)}" for key, shown in measured)
    known = [key for key in PER_BYTE if evaluation.entries.get(key) is not None]
    per_byte = (f"{value_of(key, evaluation)} {numbers()[key].name}" for key in known)
    return ", ".join([f"perplexity {value_of('perplexity', evaluation)}", *per_byte])


def sentences_of(evaluation: "SplitEvaluation", above: bool | None = None) -> list[str]:
    """Return the sentences about the results of a split; with `above`, only the ones above or below the numbers."""
    chosen = [result for result in evaluation.results if above is None or result.above == above]
    return [sentence for result in chosen for sentence in result.sentences(evaluation.tokens or 0)]


def by_sentence(sentences: Mapping[str, list[str]]) -> list[str]:
    """Return the sentences about several texts, each once. `sentences` has the sentences of each text by its name.

    A sentence that does not hold for all texts begins with the names of its texts.
    """
    names: dict[str, list[str]] = {}
    for name, of_name in sentences.items():
        for sentence in of_name:
            names.setdefault(sentence, []).append(name)
    return [
        sentence if len(texts) == len(sentences) else f"{' and '.join(texts)}: {sentence}"
        for sentence, texts in names.items()
    ]


UNKNOWN = "–"


def _formatted(value: Any, number: Number | None) -> str:
    """Return a value of evaluation.json in its usual format."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and number:
        return f"{value:,.{number.digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def overflows(evaluation: "SplitEvaluation") -> list[str]:
    """Return the keys of the perplexities that are None because no float holds them."""
    entries = evaluation.entries
    return [
        key
        for key, number in numbers().items()
        if number.exp_of and key in entries and entries[key] is None and entries.get(number.exp_of) is not None
    ]


def value_of(key: str, evaluation: "SplitEvaluation") -> str:
    """Return the value of a number of a split in its usual format."""
    if key in overflows(evaluation):
        return perplexity_text(evaluation.entries[numbers()[key].exp_of], ",.2f")
    return _formatted(evaluation.entries.get(key), numbers_of([evaluation]).get(key))


def with_interval(key: str, evaluation: "SplitEvaluation") -> str:
    """Return the value of a number of a split with its 95 % interval, if it has one: "1.20 (1.17 to 1.23)"."""
    value, intervals = value_of(key, evaluation), evaluation.intervals
    bounds = intervals.bounds.get(key) if intervals else None
    if not bounds:
        return value
    if None in bounds:
        low, high = (perplexity_text(nats, ",.2f") for nats in intervals.bounds[numbers()[key].exp_of])
    else:
        low, high = (_formatted(bound, numbers_of([evaluation]).get(key)) for bound in bounds)
    return f"{value} ({low} to {high})"


def rows_of(
    evaluations: Sequence["SplitEvaluation"],
    cell: Callable[[str, "SplitEvaluation"], str] = value_of,
    headlines: bool = False,
) -> list[tuple[str, list[str]]]:
    """Return (name, a cell for each evaluation) for every number that occurs in them, and further rows of results.

    With `headlines`, numbers that are not headlines are left out.
    """
    rows = [
        (number.name, [cell(key, one) for one in evaluations])
        for key, number in numbers_of(evaluations).items()
        if _occurs(key, evaluations) and (number.headline or not headlines)
    ]
    further = [dict(row for result in one.results for row in result.rows().items()) for one in evaluations]
    names = dict.fromkeys(name for column in further for name in column)
    return [*rows, *((name, [column.get(name, UNKNOWN) for column in further]) for name in names)]


def definitions(evaluations: Sequence["SplitEvaluation"]) -> list[tuple[str, str, str]]:
    """Return (name, key in evaluation.json, definition) of the numbers in the evaluations."""
    known = numbers_of(evaluations)
    own = [(number.name, key, number.definition) for key, number in known.items() if _occurs(key, evaluations)]
    further = dict.fromkeys(type(result) for one in evaluations for result in one.results if result.rows())
    return [*own, *((number.name, kind.key, number.definition) for kind in further for number in kind.more_definitions)]


def _occurs(key: str, evaluations: Sequence["SplitEvaluation"]) -> bool:
    return any(one.entries.get(key) is not None or key in overflows(one) for one in evaluations)

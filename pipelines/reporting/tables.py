"""The tables of a report: the training of each run, its evaluations, and all numbers."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipelines.cli.display import duration, perplexity_text
from pipelines.evaluation.measurement import Section, Table
from pipelines.evaluation.measurements.trained_text import TrainedText
from pipelines.evaluation.numbers import (
    by_sentence,
    definitions,
    results,
    rows_of,
    sentences_of,
    value_of,
    with_interval,
)
from pipelines.evaluation.results import SplitEvaluation
from pipelines.reporting.subject import Subject, label_of

MISSING = "–"
UNRECORDED = "not recorded"
OBJECTIVES = {
    "next-token": "Next token",
    "masked-token": "Masked tokens",
    "span-corruption": "Spans removed from a text",
    "denoising": "Corrupted text",
    "sequence-pairs": "Targets of pairs",
}
Column = tuple[Subject, SplitEvaluation]


class ReportedSection(NamedTuple):
    """A section of the page about a kind of result, with its tables and sentences for each run and text."""

    name: str
    section: Section
    texts: list[tuple[str, list[Table | str]]]


def training_table(subjects: Sequence[Subject]) -> Table:
    """Return the table with the training of each run, without empty rows."""

    def facts(name: str) -> Callable[[Subject], str]:
        def cell(each: Subject) -> str:
            value = each.run.facts.get(name) or UNRECORDED
            return " ".join(value) if isinstance(value, list) else str(value)

        return cell

    def if_trained_here(cell: Callable[[Subject], str]) -> Callable[[Subject], str]:
        return lambda each: MISSING if each.imported else cell(each)

    cells: dict[str, Callable[[Subject], str]] = {
        "objective": lambda each: each.run.recipe.trained_for,
        "parameters": lambda each: f"{each.parameters:,}",
        "context, tokens": lambda each: f"{each.run.recipe.model.context_length:,}",
        "imported from": lambda each: str(each.run.facts.get("imported_from", MISSING)),
        "started from": lambda each: str(each.run.facts.get("init_from", MISSING)),
        "dataset": if_trained_here(facts("data")),
        "tokens seen": if_trained_here(lambda each: f"{each.tokens_seen:,}"),
        "training time": if_trained_here(lambda each: _duration(each.seconds)),
        "tokens per second": if_trained_here(lambda each: f"{each.speed:,.0f}"),
        "dtype": if_trained_here(lambda each: each.run.recipe.train.dtype),
        "hardware": if_trained_here(facts("hardware")),
        "date": lambda each: _date(each.run.facts.get("date")),
        "bytelm": facts("version"),
        "PyTorch": facts("torch"),
        "tokenizer": lambda each: each.run.facts["tokenizer_fingerprint"][:16],
    }
    return Table("Training", "Run", [subject.name for subject in subjects], _rows(subjects, cells))


def measured_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return a table for each objective: the headline numbers and the settings of each evaluation."""
    return [
        Table(
            "Results",
            OBJECTIVES.get(objective, f"Task: {objective}"),
            [label_of(*column) for column in columns],
            _result_rows(columns),
        )
        for objective, columns in _by_objective(subjects).items()
    ]


def _result_rows(columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    return [
        ("text", [subject.text_name(evaluation) for subject, evaluation in columns]),
        *rows_of([column for _, column in columns], with_interval, headlines=True),
        *_rows(columns, _SETTINGS),
    ]


def number_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return a table for each objective with the numbers of evaluation.json that are not among the results."""
    tables = []
    for objective, columns in _by_objective(subjects).items():
        shown = {label for label, _ in _result_rows(columns)}
        rows = [row for row in rows_of([column for _, column in columns]) if row[0] not in shown]
        heads = [f"{label_of(*column)}, {column[0].text_name(column[1])}" for column in columns]
        tables.append(Table("More numbers", OBJECTIVES.get(objective, f"Task: {objective}"), heads, rows))
    return tables


def measured_sections(subjects: Sequence[Subject]) -> list[ReportedSection]:
    """Return the sections of the results that have tables: the newest result of each run and text."""
    found = []
    for kind in results():
        newest: dict[tuple[str, Any], tuple[str, list[Table | str]]] = {}
        for each, evaluation in _columns(subjects):
            for parts in [result.parts() for result in evaluation.results if isinstance(result, kind)]:
                if any(isinstance(part, Table) for part in parts):
                    title = f"{each.name}, {each.text_in_words(evaluation)}"
                    newest.setdefault((each.name, evaluation.text), (title, parts))
        if kind.section and newest:
            name = (kind.key or kind.__name__.lower()).replace("_", "-")
            found.append(ReportedSection(name, kind.section, list(newest.values())))
    return found


def sentences(subjects: Sequence[Subject], above: bool) -> list[str]:
    """Return the sentences of the evaluations above or below the results.

    If they differ, each sentence names its evaluations.
    """
    found = {
        f"{label_of(each, evaluation)}, {each.text_name(evaluation)}": sentences_of(evaluation, above)
        for each, evaluation in _columns(subjects)
    }
    return by_sentence({label: texts for label, texts in found.items() if texts})


def trained_texts(subjects: Sequence[Subject]) -> list[str]:
    """Return a sentence for each evaluation on text that the run was also trained on."""
    return list(
        dict.fromkeys(
            f"{subject.text_name(evaluation)}: {sentence}"
            for subject, evaluation in _columns(subjects)
            if (trained := evaluation.find(TrainedText)) and (sentence := trained.not_held_out(subject.name))
        )
    )


def definitions_of(subjects: Sequence[Subject]) -> list[tuple[str, str]]:
    """Return the names and definitions of the numbers that the page shows."""
    evaluations = [evaluation for _, evaluation in _columns(subjects)]
    return [(name, definition) for name, _, definition in definitions(evaluations)]


def validation_losses(subjects: Sequence[Subject]) -> list[str]:
    """Return a line for each run that compares its last logged validation loss with its evaluation."""
    lines = []
    for subject in subjects:
        last = [line for line in subject.metrics if line["split"] == "validation"][-1:]
        main = subject.main
        if not last or main is None or subject.of_task or subject.text_name(main) != "validation":
            continue
        train, loss = subject.run.recipe.train, last[0]["loss"]
        lines.append(
            f"{subject.name}: the curve ends at {loss / math.log(2):.3f} bits, a perplexity of "
            f"{perplexity_text(loss, ',.2f')} (step {last[0]['step']:,}; up to {train.validation_tokens:,} tokens of "
            f"the validation split, {train.dtype}), and the evaluation has {main.cross_entropy_bits:.3f} bits "
            f"({main.measured.checkpoint}; {main.tokens:,} tokens, {main.dtype}"
            + (f", stride {main.stride:,}" if main.stride != main.window else "")
            + ")."
        )
    return lines


def _columns(subjects: Sequence[Subject]) -> list[Column]:
    """Return all evaluations with their subjects."""
    return [(subject, evaluation) for subject in subjects for evaluation in subject.evaluations]


def _by_objective(subjects: Sequence[Subject]) -> dict[str, list[Column]]:
    """Return the evaluations by objective, because numbers of different objectives are not comparable."""
    columns: dict[str, list[Column]] = {}
    for column in _columns(subjects):
        objective = column[0].run.recipe.objective if column[1].task is None else column[1].task
        columns.setdefault(objective, []).append(column)
    return columns


def _measure(name: str) -> Callable[[Column], str]:
    return lambda column: str(getattr(column[1].measured, name))


def _number(name: str) -> Callable[[Column], str]:
    return lambda column: value_of(name, column[1])


_SETTINGS: dict[str, Callable[[Column], str]] = {
    "dataset": _measure("data"),
    "tokens scored": _number("tokens"),
    "checkpoint": _measure("checkpoint"),
    "compared with": lambda column: column[1].measured.against or MISSING,
    "window, tokens": _number("window"),
    "trained length, tokens": _number("trained_length"),
    "rotary scaling": _number("rotary_scaling"),
    "stride, tokens": _number("stride"),
    "minimum context, tokens": _number("min_context"),
    "document mask": _number("document_mask"),
    "dtype": _number("dtype"),
    "tokenizer": lambda column: _measure("tokenizer_fingerprint")(column)[:16],
    "hardware": _measure("hardware"),
    "date": lambda column: _date(column[1].measured.date),
    "time": lambda column: _duration(column[1].measured.seconds),
    "bytelm": _measure("version"),
}


def _rows(columns: Sequence[Any], cells: dict[str, Callable[[Any], str]]) -> list[tuple[str, list[str]]]:
    rows = [(label, [cell(column) for column in columns]) for label, cell in cells.items()]
    return [(label, row) for label, row in rows if any(value != MISSING for value in row)]


def _date(recorded: Any) -> str:
    """Return a recorded date in UTC, to the minute."""
    return f"{recorded[:16].replace('T', ' ')} UTC" if isinstance(recorded, str) else UNRECORDED


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)

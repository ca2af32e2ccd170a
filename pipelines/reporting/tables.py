"""The tables of a report: the training of each run, its evaluations, and all numbers."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pipelines.cli.display import duration
from pipelines.evaluation import entropy_calibration, memorisation
from pipelines.evaluation.breakdown import table_of
from pipelines.evaluation.confidence import described
from pipelines.evaluation.difference import remarks
from pipelines.evaluation.numbers import (
    COMPRESSED,
    NUMBERS,
    Number,
    in_words,
    not_held_out,
    perplexity_text,
    rows_of,
    sum_with_source,
    with_interval,
)
from pipelines.reporting.subject import Subject, label_of
from pipelines.run.evaluation_file import Evaluation

MISSING = "–"
UNRECORDED = "not recorded"
OBJECTIVES = {
    "next-token": "Next token",
    "masked-token": "Masked tokens",
    "span-corruption": "Spans removed from a text",
    "sequence-pairs": "Targets of pairs",
}
# Numbers of the results at the top of the page, in this order.
HEADLINES = (
    "cross_entropy_bits",
    "perplexity",
    "bits_per_byte",
    "bits_per_original_byte",
    "masked_bits_per_byte",
    "bleu",
    "accuracy",
    "unigram_accuracy",
    "pseudo_perplexity",
    "unigram_cross_entropy_bits",
    "bigram_cross_entropy_bits",
    "kl_bits",
    "entropy_rate_bits",
    "true_entropy_bits",
    "kl_true_bits",
    "true_cross_entropy_bits",
    "calibration_error",
    "temperature",
    "temperature_gain_bits",
)

# Groupings of the entry `breakdown` in the order of the page, with their titles.
GROUPINGS = {
    "class": "By class of token",
    "position": "By position in the window",
    "frequency": "By training frequency of the token",
    "length": "By length of the token",
    "document": "By document",
}


class Table(NamedTuple):
    """A table with a title, the heads of its columns, and rows of a label and a cell for each column."""

    title: str
    heads: list[str]
    rows: list[tuple[str, list[str]]]


def training_table(subjects: Sequence[Subject]) -> Table:
    """Return the table with the training of each run, without empty rows."""

    def facts(name: str) -> Callable[[Subject], str]:
        return lambda each: str(each.run.facts.get(name) or UNRECORDED)

    def trained(cell: Callable[[Subject], str]) -> Callable[[Subject], str]:
        return lambda each: MISSING if each.imported else cell(each)

    cells: dict[str, Callable[[Subject], str]] = {
        "objective": lambda each: each.run.recipe.objective,
        "parameters": lambda each: f"{each.parameters:,}",
        "context, tokens": lambda each: f"{each.run.recipe.model.context_length:,}",
        "imported from": lambda each: str(each.run.facts.get("imported_from", MISSING)),
        "started from": lambda each: str(each.run.facts.get("init_from", MISSING)),
        "dataset": trained(facts("data")),
        "tokens seen": trained(lambda each: f"{each.tokens_seen:,}"),
        "training time": trained(lambda each: _duration(each.seconds)),
        "tokens per second": trained(lambda each: f"{each.speed:,.0f}"),
        "dtype": trained(lambda each: each.run.recipe.train.dtype),
        "hardware": trained(facts("hardware")),
        "date": lambda each: _date(each.run.facts.get("date")),
        "bytelm": facts("version"),
        "PyTorch": facts("torch"),
        "tokenizer": lambda each: each.run.facts["tokenizer_fingerprint"][:16],
    }
    return Table("", [each.name for each in subjects], _rows(subjects, cells))


def measured_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return a table for each objective: the numbers that people quote, and the settings of each evaluation."""
    return [
        Table(
            OBJECTIVES[objective],
            [label_of(*column) for column in columns],
            [
                ("split", [evaluation.split for _, evaluation in columns]),
                *((in_words(key), cells) for key, cells in _headlines(columns)),
                *_rows(columns, _SETTINGS),
            ],
        )
        for objective, columns in _by_objective(subjects).items()
    ]


def number_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return a table for each objective with every number of evaluation.json."""
    return [
        Table(
            OBJECTIVES[objective],
            [f"{label_of(*column)}, {column[1].split}" for column in columns],
            [(in_words(key), cells) for key, cells in rows_of([each.numbers for _, each in columns])],
        )
        for objective, columns in _by_objective(subjects).items()
    ]


def breakdown_tables(subjects: Sequence[Subject]) -> list[tuple[str, list[Table]]]:
    """Return a title and the tables of the newest breakdown, for each run and text."""
    return [
        (title, [_breakdown_table(GROUPINGS[key], groupings[key]) for key in GROUPINGS if key in groupings])
        for title, groupings in _entries(subjects, "breakdown")
    ]


def memorisation_tables(subjects: Sequence[Subject]) -> list[tuple[Table, str]]:
    """Return the table of the newest memorisation and a sentence that names both texts, for each run and text."""
    return [
        (
            Table(title, list(memorisation.HEADS), _labelled(map(memorisation.cells, found["curve"]))),
            memorisation.described(found),
        )
        for title, found in _entries(subjects, "memorisation")
    ]


def calibration_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return the table of the newest entropy calibration by position, for each run and text."""
    return [
        Table(title, list(entropy_calibration.HEADS), _labelled(map(entropy_calibration.cells, found["positions"])))
        for title, found in _entries(subjects, "entropy_calibration")
        if found["positions"]
    ]


def _entries(subjects: Sequence[Subject], key: str) -> list[tuple[str, Any]]:
    """Return the title and the newest entry `key` of each run and text."""
    found: dict[tuple[str, Any], tuple[str, Any]] = {}
    for each in subjects:
        for evaluation in each.evaluations:
            if entry := evaluation.numbers.get(key):
                found.setdefault((each.name, evaluation.text), (f"{each.name}, {evaluation.split} split", entry))
    return list(found.values())


def _labelled(cells: Iterable[tuple[str, ...]]) -> list[tuple[str, list[str]]]:
    """Return rows whose first cell is the label."""
    return [(label, values) for label, *values in cells]


def _breakdown_table(title: str, rows: list[dict[str, Any]]) -> Table:
    heads, cells = table_of(rows)
    return Table(title, heads, _labelled(cells))


def confidences(subjects: Sequence[Subject]) -> list[str]:
    """Return sentences about the intervals or their absence; if they differ, each names its evaluations."""
    evaluations = [(each, evaluation) for each in subjects for evaluation in each.evaluations]
    samples: dict[str, list[str]] = {}
    for column in evaluations:
        if "intervals" in column[1].numbers:
            samples.setdefault(described(column[1].numbers["intervals"]), []).append(
                f"{label_of(*column)}, {column[1].split}"
            )
    return [
        sentence if len(samples) == 1 else f"{' and '.join(labels)}: {sentence}" for sentence, labels in samples.items()
    ]


def differences(subjects: Sequence[Subject]) -> list[str]:
    """Return the sentences that compare two runs, each with what speaks against the comparison."""
    found = [evaluation.numbers.get("difference") for each in subjects for evaluation in each.evaluations]
    return [" ".join([each["sentence"], *remarks(each)]) for each in found if each]


def trained_texts(subjects: Sequence[Subject]) -> list[str]:
    """Return a sentence for each evaluation on text that the run was also trained on."""
    found = [
        (evaluation.split, not_held_out(evaluation.numbers, each.name))
        for each in subjects
        for evaluation in each.evaluations
    ]
    return list(dict.fromkeys(f"{split}: {sentence}" for split, sentence in found if sentence))


def sums_with_sources(subjects: Sequence[Subject]) -> list[str]:
    """Return the sentences about runs on synthetic sources, each with its run."""
    found = [(each.name, sum_with_source(evaluation.numbers)) for each in subjects for evaluation in each.evaluations]
    return [f"{name}: {sentence}" for name, sentence in found if sentence]


def definitions_of(subjects: Sequence[Subject]) -> list[Number]:
    """Return the numbers that the page shows, with their definitions."""
    entries = [evaluation.numbers for each in subjects for evaluation in each.evaluations]
    found = [number for key, number in NUMBERS.items() if any(entry.get(key) is not None for entry in entries)]
    return found + ([COMPRESSED] if any("compressors" in entry for entry in entries) else [])


def validation_losses(subjects: Sequence[Subject]) -> list[str]:
    """Return a line for each run that compares its last logged validation loss with its evaluation."""
    lines = []
    for each in subjects:
        last = [line for line in each.metrics if line["split"] == "validation"][-1:]
        if not last or each.main is None or each.main.split != "validation":
            continue
        train, numbers, loss = each.run.recipe.train, each.numbers, last[0]["loss"]
        lines.append(
            f"{each.name}: the curve ends at {loss / math.log(2):.3f} bits, a perplexity of "
            f"{perplexity_text(loss, ',.2f')} (step {last[0]['step']:,}; up to {train.validation_tokens:,} tokens of "
            f"the validation split, {train.dtype}), and the evaluation has {numbers['cross_entropy_bits']:.3f} bits "
            f"({each.main.measured.get('checkpoint') or 'newest checkpoint'}; "
            f"{numbers['tokens']:,} tokens, {numbers['dtype']}"
            + (f", stride {numbers['stride']:,}" if numbers.get("stride") != numbers.get("window") else "")
            + ")."
        )
    return lines


Column = tuple[Subject, Evaluation]


def _by_objective(subjects: Sequence[Subject]) -> dict[str, list[Column]]:
    """Return the evaluations by objective, because numbers of different objectives are not comparable."""
    columns: dict[str, list[Column]] = {}
    for each in subjects:
        for evaluation in each.evaluations:
            columns.setdefault(each.run.recipe.objective, []).append((each, evaluation))
    return columns


def _headlines(columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    rows = dict(rows_of([each.numbers for _, each in columns], with_interval))
    shown = [(key, rows[key]) for key in HEADLINES if key in rows]
    return shown + [(key, cells) for key, cells in rows.items() if key not in NUMBERS]


def _measured(name: str) -> Callable[[Column], str]:
    return lambda column: str(column[1].measured.get(name) or UNRECORDED)


def _number(name: str) -> Callable[[Column], str]:
    return lambda column: dict(rows_of([column[1].numbers])).get(name, [MISSING])[0]


def _seconds(column: Column) -> str:
    seconds = column[1].measured.get("seconds")
    return UNRECORDED if seconds is None else _duration(seconds)


def _against(column: Column) -> str:
    return str(column[1].measured.get("against") or MISSING)


_SETTINGS: dict[str, Callable[[Column], str]] = {
    "dataset": _measured("data"),
    "tokens scored": _number("tokens"),
    "checkpoint": _measured("checkpoint"),
    "compared with": _against,
    "window, tokens": _number("window"),
    "stride, tokens": _number("stride"),
    "least context, tokens": _number("min_context"),
    "document mask": _number("document_mask"),
    "dtype": _number("dtype"),
    "tokenizer": lambda column: _measured("tokenizer_fingerprint")(column)[:16],
    "hardware": _measured("hardware"),
    "date": lambda column: _date(column[1].measured.get("date")),
    "time": _seconds,
    "bytelm": _measured("version"),
}


def _rows(columns: Sequence[Any], cells: dict[str, Callable[[Any], str]]) -> list[tuple[str, list[str]]]:
    rows = [(label, [cell(each) for each in columns]) for label, cell in cells.items()]
    return [(label, row) for label, row in rows if any(value != MISSING for value in row)]


def _date(recorded: Any) -> str:
    """Return a recorded date in UTC, to the minute."""
    return f"{recorded[:16].replace('T', ' ')} UTC" if isinstance(recorded, str) else UNRECORDED


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)

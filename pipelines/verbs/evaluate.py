"""Measurement: measure a run: cross-entropy, perplexity, bits per byte and more.

`pipelines.evaluation.numbers` defines the numbers of a split, `pipelines.run.evaluation_file` the layout of
evaluation.json. `bits_per_byte` is null for masked models and span corruption, whose loss is not a code length, and
for tokenizers that lose text. A run on pairs scores the targets given their sources, and also has `bleu_signature` and
`examples`. `curves` has the loss by position (nats, with its standard error) and the reliability diagram. `intervals`
has the 95 % interval [low, high] of each number in it, and says what the bootstrap drew
(`pipelines.evaluation.confidence`). `difference` has the paired difference from the run of `--against`, with its
interval and a sentence (`pipelines.evaluation.difference`). `breakdown` has the loss by groups of tokens and by
document (`pipelines.evaluation.breakdown`). `memorisation` has the share of the text that also occurs in the training
text, and the loss on that text and on the rest (`pipelines.evaluation.memorisation`). `entropy_calibration` has the
entropy of the model on texts that it generates (`pipelines.evaluation.entropy_calibration`). `overflow` lists the
perplexities that are null because no float holds them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import tyro

from pipelines.cli.arguments import Device, Dtype, check_beams, check_length_penalty, check_writable
from pipelines.cli.corpus_arguments import ReadingOptions
from pipelines.cli.parsing import parse
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb
from pipelines.files import distinct_names, place

if TYPE_CHECKING:
    from pipelines.evaluation.planning import Plan

ENVIRONMENT = PASSIVE_THREADS


@verb
def evaluate(
    runs: Annotated[
        Path | Sequence[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help="Folders of runs.")
    ],
    *,
    data: Annotated[str | Path | None, tyro.conf.arg(metavar="DIR | URI")] = None,
    corpus: tuple[str, ...] = (),
    unit: Literal["byte", "word"] = "byte",
    against: Path | None = None,
    splits: tuple[str, ...] = ("validation",),
    stride: int | None = None,
    min_context: int = 1,
    beams: int = 4,
    length_penalty: float = 1.0,
    compressors: bool = False,
    breakdown: bool = False,
    memorisation: bool = False,
    memory: int = 2_000_000_000,
    entropy_calibration: int = 0,
    checkpoint: str = "newest",
    device: Device = "auto",
    dtype: Dtype = "float32",
    explain: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    **reading: Unpack[ReadingOptions],
) -> Any:
    """Measure runs on held-out text and add the numbers to evaluation.json in each run folder; return its contents.

    Returns a dict for one run (a path), and a list of dicts for a list of runs. If a run has no numbers, the others are
    still measured, and then a ValueError names this run.

    Args:
        data: Folder of a dataset, or its URI in an object store; default: the dataset that the run was trained on. A
            run on a mixture is scored on each of its sources, and gets their mean weighted by their shares.
        corpus: Names of corpora, files, folders, globs or URIs to score instead of a dataset. A corpus with its own
            splits is scored by --splits, any other as a whole.
        unit: Unit of text: word adds the perplexity per word of --corpus.
        against: Folder of a run to compare with on the same documents: the difference with its 95 % interval. Runs with
            the same tokenizer also get the divergence; others are compared in bits per byte, masked models in bits per
            byte of masked text.
        splits: Splits of the dataset or corpus to score.
        stride: Tokens between the starts of two windows; default: the window, so that windows do not overlap.
        min_context: Minimum number of context tokens of a scored position.
        beams: For pairs: width of the beam search for BLEU; 0 leaves the search out.
        length_penalty: For pairs: beam search divides log-probabilities by the length to this power.
        compressors: Compress the same text with xz and zstd, which takes minutes for a large corpus.
        breakdown: Print the loss by position, class, length and training frequency of the token, and by document.
        memorisation: Find the text that also occurs in the training text, and compare the loss on it with the loss on
            the rest. Needs the extra "entropy".
        memory: Memory limit of --memorisation in bytes. A text that needs more is sampled.
        entropy_calibration: Number of texts that a decoder generates, to compare its entropy on them with its loss on
            real text; 0 leaves it out.
        checkpoint: Checkpoint of the run: newest, best (lowest validation loss), or the number of a step.
        explain: Print the definition of each number.
        as_json: Print evaluation.json, one line per run, instead of a table.
    """
    if not splits:
        raise ValueError("--splits names no split: leave it out, or name some, such as validation test")
    if reading and not corpus:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in reading)
        raise ValueError(f"{named}: for reading a corpus; name one with --corpus, or leave it out")
    if corpus and data:
        raise ValueError("--data and --corpus both name a text to score: give one of them")
    check_beams(beams, "to leave the search out")
    check_length_penalty(length_penalty)
    folders = _writable_folders([runs] if isinstance(runs, Path) else list(runs))
    from pipelines.cli.display import say_on_stderr, write
    from pipelines.evaluation.planning import EvaluationOptions, plans_of

    if as_json:
        say_on_stderr()
    options = EvaluationOptions(
        splits=splits,
        corpus=corpus,
        reading=reading,
        unit=unit,
        stride=stride,
        min_context=min_context,
        beams=beams,
        length_penalty=length_penalty,
        compressors=compressors,
        memorisation=memorisation,
        memory=memory,
        entropy_calibration=entropy_calibration,
        checkpoint=checkpoint,
        device=device,
        dtype=dtype,
    )
    # Plan all runs first, so that a mistake in the last one is reported before the first one is measured.
    planned = [plans_of(folder, options, place(data) if data else None, against) for folder in folders]
    measured, failures = _measured(planned)
    results = [result for _, result in measured]
    if as_json:
        for result in results:
            write(json.dumps(result, allow_nan=False))
    elif measured:
        _show([plans for plans, _ in measured], results, explain)
        scored = [
            (f"{plan.run.name}, {plan.entry(split)}", result["splits"][plan.entry(split)])
            for plans, result in measured
            for plan in plans
            for split in plan.splits
        ]
        if breakdown:
            _show_breakdowns(scored)
        if memorisation:
            _show_memorisation(scored, explain)
        if entropy_calibration:
            _show_entropy_calibration(scored, explain)
    if failures:
        raise failures[0] if len(failures) == 1 else ValueError("; ".join(map(str, failures)))
    return results[0] if isinstance(runs, Path) else results


Measured = list[tuple[Sequence["Plan"], dict[str, Any]]]
"""The plans and the evaluation.json of each run."""


def _writable_folders(folders: list[Path]) -> list[Path]:
    """Return the folders of runs. Raises ValueError if there is none, or if one cannot hold evaluation.json."""
    if not folders:
        raise ValueError("name at least one run folder")
    remedy = "change its permissions, or evaluate a copy of the run"
    for folder in filter(Path.is_dir, folders):
        check_writable("the result", folder / "evaluation.json", remedy)
    return folders


def _measured(planned: Sequence[Sequence["Plan"]]) -> tuple[Measured, list[ValueError]]:
    """Measure all runs. Return the results, and the errors of the runs that failed, such as diverged runs."""
    from pipelines.evaluation.measure import measure

    measured: Measured = []
    failures: list[ValueError] = []
    for plans in planned:
        try:
            measured.append((plans, measure(*plans)))
        except ValueError as error:
            failures.append(error)
    return measured, failures


def _show(planned: Sequence[Sequence["Plan"]], results: Sequence[dict[str, Any]], explain: bool) -> None:
    """Print a table with a row for each number and a column for each split of each run, and the names of the files."""
    from pipelines.cli.display import answer, say, table
    from pipelines.evaluation.confidence import described
    from pipelines.evaluation.difference import remarks
    from pipelines.evaluation.numbers import OVERFLOW, definitions, in_words, rows_of, sum_with_source, with_interval
    from pipelines.evaluation.planning import entries_of

    names = distinct_names([plans[0].run.folder for plans in planned])
    columns = {
        (name, entry): result["splits"][entry]
        for name, plans, result in zip(names, planned, results, strict=True)
        for entry in entries_of(plans)
    }
    heads = [f"{name}, {entry}" if len(planned) > 1 else entry for name, entry in columns]
    rows = rows_of(list(columns.values()), with_interval)
    between = "\n(" if len(heads) > 2 else " ("  # so that three columns fit into 80 characters
    cells = [(in_words(key), *(cell.replace(" (", between) for cell in found)) for key, found in rows]
    table((" ".join(names) if len(planned) == 1 else "", *heads), cells)
    for plans in planned:
        if len(plans) > 1:
            shares = ", ".join(f"{100 * plan.share:.4g} % {plan.source}" for plan in plans)
            answer(f"{' and '.join(plans[0].splits)}: the mean of the sources, weighted by their shares ({shares})")
    for signature in sorted(
        {numbers["bleu_signature"] for numbers in columns.values() if numbers.get("bleu_signature")}
    ):
        answer(f"BLEU: {signature}")
    sentences = {
        head: described(numbers["intervals"])
        for head, numbers in zip(heads, columns.values(), strict=True)
        if "intervals" in numbers
    }
    same = len({*sentences.values()}) == 1
    for head, sentence in list(sentences.items())[: 1 if same else None]:
        answer(sentence if same else f"{head}: {sentence}")
    if any(numbers.get("overflow") for numbers in columns.values()):
        answer(OVERFLOW)
    for head, numbers in zip(heads, columns.values(), strict=True):
        if found := sum_with_source(numbers):
            answer(found if len(heads) == 1 else f"{head}: {found}")
    for numbers in columns.values():
        if found := numbers.get("difference"):
            answer(found["sentence"])
            for remark in remarks(found):
                answer(remark)
    for name, key, definition in definitions(rows) if explain else ():
        answer(f"\n{name} ({key})\n  {definition}")
    say("")
    for plans, result in zip(planned, results, strict=True):
        measured = result["measured"][entries_of(plans)[0]]
        sources = ", ".join(measured[key] for key in ("checkpoint", "data", "hardware"))
        say(f"saved in {plans[0].run.folder / 'evaluation.json'} ({sources})")
    if not explain:
        say("--explain defines the numbers")


def _show_breakdowns(scored: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Print the tables of the entry `breakdown` of each title and split."""
    from pipelines.cli.display import answer, table
    from pipelines.evaluation.breakdown import table_of

    for title, numbers in scored:
        for key, rows in numbers["breakdown"].items():
            answer(f"\n{title}: bits by {key}")
            heads, cells = table_of(rows)
            table(("", *heads), cells)


def _show_memorisation(scored: Sequence[tuple[str, dict[str, Any]]], explain: bool) -> None:
    """Print the table of the entry `memorisation` of each title and split."""
    from pipelines.cli.display import answer, table
    from pipelines.evaluation.memorisation import DEFINITION, HEADS, cells, described

    for title, numbers in scored:
        found = numbers["memorisation"]
        answer(f"\n{title}: matches with the training text of at least")
        table(("", *HEADS), [cells(row) for row in found["curve"]])
        answer(described(found))
    if explain:
        answer(DEFINITION)


def _show_entropy_calibration(scored: Sequence[tuple[str, dict[str, Any]]], explain: bool) -> None:
    """Print the table of the entry `entropy_calibration` of each title and split, or the reason why there is none."""
    from pipelines.cli.display import answer, table
    from pipelines.evaluation.entropy_calibration import DEFINITION, HEADS, cells

    for title, numbers in scored:
        found = numbers["entropy_calibration"]
        if found["left_out"]:
            answer(f"\n{title}: {found['left_out']}")
            continue
        answer(f"\n{title}: bits per token by position, in {found['texts']:,} generated texts")
        table(("position", *HEADS), [cells(row) for row in found["positions"]])
    if explain:
        answer(DEFINITION)


def main(arguments: list[str]) -> None:
    """Run `bytelm evaluate` with command-line arguments."""
    parse(evaluate, arguments, "evaluate")

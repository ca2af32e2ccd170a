"""Measurement: measure a run: cross-entropy, perplexity, bits per byte and more.

`pipelines.evaluation.measurements` has the results and the options of all measurements, and
`pipelines.evaluation.results` the layout of evaluation.json.

Examples:
    bytelm evaluate runs/gpt
    bytelm evaluate runs/gpt --corpus other-text/ --explain
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import tyro

from lm.longer_context import ContextScaling
from pipelines.cli.arguments import Adapter, Checkpoint, Device, Dtype, OtherRun, RunFolders, check_writable
from pipelines.cli.corpus_arguments import READING, ReadingOptions
from pipelines.cli.module_options import with_options
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.shell import command
from pipelines.cli.verbs import verb
from pipelines.evaluation.measurement import Measurement, Table
from pipelines.evaluation.measurements import options as measurement_options
from pipelines.files import distinct_names, place
from pipelines.run.folder import Run, opened

if TYPE_CHECKING:
    from pipelines.evaluation.planning import Plan, TaskPlan
    from pipelines.evaluation.results import Evaluation

ENVIRONMENT = PASSIVE_THREADS

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("runs data corpus splits against", ""),
    "Reading a corpus": ("", " ".join(READING)),
    "Windows": ("context stride", "rotary_scaling min_context"),
    "Model": ("checkpoint adapter without device", "dtype ablation"),
    "Measurements": (
        "audit breakdown compressors memorisation entropy_calibration unit",
        "sinks memory beams length_penalty",
    ),
    "Output": ("explain json", ""),
}


@verb
@partial(with_options, options=measurement_options())
def evaluate(
    runs: RunFolders,
    *,
    data: Annotated[str | Path | None, tyro.conf.arg(metavar="DIR | URI")] = None,
    corpus: tuple[str, ...] = (),
    against: OtherRun = None,
    splits: tuple[str, ...] = ("validation",),
    without: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PART ...")] = (),
    ablation: Literal["mean", "zero"] = "mean",
    context: int | None = None,
    rotary_scaling: ContextScaling = "none",
    stride: int | None = None,
    min_context: int = 1,
    checkpoint: Checkpoint = "auto",
    adapter: Adapter = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    explain: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    **reading: Unpack[ReadingOptions],
) -> "Evaluation | list[Evaluation]":
    """Measure runs on held-out text and add the numbers to evaluation.json in each run folder; return them.

    With `adapter`, evaluation.json is written to the folder of the adapter.

    Returns an Evaluation for one run, such as `evaluate("my/gpt").validation.bits_per_byte`, or a list for a list of
    runs.

    If the logits of a run are not finite, the other runs are measured first, and then an error names this run.
    Raises ValueError for such a run.

    Args:
        runs: Folders of runs.
        data: Folder of a dataset, or its URI in an object store; default: the dataset that the run was trained on. A
            run on a mixture is scored on each of its sources, and gets their mean weighted by their shares.
        corpus: Names of corpora, files, folders, globs or URIs to score instead of a dataset. A corpus with its own
            splits is scored by `splits`, any other as a whole.
        against: Folder of a run to compare with on the same documents: the difference with its 95 % interval. Runs with
            the same tokenizer also get the divergence; others are compared in bits per byte, masked models in bits per
            byte of masked text. Tables show the difference by class of text and the strings with the largest gaps.
        splits: Splits of the dataset or corpus to score.
        without: Parts to delete, counted from 0: layers.3, attention.3, mlp.3 or heads.3.1 (layer 3, head 1). The
            result is not saved, and has no comparison with other runs.
        ablation: What the output of a deleted part becomes: its mean over the training split, or zero.
        context: Tokens that the model reads at once; default: as in its training.
        rotary_scaling: Change of the frequencies of rotary positions for a longer context: linear divides all of them,
            ntk raises their base, and yarn divides only the slow ones.
        stride: Tokens between the starts of two windows; default: the window, so that windows do not overlap.
        min_context: Score only tokens with at least this many tokens before them in the window.
        explain: Print the definition of each number.
        as_json: Print evaluation.json, one line per run, instead of a table.
    """
    # The options of the measurements, which `with_options` adds to the signature, are in `reading` too.
    given = {name: value for name, value in reading.items() if name in ReadingOptions.__annotations__}
    if not splits:
        raise ValueError("`splits` names no split: leave it out, or name some, such as validation test")
    if given and not corpus:
        names = ", ".join(f"`{name}`" for name in given)
        raise ValueError(f"{names}: for reading a corpus; name one with `corpus`, or leave it out")
    if corpus and data:
        raise ValueError("`data` and `corpus` both name a text to score: give one of them")
    _check_deletion(without, against, reading)
    named = list(runs) if isinstance(runs, Sequence) else [runs]
    if adapter is not None and len(named) > 1:
        raise ValueError(f"`adapter` {adapter} belongs to one run, but {len(named)} runs are named: name one")
    _check_writable([Path(run) for run in named], adapter)
    opened_runs = [opened(run, checkpoint, device, dtype, any_task=True, adapter=adapter) for run in named]
    other = None if against is None else Run.of(against)
    if context is not None:
        opened_runs = [run.with_context(context, rotary_scaling) for run in opened_runs]
        other = other and other.with_context(context, rotary_scaling)
    elif rotary_scaling != "none":
        raise ValueError(f"`rotary_scaling` is {rotary_scaling!r}, which is for a longer `context`: give both")
    from pipelines.cli.display import say_on_stderr, write
    from pipelines.evaluation.planning import EvaluationOptions, plans_of

    if as_json:
        say_on_stderr()
    options = EvaluationOptions(
        splits=splits,
        corpus=corpus,
        reading=given,
        stride=stride,
        min_context=min_context,
        rotary_scaling=rotary_scaling,
        measuring=reading,
        checkpoint=checkpoint,
        device=device,
        dtype=dtype,
        without=without,
        zero=ablation == "zero",
    )
    # Plan all runs first, so that a mistake in the last one is reported before the first one is measured.
    planned = [plans_of(run, options, place(data) if data else None, other) for run in opened_runs]
    measured, failures = _measure(planned)
    evaluations = [evaluation for _, evaluation in measured]
    if as_json:
        for evaluation in evaluations:
            write(json.dumps(evaluation.to_json(), allow_nan=False))
    elif measured:
        show_measured(measured, options.measurements, explain)
    if failures:
        raise ValueError("; ".join(failures))
    return evaluations if isinstance(runs, Sequence) else evaluations[0]


def next_step(given: Mapping[str, Any], _: Any) -> str:
    """Return the suggested next command, the report of the runs; a report does not include adapters and deletions."""
    if given.get("adapter") or given.get("without"):
        return ""
    return command("report", *([given["runs"]] if isinstance(given["runs"], Path) else given["runs"]))


def _check_deletion(without: Sequence[str], against: object, measuring: Mapping[str, Any]) -> None:
    """Raise ValueError for measurements that need the whole model beside the one `without` its parts."""
    if not without:
        return
    unfit = [name for name in ("memorisation", "entropy_calibration", "sinks") if measuring.get(name)]
    if unfit or against is not None:
        raise ValueError(f"`without` cannot be combined with `{(unfit or ['against'])[0]}`: leave one of them out")


MeasuredRuns = list[tuple["list[Plan] | list[TaskPlan]", "Evaluation"]]
"""The plans and the evaluation of each run."""


def _check_writable(runs: list[Path], adapter: Path | None) -> None:
    """Raise ValueError if there is no folder of a run, or if the folder for the result cannot hold evaluation.json."""
    if not runs:
        raise ValueError("name at least one run folder")
    remedy = "change its permissions, or evaluate a copy"
    for folder in filter(Path.is_dir, runs if adapter is None else [adapter]):
        check_writable("the result", folder / "evaluation.json", remedy)


def _measure(planned: Sequence["list[Plan] | list[TaskPlan]"]) -> tuple[MeasuredRuns, list[str]]:
    """Measure all runs. Return them, and a sentence for each failure, such as a diverged run."""
    from pipelines.evaluation.measure import measure
    from pipelines.evaluation.planning import Plan
    from pipelines.evaluation.task_evaluation import measure_task

    measured: MeasuredRuns = []
    failures: list[ValueError] = []
    for plans in planned:
        try:
            of_text = [plan for plan in plans if isinstance(plan, Plan)]
            tasks = [plan for plan in plans if not isinstance(plan, Plan)]
            evaluation, failed = (measure_task(tasks[0]), []) if tasks else measure(*of_text)
        except ValueError as error:
            failures.append(error)
        else:
            measured.append((plans, evaluation))
            failures += failed
    return measured, list(dict.fromkeys(map(str, failures)))


def show_measured(measured: MeasuredRuns, chosen: Sequence[Measurement] = (), explain: bool = False) -> None:
    """Print the numbers of runs, and the sections of the measurements that were `chosen`."""
    _show(measured, explain)
    _show_sections(measured, chosen, explain)


def _show(measured: MeasuredRuns, explain: bool) -> None:
    """Print a line for each split of each run, a table with a column for each split, and the names of the files."""
    from pipelines.cli.display import answer, say, table
    from pipelines.evaluation.numbers import (
        OVERFLOW,
        by_sentence,
        definitions,
        headline,
        overflows,
        rows_of,
        sentences_of,
        with_interval,
    )
    from pipelines.evaluation.planning import entries_of

    names = distinct_names([plans[0].run.folder for plans, _ in measured])
    columns = {
        f"{name}, {entry}" if len(measured) > 1 else entry: evaluation.splits[entry]
        for name, (plans, evaluation) in zip(names, measured, strict=True)
        for entry in entries_of(plans)
    }
    for head, column in columns.items():
        answer(f"{head}: {headline(column)}")
    answer("")
    rows = rows_of(list(columns.values()), with_interval)
    between = "\n(" if len(columns) > 2 else " ("  # so that three columns fit into 80 characters
    cells = [(number, *(cell.replace(" (", between) for cell in row)) for number, row in rows]
    table((" ".join(names) if len(measured) == 1 else "", *columns), cells)
    for plans, _ in measured:
        if len(plans) > 1:
            shares = ", ".join(f"{100 * plan.share:.4g} % {plan.source}" for plan in plans)
            answer(f"{' and '.join(plans[0].splits)}: the mean of the sources, weighted by their shares ({shares})")
    for sentence in by_sentence({head: sentences_of(column) for head, column in columns.items()}):
        answer(sentence)
    if any(map(overflows, columns.values())):
        answer(OVERFLOW)
    for name, key, definition in definitions(list(columns.values())) if explain else ():
        answer(f"\n{name} ({key})\n  {definition}")
    say("")
    for plans, evaluation in measured:
        newest = evaluation.splits[entries_of(plans)[0]].measured
        sources = f"{newest.checkpoint}, {newest.data}, {newest.hardware}"
        saved = f"saved in {plans[0].run.results / 'evaluation.json'}"
        say(f"{'not saved' if plans[0].options.without else saved} ({sources})")
    if not explain:
        say("`explain` defines the numbers")


def _show_sections(measured: MeasuredRuns, chosen: Sequence[Measurement], explain: bool) -> None:
    """Print the tables and sentences of the measurements that were asked for, for each run and split."""
    from pipelines.cli.display import answer, table

    scored = [
        (f"{plan.run.name}, {plan.entry(split)}", evaluation.splits[plan.entry(split)])
        for plans, evaluation in measured
        for plan in plans
        for split in plan.splits
    ]
    shown = [measurement.result for measurement in chosen if measurement.shown]
    of_tasks = (type(result) for _, column in scored if column.entries.get("task") for result in column.results)
    for kind in dict.fromkeys([*shown, *of_tasks]):
        parts = [(title, part) for title, column in scored if (found := column.find(kind)) for part in found.parts()]
        for title, part in parts:
            if isinstance(part, Table):
                answer(f"\n{title}: {part.title}")
                table((part.label, *part.heads), [(name, *cells) for name, cells in part.rows], text=part.text)
            else:
                answer(f"{title}: {part}")
        if explain and parts and kind.section:
            answer(kind.section.note)

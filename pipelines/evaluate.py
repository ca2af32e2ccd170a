"""`bytelm evaluate`: the numbers that people quote about a trained model.

`evaluation.numbers` defines the numbers of a split, `run.evaluation_file` the layout of evaluation.json.
`bits_per_byte` is null for masked models and span corruption, whose loss is not a code length. A run on pairs, whose
targets are scored given their sources, also has `bleu_signature` and `examples`. `curves` has the loss by position
(nats, with its standard error) and the reliability diagram.
"""

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pipelines.cli.arguments import Device, Dtype, check_beams, check_length_penalty
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.files import write_json

if TYPE_CHECKING:
    from pipelines.evaluation.measure import WindowSettings
    from pipelines.run.folder import Run
    from pipelines.training.data import Dataset


@verb
def evaluate(
    runs: Annotated[
        Path | Sequence[Path], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]", help="Folders of runs.")
    ],
    *,
    data: Path | None = None,
    against: Path | None = None,
    splits: tuple[str, ...] = ("validation",),
    stride: int | None = None,
    min_context: int = 1,
    beams: int = 4,
    length_penalty: float = 1.0,
    compressors: bool = False,
    checkpoint: str = "newest",
    device: Device = "auto",
    dtype: Dtype = "float32",
    explain: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> Any:
    """Measure runs on held-out text; add the numbers to evaluation.json in each run's folder, and return its contents.

    Returns a dict for one run (a path), and a list of dicts for a list of runs.

    Args:
        data: Folder of a dataset; by default the one that the run was trained on.
        against: Folder of another run with the same tokenizer and objective, to measure the divergence from.
        splits: Splits of the dataset to score.
        stride: Tokens between two windows; the window itself by default, so that every block has fresh context.
        min_context: Positions with fewer tokens of context than this are left out.
        beams: Of pairs: targets that beam search for BLEU follows side by side; 0 leaves the search out.
        length_penalty: Of pairs: a target's log-probability is divided by its length to this power.
        compressors: Whether to add what xz and zstd need for the same text: minutes for a large corpus.
        checkpoint: Which one of the run: newest, best (the lowest validation loss), or the number of a step.
        explain: Whether to print the definition of each number.
        as_json: Whether to print evaluation.json instead of a table: one line for each run.
    """
    if not splits:
        raise ValueError("--splits names no split: leave it out, or name some, such as validation test")
    check_beams(beams, "to leave the search out")
    check_length_penalty(length_penalty)
    from pipelines.cli.display import say_on_stderr, write

    if as_json:
        say_on_stderr()
    single = isinstance(runs, str | Path)
    folders = [Path(runs)] if single else [Path(run) for run in runs]
    if not folders:
        raise ValueError("name at least one run folder")
    # Reports mistakes in the last run before the first run is measured.
    plans = [_plan(folder, data, against, splits, stride, min_context, compressors) for folder in folders]
    search = {"beams": beams, "length_penalty": length_penalty}
    results = [_measure(plan, search, compressors, checkpoint, device, dtype) for plan in plans]
    if as_json:
        for result in results:
            write(json.dumps(result))
    else:
        _show(plans, results, explain)
    return results[0] if single else results


def measure(folder: Path, *, compressors: bool = False, dtype: str = "float32") -> dict[str, Any]:
    """Return the default evaluation of a run, on the validation split of its dataset; print no table."""
    plan = _plan(folder, None, None, ("validation",), None, 1, compressors)
    return _measure(plan, {"beams": 4, "length_penalty": 1.0}, compressors, "newest", "auto", dtype)


@dataclass(frozen=True)
class Plan:
    """A run, the splits of a dataset to measure it on, and the run to compare it with."""

    run: "Run"
    dataset: "Dataset"
    windows: "WindowSettings"
    splits: dict[str, Any]
    other: "Run | None"


def _plan(
    folder: Path,
    data: Path | None,
    against: Path | None,
    splits: tuple[str, ...],
    stride: int | None,
    min_context: int,
    compressors: bool,
) -> Plan:
    """Return the plan of one evaluation; ValueError for options that do not fit the run in `folder`."""
    from pipelines.evaluation.measure import comparable, dataset_of, windows_of
    from pipelines.run.folder import Run

    run = Run(folder)
    if compressors and run.recipe.objective == "sequence-pairs":
        raise ValueError(f"{folder} was trained on pairs, and --compressors is about a text: leave it out")
    dataset = dataset_of(run, data)
    windows = windows_of(run, dataset, stride, min_context)
    streams = {split: dataset.split(split) for split in splits}
    return Plan(run, dataset, windows, streams, comparable(Run(against), run) if against else None)


def _measure(
    plan: Plan, search: dict[str, Any], compressors: bool, checkpoint: str, device: str, dtype: str
) -> dict[str, Any]:
    """Score the splits of a plan, add them to evaluation.json, and return its contents."""
    from pipelines.evaluation.measure import SplitScorer
    from pipelines.run.evaluation_file import Evaluation, with_evaluations
    from pipelines.run.loading import load_trained
    from pipelines.run.manifest import manifest_sha256
    from pipelines.run.provenance import provenance

    run, dataset = plan.run, plan.dataset
    trained = load_trained(run, device, dtype, checkpoint)
    other = load_trained(plan.other, device, dtype).model if plan.other else None
    scorer = SplitScorer(run, trained, dataset, plan.windows, search=search, other=other)
    sources = {
        "checkpoint": trained.checkpoint.name,
        "checkpoint_sha256": manifest_sha256(trained.checkpoint),
        "data": str(dataset.folder.resolve()),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": dataset.tokenizer_fingerprint,
        "against": str(plan.other.folder) if plan.other else None,
    }
    added = []
    for split, stream in plan.splits.items():
        started = time.perf_counter()
        numbers = scorer.score(stream, split)
        seconds = round(time.perf_counter() - started, 3)
        if compressors:
            numbers["compressors"] = scorer.compressed(split)
        measured = sources | provenance(trained.machine.device) | {"seconds": seconds}
        added.append(Evaluation(split, numbers, measured))
    result = with_evaluations(_earlier(run), run.name, added)
    write_json(run.folder / "evaluation.json", result)
    return result


def _earlier(run: "Run") -> dict[str, Any] | None:
    """Return the contents of the run's evaluation.json; rename a damaged file and return None."""
    try:
        return run.evaluation()
    except ValueError:
        path = run.folder / "evaluation.json"
        aside = path.rename(path.with_name("evaluation.json.damaged"))
        warnings.warn(f"{path} is damaged: renamed to {aside.name}, and a new file begun", stacklevel=2)
        return None


def _show(plans: Sequence[Plan], results: Sequence[dict[str, Any]], explain: bool) -> None:
    """Print a table with a row for each number and a column for each split of each run; name the files."""
    from pipelines.cli.display import answer, say, table
    from pipelines.evaluation.numbers import definitions, in_words, rows_of
    from pipelines.files import distinct_names

    names = distinct_names([plan.run.folder for plan in plans])
    columns = {
        (name, split): result["splits"][split]
        for name, plan, result in zip(names, plans, results, strict=True)
        for split in plan.splits
    }
    heads = [f"{name}, {split}" if len(plans) > 1 else split for name, split in columns]
    rows = rows_of(list(columns.values()))
    table((" ".join(names) if len(plans) == 1 else "", *heads), [(in_words(key), *cells) for key, cells in rows])
    for signature in sorted(
        {numbers["bleu_signature"] for numbers in columns.values() if numbers.get("bleu_signature")}
    ):
        answer(f"BLEU: {signature}")
    for name, key, definition in definitions(rows) if explain else ():
        answer(f"\n{name} ({key})\n  {definition}")
    say("")
    for plan, result in zip(plans, results, strict=True):
        of = result["measured"][next(iter(plan.splits))]
        say(f"saved in {plan.run.folder / 'evaluation.json'} ({of['checkpoint']}, {of['data']}, {of['hardware']})")
    if not explain:
        say("--explain defines the numbers")


def main(arguments: list[str]) -> None:
    parse(evaluate, arguments, "evaluate")

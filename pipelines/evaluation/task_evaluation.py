"""The evaluation of a fine-tuned run: its task measures examples, and evaluation.json gets the results."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pipelines.cli.display import Bar, say
from pipelines.evaluation.measurement import Result
from pipelines.evaluation.planning import TaskPlan
from pipelines.evaluation.results import Evaluation, Measured, SplitEvaluation, add_to_file
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model
from pipelines.run.predictor import Predictor, tuned_task
from pipelines.run.provenance import provenance
from pipelines.tasks.comparison import Comparison
from pipelines.tasks.data import ExampleFiles, fingerprint
from pipelines.tasks.seeds import Seeds
from pipelines.tasks.task import Example, Task, TaskSettings

R = TypeVar("R", bound=Result)


def measure_task(
    plan: TaskPlan,
    further: Mapping[str, Result] = MappingProxyType({}),
    by_seed: Mapping[int, Result] = MappingProxyType({}),
) -> Evaluation:
    """Measure a fine-tuned run on the examples of a plan; return all its evaluations.

    `further` are results of other predictors on the same examples, by name, and `by_seed` those of the same training
    with other seeds. Both are kept from an earlier evaluation of the same checkpoint and examples.
    """
    started, run, options = time.perf_counter(), plan.run, plan.options
    files = ExampleFiles.of(run)
    if plan.data:
        files = replace(files, test=plan.data)
    loaded = load_model(run, options.device, options.dtype, options.checkpoint, needs="float64")
    task, training, examples = _other_examples(run, files, loaded.checkpoint) if plan.data else _own_examples(run)
    files.warn_of_repeats(training, examples)
    task.check(examples)
    predictor = Predictor(run, loaded.model, task)
    encoded = task.encode(examples, predictor.reader)
    with Bar("testing", len(encoded), "examples") as bar:
        results = task.results(task.outputs(predictor, encoded, progress=bar.update), encoded, examples)
    cut = len({example.origin for example in encoded if example.cut})
    baselines = task.baselines(training, examples, predictor.reader) if training else {}
    others = {**baselines, **(further or {})}
    scored = len({example.origin for example in encoded})
    settings = TaskSettings(task.name, scored, cut, loaded.machine.dtype_name)
    measured = Measured(
        checkpoint=loaded.checkpoint.name,
        checkpoint_sha256=run.weights_sha256(loaded.checkpoint),
        data=" ".join(map(str, files.test or files.data)),
        dataset_fingerprint=fingerprint(examples) if plan.data else run.facts["dataset_fingerprint"],
        tokenizer_fingerprint=run.facts["tokenizer_fingerprint"],
        against=None,
        **provenance(loaded.machine.device),
        seconds=round(time.perf_counter() - started, 3),
    )
    earlier = _earlier(run, measured, Comparison)
    comparison = [Comparison.of(results[0], task.better, others).keeping(earlier)] if others or earlier else []
    seeds = _earlier(run, measured, Seeds)
    if by_seed:
        seeds = Seeds.of([run.recipe.train.seed, *by_seed], [results[0], *by_seed.values()])
    beside = [*comparison, *([seeds] if seeds else [])]
    return add_to_file(run, [SplitEvaluation(plan.splits[0], (*results, *beside, settings), measured)])


def _own_examples(run: Run) -> tuple[Task, list[Example], list[Example]]:
    """Return the task of a fine-tuned run, and the examples that it was trained and tested on.

    Raises ValueError if a file is missing, or if the examples have changed.
    """
    task, files = run.recipe.task, ExampleFiles.of(run)
    assert task is not None
    _, training, examples = files.split(task)
    if fingerprint(training, examples) != run.facts["dataset_fingerprint"]:
        named = " or ".join(map(str, (*files.data, *files.test)))
        raise ValueError(
            f"{named} has changed since {run.folder} was trained: restore the examples, or name others with `data`"
        )
    return task, training, examples


def _other_examples(run: Run, files: ExampleFiles, checkpoint: Path) -> tuple[Task, list[Example], list[Example]]:
    """Return a run's task as tuned for `checkpoint`, the run's training examples, and the examples of `files.test`.

    Without the training examples there are no baselines, and a message says so.
    """
    task, _, examples = replace(files, data=()).split(tuned_task(run, checkpoint))
    if not files.data:
        return task, [], examples
    try:
        return task, _own_examples(run)[1], examples
    except (ValueError, OSError) as error:
        say(f"baselines are left out: {error}")
        return task, [], examples


def _earlier(run: Run, measured: Measured, kind: type[R]) -> R | None:
    """Return the result of a kind in an earlier evaluation of the same checkpoint and examples, if any."""
    try:
        evaluation = Evaluation.read(run.results)
    except ValueError:
        return None  # `add_to_file` warns about it
    same = (
        one
        for one in (evaluation.all if evaluation else ())
        if one.measured.checkpoint_sha256 == measured.checkpoint_sha256
        and one.measured.dataset_fingerprint == measured.dataset_fingerprint
    )
    return next((result for one in same if (result := one.find(kind))), None)

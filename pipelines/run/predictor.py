"""Predictions of a fine-tuned run: examples to model outputs and predicted fields."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lm.task_model import TrainedModel
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.tasks.data import reader_of
from pipelines.tasks.task import Example, Task

if TYPE_CHECKING:
    from pipelines.run.loaded_run import Loaded

CHUNK = 4096  # examples in memory at once


class Predictor:
    """The model and the task of a fine-tuned run."""

    def __init__(self, run: Run, model: TrainedModel, task: Task) -> None:
        """`model`: the model of the run, in evaluation mode."""
        self.run, self.model, self.task = run, model, task
        self.reader = reader_of(run, self.task)
        self.examples = self.cut = 0
        """Number of examples so far, and of those longer than the context"""

    @classmethod
    def of(cls, run: Run, loaded: "Loaded") -> Self:
        """Return the predictor of a loaded model, with the task tuned for its checkpoint."""
        return cls(run, loaded.model, tuned_task(run, loaded.checkpoint))

    def predictions(self, examples: Iterable[Example]) -> Iterator[tuple[Example, dict[str, Any]]]:
        """Yield each example with its predicted fields. At most CHUNK examples are in memory."""
        iterator = iter(examples)
        while chunk := list(islice(iterator, CHUNK)):
            encoded = self.task.encode(chunk, self.reader)
            self.examples += len(chunk)
            self.cut += len({example.origin for example in encoded if example.cut})
            outputs = self.task.outputs(self, encoded, labelled=False)
            yield from zip(chunk, self.task.predictions(outputs, encoded, chunk), strict=True)


def tuned_task(run: Run, checkpoint: Path) -> Task:
    """Return the task of a run, tuned by an evaluation on the run's held-out examples.

    This is the newest evaluation of `checkpoint`, or of any other checkpoint if `checkpoint` was not evaluated.
    """
    task, own = run.recipe.task, run.facts["dataset_fingerprint"]
    assert task is not None
    if type(task).tuned is Task.tuned:
        return task
    evaluation = Evaluation.read(run.results) or Evaluation.read(run.folder)
    weights = run.weights_sha256(checkpoint)
    found = [one for one in (evaluation.all if evaluation else ()) if one.measured.dataset_fingerprint == own]
    found.sort(key=lambda one: one.measured.checkpoint_sha256 != weights)
    return task.tuned(found[0].results if found else ())

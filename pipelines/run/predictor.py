"""Predictions of a fine-tuned run: examples to model outputs and predicted fields."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from lm.task_model import TrainedModel
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.tasks.data import reader_of
from pipelines.tasks.task import Example, Task

CHUNK = 4096  # examples in memory at once


class Predictor:
    """The model and the task of a fine-tuned run."""

    def __init__(self, run: Run, model: TrainedModel, task: Task | None = None) -> None:
        """`model`: the model of the run, in evaluation mode. `task`: by default `tuned_task(run)`."""
        self.run, self.model = run, model
        self.task = task or tuned_task(run)
        self.reader = reader_of(run, self.task)
        self.examples = self.cut = 0
        """Number of examples so far, and of those longer than the context"""

    def predictions(self, examples: Iterable[Example]) -> Iterator[tuple[Example, dict[str, Any]]]:
        """Yield each example with its predicted fields. At most CHUNK examples are in memory."""
        iterator = iter(examples)
        while chunk := list(islice(iterator, CHUNK)):
            encoded = self.task.encode(chunk, self.reader)
            self.examples += len(chunk)
            self.cut += len({example.origin for example in encoded if example.cut})
            outputs = self.task.outputs(self, encoded, labelled=False)
            yield from zip(chunk, self.task.predictions(outputs, encoded, chunk), strict=True)


def tuned_task(run: Run) -> Task:
    """Return the task of a run, tuned by the newest evaluation on its held-out examples."""
    task, own = run.recipe.task, run.facts["dataset_fingerprint"]
    assert task is not None
    if type(task).tuned is Task.tuned:
        return task
    known = evaluation.all if (evaluation := Evaluation.read(run.folder)) else []
    newest = next((one for one in known if one.measured.dataset_fingerprint == own), None)
    return task.tuned(newest.results if newest else ())

"""Predictions of a fine-tuned run: examples to model outputs and predicted fields."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from lm.metrics.predictions import token_nll
from lm.model import LanguageModel
from lm.task_model import TrainedModel
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.tasks.data import reader_of
from pipelines.tasks.examples import Encoded, batch_of
from pipelines.tasks.task import Example, Task
from pipelines.training.batch import Array, Batch, model_inputs
from pipelines.training.batch_loss import logits_in_parts, to_device

BATCH = 64  # examples in one forward pass
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

    def outputs(
        self, encoded: Sequence[Encoded], progress: Callable[[int], None] | None = None, labelled: bool = True
    ) -> Sequence[Any]:
        """Return the outputs of the model for each encoded example: see `Task.outputs`."""
        outputs = self.task.outputs(self, encoded, labelled, progress)
        return task_outputs(self.model, encoded, progress) if outputs is None else outputs

    def predictions(self, examples: Iterable[Example]) -> Iterator[tuple[Example, dict[str, Any]]]:
        """Yield each example with its predicted fields. At most CHUNK examples are in memory."""
        iterator = iter(examples)
        while chunk := list(islice(iterator, CHUNK)):
            encoded = self.task.encode(chunk, self.reader)
            self.examples += len(chunk)
            self.cut += len({example.origin for example in encoded if example.cut})
            outputs = self.outputs(encoded, labelled=False)
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


@torch.inference_mode()
def task_outputs(
    model: torch.nn.Module, encoded: Sequence[Encoded], progress: Callable[[int], None] | None = None
) -> list[Array]:
    """Return the outputs of a model in evaluation mode for each encoded example, float32 on the CPU.

    For the head of a task, outputs are (P, L), without padding if P counts positions. For a language model, they are
    (P, 2): the nats of each target, and 1 if the target was ranked first.
    """
    order = np.argsort([example.tokens for example in encoded], kind="stable")
    outputs: list[Array] = [np.empty(0)] * len(encoded)
    for start in range(0, len(encoded), BATCH):
        chosen = order[start : start + BATCH]
        batch = batch_of([encoded[i] for i in chosen])
        rows = _target_scores(model, batch) if isinstance(model, LanguageModel) else _head_outputs(model, batch)
        for i, row in zip(chosen, rows, strict=True):
            targets = encoded[i].targets
            outputs[i] = row[: len(targets)] if row.shape[0] == batch.targets.shape[-1] else row
        if progress:
            progress(min(len(encoded), start + BATCH))
    return outputs


def _head_outputs(model: torch.nn.Module, batch: Batch) -> Array:
    device = next(model.parameters()).device
    outputs: Array = model(**to_device(model_inputs(batch), device)).cpu().numpy()
    return outputs


def _target_scores(model: LanguageModel, batch: Batch) -> Array:
    """Return (B, P, 2): the nats of each target, and 1 if the target was ranked first."""
    hidden = model(**to_device(model_inputs(batch), model.embedding.weight.device)).flatten(0, -2)
    targets = torch.from_numpy(batch.targets.ravel()).to(hidden.device)
    parts = [
        torch.stack((token_nll(logits, targets[part]), (logits.argmax(dim=-1) == targets[part]).double()), dim=-1)
        for part, logits in logits_in_parts(model, hidden)
    ]
    scores: Array = torch.cat(parts).float().cpu().numpy()
    return scores.reshape(*batch.targets.shape, 2)

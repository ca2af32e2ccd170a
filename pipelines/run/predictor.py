"""A fine-tuned run that predicts: examples in, outputs of the model, results and predictions out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from lm.metrics.predictions import token_nll
from lm.model import LanguageModel
from pipelines.run.folder import Run
from pipelines.run.loaded_run import Loaded
from pipelines.tasks.data import reader_of
from pipelines.tasks.examples import Encoded, batch_of
from pipelines.tasks.task import Example, Task
from pipelines.training.batch import Array, Batch, model_inputs
from pipelines.training.batch_loss import logits_in_parts, to_device

BATCH = 64  # examples in one forward pass
CHUNK = 4096  # examples in memory at once


class Predictor:
    """The model and the task of a fine-tuned run."""

    def __init__(self, run: Run, loaded: Loaded) -> None:
        assert run.recipe.task is not None
        self.task: Task = run.recipe.task
        self.loaded = loaded
        self.reader = reader_of(run, self.task)
        self.examples = self.cut = 0
        """Examples that were predicted for, and how many of them were longer than the model reads"""

    def outputs(self, encoded: Sequence[Encoded], progress: Callable[[int], None] | None = None) -> list[Array]:
        """Return the outputs of the model for each encoded example, float32: see `task_outputs`."""
        return task_outputs(self.loaded.model, encoded, progress)

    def predictions(self, examples: Iterable[Example]) -> Iterator[tuple[Example, dict[str, Any]]]:
        """Yield each example with the fields that the task predicts, at most CHUNK examples at a time in memory."""
        iterator = iter(examples)
        while chunk := list(islice(iterator, CHUNK)):
            encoded = self.task.encode(chunk, self.reader)
            self.examples += len(chunk)
            self.cut += len({example.origin for example in encoded if example.cut})
            yield from zip(chunk, self.task.predictions(self.outputs(encoded), encoded, chunk), strict=True)


@torch.inference_mode()
def task_outputs(
    model: torch.nn.Module, encoded: Sequence[Encoded], progress: Callable[[int], None] | None = None
) -> list[Array]:
    """Return the outputs of a model in evaluation mode for each encoded example, float32 on the CPU.

    They are the outputs (P, L) of the head of a task, without padding where P counts positions. For a language model
    they are (P, 2): the nats of each target, and 1 where it was ranked first.
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
    """Return the nats of each target, and whether it was ranked first: (B, P, 2)."""
    hidden = model(**to_device(model_inputs(batch), model.embedding.weight.device)).flatten(0, -2)
    targets = torch.from_numpy(batch.targets.ravel()).to(hidden.device)
    parts = [
        torch.stack((token_nll(logits, targets[part]), (logits.argmax(dim=-1) == targets[part]).double()), dim=-1)
        for part, logits in logits_in_parts(model, hidden)
    ]
    scores: Array = torch.cat(parts).float().cpu().numpy()
    return scores.reshape(*batch.targets.shape, 2)

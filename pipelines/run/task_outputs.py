"""Outputs of a model for the examples of a task."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lm.metrics.predictions import token_nll
from lm.model import LanguageModel
from pipelines.tasks.examples import Encoded, batch_of
from pipelines.training.batch import Array, Batch, model_inputs
from pipelines.training.batch_loss import logits_in_parts, to_device

BATCH = 64  # examples in one forward pass


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

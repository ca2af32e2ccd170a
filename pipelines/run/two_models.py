"""Two models on the same targets, such as a fine-tuned model and the run that it started from."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from lm.metrics.predictions import divergences, token_nll
from lm.model import LanguageModel
from pipelines.tasks.examples import Encoded, batch_of
from pipelines.training.batch import Array, Batch
from pipelines.training.batch_loss import hidden_states, logits_in_parts

EXAMPLES = 32  # in one forward pass

Score = TypeVar("Score")


class TargetScores(NamedTuple):
    """Scores of N targets by a model, and by another, if there is one: float64 (N,)."""

    nats: Array
    """-ln p"""
    other_nats: Array | None
    """-ln p of the other model"""
    kl_bits: Array | None
    """D(model || other)"""
    reverse_kl_bits: Array | None
    """D(other || model)"""


@torch.inference_mode()
def target_scores(model: LanguageModel, other: LanguageModel | None, batch: Batch, scored: Array) -> TargetScores:
    """Return the scores of the targets of a batch where `scored` (B, P) bool is True, by models in evaluation mode."""
    hidden = hidden_states(model, batch, scored)
    theirs = hidden if other is None else hidden_states(other, batch, scored)
    targets = torch.from_numpy(batch.targets[scored]).to(hidden.device)
    parts = []
    for part, logits in logits_in_parts(model, hidden):
        found = [token_nll(logits, targets[part])]
        if other is not None:
            other_logits = other.logits(theirs[part]).float()
            found += [token_nll(other_logits, targets[part]), *divergences(logits, other_logits)[:2]]
        parts.append(torch.stack(found))
    scores = torch.cat(parts, dim=1).cpu().numpy()
    return TargetScores(*scores) if other is not None else TargetScores(scores[0], None, None, None)


def in_batches(
    encoded: Sequence[Encoded], score: Callable[[Batch], Sequence[Score]], progress: Callable[[int], None] | None
) -> list[Score]:
    """Return the score of each example. `score` gets batches of similar lengths; `progress` the number so far."""
    order = np.argsort([example.tokens for example in encoded], kind="stable").tolist()
    scores: dict[int, Score] = {}
    for start in range(0, len(order), EXAMPLES):
        chosen = order[start : start + EXAMPLES]
        scores |= zip(chosen, score(batch_of([encoded[i] for i in chosen])), strict=True)
        if progress:
            progress(len(scores))
    return [scores[i] for i in range(len(encoded))]


def sums_of_rows(values: Array, scored: Array) -> Array:
    """Return the sum of `values` in each row, (B,). `values` (N,) stand at the places where `scored` (B, P) is True."""
    return np.bincount(np.nonzero(scored)[0], values, len(scored))

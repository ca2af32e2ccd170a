"""Log-probabilities of pairs of answers by a model, and by the reference that it started from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from lm.model import LanguageModel
from lm.task_model import TrainedModel
from pipelines.cli.waiting import doing
from pipelines.run.folder import Run
from pipelines.run.two_models import in_batches, sums_of_rows, target_scores
from pipelines.tasks.examples import Encoded
from pipelines.training.batch import Array, Batch
from pipelines.training.init_from import source_of
from pipelines.training.logit_losses import answer_rows


class Scores(NamedTuple):
    """The scores of a pair of answers."""

    own: Array
    """(2,) float64: ln p of the chosen and the rejected answer"""
    reference: Array | None
    """The same of the reference, if there is one"""
    kl_bits: float
    """Sum of D(p || p of the reference) over the tokens of both answers; 0 without a reference"""
    tokens: int
    """Tokens of both answers"""


def reference_of(run: Run, model: TrainedModel) -> LanguageModel:
    """Return the model that a run started from, on the device of `model`.

    Raises ValueError if its weights are gone, or if the run is a copy with another vocabulary.
    """
    if "imported_from" in run.facts:
        raise ValueError(f"{run.folder} was made of {run.facts['imported_from']} and has another vocabulary")
    random = "init_from" not in run.facts
    reference = LanguageModel(run.recipe.model, run.recipe.train.seed if random else None)
    if not random:
        reference.load_state_dict(source_of(run).weights)
    return reference.to(next(model.parameters()).device).eval()


def with_reference(encoded: Sequence[Encoded], reference: TrainedModel) -> list[Encoded]:
    """Return the pairs with ln p of their answers by the reference as `extra`, (2,) float32."""
    doing("scoring the answers with the weights before training")
    scores = answer_scores(reference, None, encoded)
    return [replace(one, extra=score.own.astype(np.float32)) for one, score in zip(encoded, scores, strict=True)]


def answer_scores(
    model: TrainedModel,
    reference: LanguageModel | None,
    encoded: Sequence[Encoded],
    progress: Callable[[int], None] | None = None,
) -> list[Scores]:
    """Return the scores of each pair by models in evaluation mode."""
    assert isinstance(model, LanguageModel)
    return in_batches(encoded, partial(_of_batch, model, reference), progress)


def _of_batch(model: LanguageModel, reference: LanguageModel | None, batch: Batch) -> list[Scores]:
    flat = answer_rows(batch)
    scored = flat.weights > 0
    found = target_scores(model, reference, flat, scored)
    tokens = scored.sum(axis=1).reshape(-1, 2).sum(axis=1).tolist()
    own = sums_of_rows(-found.nats, scored).reshape(-1, 2)
    if found.other_nats is None or found.kl_bits is None:
        return [Scores(ours, None, 0.0, count) for ours, count in zip(own, tokens, strict=True)]
    theirs = sums_of_rows(-found.other_nats, scored).reshape(-1, 2)
    kl = sums_of_rows(found.kl_bits, scored).reshape(-1, 2).sum(axis=1).tolist()
    return [Scores(*row) for row in zip(own, theirs, kl, tokens, strict=True)]

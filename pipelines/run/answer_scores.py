"""Log-probabilities of pairs of answers by a model, and by the reference that it started from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from lm.metrics.predictions import divergences, token_nll
from lm.model import LanguageModel
from lm.task_model import TrainedModel
from pipelines.run.folder import Run
from pipelines.tasks.examples import Encoded, batch_of
from pipelines.training.answer_loss import answer_rows
from pipelines.training.batch import Array, Batch
from pipelines.training.batch_loss import hidden_states, logits_in_parts
from pipelines.training.init_from import source_of

PAIRS = 32  # in one forward pass


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
    """Return the model that a run started from, on the device of `model`; ValueError if its weights are gone."""
    random = "init_from" not in run.facts
    reference = LanguageModel(run.recipe.model, run.recipe.train.seed if random else None)
    if not random:
        reference.load_state_dict(source_of(run).weights)
    return reference.to(next(model.parameters()).device).eval()


def with_reference(encoded: Sequence[Encoded], reference: TrainedModel) -> list[Encoded]:
    """Return the pairs with ln p of their answers by the reference as `extra`, (2,) float32."""
    scores = answer_scores(reference, None, encoded)
    return [replace(one, extra=score.own.astype(np.float32)) for one, score in zip(encoded, scores, strict=True)]


@torch.inference_mode()
def answer_scores(
    model: TrainedModel,
    reference: LanguageModel | None,
    encoded: Sequence[Encoded],
    progress: Callable[[int], None] | None = None,
) -> list[Scores]:
    """Return the scores of each pair by models in evaluation mode."""
    assert isinstance(model, LanguageModel)
    order = np.argsort([example.tokens for example in encoded], kind="stable").tolist()
    scores: dict[int, Scores] = {}
    for start in range(0, len(order), PAIRS):
        chosen = order[start : start + PAIRS]
        scores |= zip(chosen, _of_batch(model, reference, batch_of([encoded[i] for i in chosen])), strict=True)
        if progress:
            progress(min(len(order), start + PAIRS))
    return [scores[i] for i in range(len(encoded))]


def _of_batch(model: LanguageModel, reference: LanguageModel | None, batch: Batch) -> list[Scores]:
    flat = answer_rows(batch)
    scored = flat.weights > 0
    hidden = hidden_states(model, flat, scored)
    targets = torch.from_numpy(flat.targets[scored]).to(hidden.device)
    other = hidden if reference is None else hidden_states(reference, flat, scored)
    kinds: list[list[torch.Tensor]] = []
    for part, logits in logits_in_parts(model, hidden):
        found = [-token_nll(logits, targets[part])]
        if reference is not None:
            theirs = reference.logits(other[part]).float()
            found += [-token_nll(theirs, targets[part]), divergences(logits, theirs)[0]]
        kinds.append(found)
    sums = []
    for kind in zip(*kinds, strict=True):
        of_rows = np.zeros(len(scored))
        np.add.at(of_rows, np.nonzero(scored)[0], torch.cat(kind).cpu().numpy())
        sums.append(of_rows.reshape(-1, 2))
    tokens = scored.sum(axis=1).reshape(-1, 2).sum(axis=1).tolist()
    if reference is None:
        return [Scores(own, None, 0.0, count) for own, count in zip(sums[0], tokens, strict=True)]
    return [Scores(own, theirs, float(kl.sum()), count) for own, theirs, kl, count in zip(*sums, tokens, strict=True)]

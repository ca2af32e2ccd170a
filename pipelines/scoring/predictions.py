"""Compute a model's predictions for the tokens of windows, as arrays."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from lm.metrics.predictions import token_scores
from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.evaluation.windows import Windows, windows_per_batch
from pipelines.training.batch import Array
from pipelines.training.batch_loss import hidden_states, logits_in_parts


@dataclass(frozen=True)
class Predictions:
    """Predictions of N tokens, in nats. Tokens that no window predicts have NaN, rank 0 and candidates -1."""

    log_probabilities: Array
    """(N,) float64: ln p of the token"""
    entropies: Array
    """(N,) float64: entropy of the prediction"""
    ranks: Array
    """(N,) int64: 1 for the likeliest token"""
    top_ids: Array
    """(N, K) int64: the K likeliest tokens"""
    top_log_probabilities: Array
    """(N, K) float64"""
    group_log_probabilities: Array
    """(N,) float64: ln of the total probability of the tokens in `group`; NaN without a group"""

    @classmethod
    def unknown(cls, count: int, top: int) -> "Predictions":
        """Return empty predictions of `count` tokens with `top` candidates."""
        nan = np.nan
        return cls(
            np.full(count, nan),
            np.full(count, nan),
            np.zeros(count, np.int64),
            np.full((count, top), -1),
            np.full((count, top), nan),
            np.full(count, nan),
        )

    def part(self, start: int, end: int) -> "Predictions":
        """Return the predictions of the tokens from `start` to `end`, exclusive."""
        return Predictions(*(array[start:end] for array in vars(self).values()))


def predict(
    model: LanguageModel,
    windows: Iterable[Windows],
    count: int,
    *,
    first: int = 0,
    top: int = 0,
    group: Array | None = None,
    total: int = 0,
) -> Predictions:
    """Return the predictions of `count` tokens from the windows that score them.

    Raises ValueError if logits are not finite.

    Args:
        model: The model, in evaluation mode.
        windows: Windows of the text.
        count: Number of tokens of the result.
        first: Index of the first of these tokens in `Windows.indices`.
        top: Number of likeliest tokens to return for each prediction.
        group: (V,) bool: tokens whose total probability to return.
        total: Number of windows, for the progress bar. A single batch shows no bar.
    """
    made = Predictions.unknown(count, min(top, model.config.vocab_size))
    at_once = windows_per_batch(model.config.context_length)
    with Bar("scoring", total, "window") if total > at_once else nullcontext() as bar:
        for done in predict_batches(model, windows, made, first=first, group=group):
            if bar:
                bar.update(done)
    return made


@torch.inference_mode()
def predict_batches(
    model: LanguageModel, windows: Iterable[Windows], made: Predictions, *, first: int = 0, group: Array | None = None
) -> Iterator[int]:
    """Write the predictions of windows to `made`, a batch at a time, and yield the number of windows done so far.

    See `predict` for the arguments.
    """
    device = model.embedding.weight.device
    chosen = None if group is None else torch.from_numpy(np.flatnonzero(group)).to(device)
    done = 0
    for part in windows:
        scored = part.scored
        if scored.any():
            hidden = hidden_states(model, part.batch, scored)
            targets = torch.from_numpy(part.batch.targets[scored]).to(device)
            write_scores(model, hidden, targets, part.indices[scored] - first, made, chosen)
        done += len(scored)
        yield done


def write_scores(
    model: LanguageModel,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    places: Array,
    made: Predictions,
    group: torch.Tensor | None = None,
) -> None:
    """Write the predictions of `targets` (P,) from hidden states (P, width) to `places` (P,) of `made`.

    Also writes the total probability of the ids `group` (G,) int64, if given. Raises ValueError if logits are not
    finite.
    """
    for part, logits in logits_in_parts(model, hidden):
        scores = token_scores(logits, targets[part], made.top_ids.shape[1])
        if bool(scores.log_probabilities.isnan().any()):  # one logit that is not finite makes its whole row NaN
            raise ValueError("the model's logits are not finite: its training diverged, choose an earlier `checkpoint`")
        at = places[part]
        for name, values in scores._asdict().items():
            getattr(made, name)[at] = values.cpu().numpy()
        if group is not None:
            # ln p = logit - log-sum-exp: the targets' logits give the log-sum-exp without another pass.
            total = logits.gather(-1, targets[part, None]).squeeze(-1).double() - scores.log_probabilities
            inside = logits.index_select(-1, group).double().logsumexp(dim=-1) - total
            made.group_log_probabilities[at] = inside.cpu().numpy()

"""Compute a model's predictions for the tokens of windows, as arrays."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from lm.metrics.predictions import token_scores
from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.evaluation.windows import windows_per_batch
from pipelines.scoring.windows import Array, Window
from pipelines.training.batch import logits_in_parts


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
    """(N,) float64: ln of the predicted probability of all tokens in `group`; NaN without a group"""

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
    windows: Iterable[Window],
    count: int,
    *,
    top: int = 0,
    source: list[int] | None = None,
    group: Array | None = None,
    total: int = 0,
) -> Predictions:
    """Return the predictions of `count` tokens from the windows that contain them.

    Shorter windows of a batch are padded on the right, which is correct only for causal models. Raises ValueError if
    logits are not finite.

    Args:
        model: The model, in evaluation mode.
        windows: Windows of the text.
        count: Number of tokens of the result.
        top: Number of likeliest tokens to return for each prediction.
        source: Ids of the source of an encoder-decoder.
        group: (V,) bool: tokens whose total probability to return.
        total: Number of windows, for the progress bar; one batch of windows shows none.
    """
    made = Predictions.unknown(count, min(top, model.config.vocab_size))
    with Bar("scoring", total, "window") if total > windows_at_once(model) else nullcontext() as bar:
        for done in predict_batches(model, windows, made, source=source, group=group):
            if bar:
                bar.update(done)
    return made


@torch.inference_mode()
def predict_batches(
    model: LanguageModel,
    windows: Iterable[Window],
    made: Predictions,
    *,
    source: list[int] | None = None,
    group: Array | None = None,
) -> Iterator[int]:
    """Write the predictions of windows to `made`, a batch at a time, and yield the number of windows done so far.

    See `predict` for the arguments.
    """
    chosen = None if group is None else torch.from_numpy(np.flatnonzero(group)).to(model.embedding.weight.device)
    done = 0
    for batch in _batches(iter(windows), windows_at_once(model)):
        _predict_batch(model, batch, source, chosen, made)
        done += len(batch)
        yield done


def windows_at_once(model: LanguageModel) -> int:
    """Return the number of windows in a batch."""
    return windows_per_batch(model.config.context_length)


def _predict_batch(
    model: LanguageModel, batch: list[Window], source: list[int] | None, group: torch.Tensor | None, made: Predictions
) -> None:
    """Write the predictions of a batch of windows to `made`."""
    device = model.embedding.weight.device
    width = max(len(window.inputs) for window in batch)
    ids = np.zeros((len(batch), width), np.int64)
    for row, window in enumerate(batch):
        ids[row, : len(window.inputs)] = window.inputs
    rows = np.concatenate([row * width + window.columns for row, window in enumerate(batch)])
    targets = torch.from_numpy(np.concatenate([window.targets for window in batch])).to(device)
    places = np.concatenate([window.places for window in batch])
    read = None if source is None else torch.tensor([source], device=device).expand(len(batch), -1)
    hidden = model(torch.from_numpy(ids).to(device), read, rows=torch.from_numpy(rows).to(device))
    write_scores(model, hidden, targets, places, made, group)


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
        found = token_scores(logits, targets[part], made.top_ids.shape[1])
        if bool(found.log_probabilities.isnan().any()):  # one logit that is not finite makes its whole row NaN
            raise ValueError("the model's logits are not finite: its training diverged, choose an earlier --checkpoint")
        at = places[part]
        for name, values in found._asdict().items():
            getattr(made, name)[at] = values.cpu().numpy()
        if group is not None:
            # ln p = logit - log-sum-exp: the targets' logits give the log-sum-exp without another pass.
            total = logits.gather(-1, targets[part, None]).squeeze(-1).double() - found.log_probabilities
            inside = logits.index_select(-1, group).double().logsumexp(dim=-1) - total
            made.group_log_probabilities[at] = inside.cpu().numpy()


def _batches(windows: Iterator[Window], size: int) -> Iterator[list[Window]]:
    while batch := list(islice(windows, size)):
        yield batch

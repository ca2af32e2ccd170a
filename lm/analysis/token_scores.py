"""Score predictions: probability and rank of the target, entropy, likeliest tokens."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lm.analysis.metrics import Softmax


class TokenScores(NamedTuple):
    """Scores of N predictions, in nats."""

    log_probabilities: Tensor
    """(N,) float64: ln p of the target."""
    entropies: Tensor
    """(N,) float64: entropy of the prediction."""
    ranks: Tensor
    """(N,) int64: 1 + the number of tokens that are more probable than the target."""
    top_ids: Tensor
    """(N, K) int64: the K likeliest tokens, likeliest first."""
    top_log_probabilities: Tensor
    """(N, K) float64: their ln p. The target's entry equals `log_probabilities` exactly."""


def token_scores(logits: Tensor, targets: Tensor, top: int = 0) -> TokenScores:
    """Return the scores of predictions `logits` (N, V), any float dtype, at `targets` (N,) int64; K is `top`."""
    softmax = Softmax.of(logits)
    own = targets.unsqueeze(-1)
    best = softmax.centred.topk(min(top, logits.shape[-1]), dim=-1).indices
    ranks = 1 + (softmax.centred > softmax.centred.gather(-1, own)).count_nonzero(dim=-1)
    log_p, top_log_p = (softmax.log_probabilities(ids) for ids in (own, best))
    return TokenScores(log_p.squeeze(-1), softmax.entropies(), ranks, best, top_log_p)

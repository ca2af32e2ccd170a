"""Score predictions: probability and rank of the target, entropy, likeliest tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
    log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    own = log_p.gather(-1, targets.unsqueeze(-1))
    best = log_p.topk(min(top, log_p.shape[-1]), dim=-1)
    ranks = 1 + (log_p > own).count_nonzero(dim=-1)
    entropies = torch.special.entr(log_p.exp()).sum(dim=-1)  # also where logits are minus infinity
    return TokenScores(own.squeeze(-1).double(), entropies.double(), ranks, best.indices, best.values.double())

"""The score of each token of a split, from which intervals, differences and breakdowns are computed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipelines.evaluation.windows import Windows


@dataclass(frozen=True)
class TokenScores:
    """Scores of N tokens, 34 bytes each."""

    targets: np.ndarray
    """int32 (N,): ids of the scored tokens"""
    previous: np.ndarray
    """int32 (N,): ids of the tokens before them, -1 if there is none"""
    columns: np.ndarray
    """int32 (N,): their positions in the window, from 0"""
    windows: np.ndarray
    """int32 (N,): numbers of their windows in the split, or of their pairs"""
    indices: np.ndarray
    """int64 (N,): their places in the stream, -1 if they are not a part of a stream"""
    nats: np.ndarray
    """float64 (N,): -ln p"""
    correct: np.ndarray
    """bool (N,): whether the model ranked the token first"""
    gaps: np.ndarray
    """float64 (N,): nats of the run minus nats of the other run; empty without another run of the same tokenizer"""


def scores_of(
    windows: Windows,
    rows: np.ndarray,
    columns: np.ndarray,
    nats: list[torch.Tensor],
    correct: list[torch.Tensor],
    gaps: list[torch.Tensor],
) -> TokenScores:
    """Return the scores of the positions (rows, columns), each (N,), of `windows`. The tensors come in chunks."""
    return TokenScores(
        windows.batch.targets[rows, columns].astype(np.int32),
        windows.previous[rows, columns].astype(np.int32),
        columns.astype(np.int32),
        (windows.first + rows).astype(np.int32),
        windows.indices[rows, columns],
        torch.cat(nats).cpu().numpy(),
        torch.cat(correct).cpu().numpy(),
        torch.cat(gaps).cpu().numpy() if gaps else np.empty(0),
    )


def join(parts: Sequence[TokenScores]) -> TokenScores:
    """Return the scores of consecutive parts of a split; at least one part."""
    names = vars(parts[0])
    return TokenScores(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in names})

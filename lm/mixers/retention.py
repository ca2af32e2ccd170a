"""Retention: linear attention with a fixed decay per head (Sun et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.mixers.decayed import DecayedAttention


class Retention(DecayedAttention):
    """`DecayedAttention` with a = 1 - 2^(-5-h) in head h (Sun et al. 2023, equations 7 and 8), and RMSNorm as norm."""

    component = "retention"

    def log_decay(self, values: Tensor, *logits: Tensor) -> Tensor:
        head = torch.arange(self.heads, dtype=values.dtype, device=values.device)
        return torch.log1p(-torch.exp2(-5.0 - head))[None, :, None].expand(1, -1, values.shape[2])


MIXER = Retention

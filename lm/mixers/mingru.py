"""minGRU: a gated recurrent unit whose gates read the input only, so that a scan computes all positions at once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lm.config import ModelConfig
from lm.layers import Linear
from lm.mixers.mixer import Mix, select_rows
from lm.mixers.recurrent import RecurrentMixer, State, erase, widen
from lm.mixers.scan_costs import CHUNK
from lm.positions import Rotary

ABSENT = -1e4
"""Logarithm of what padding adds to the state: its exponential is 0, and its gradient is finite."""


class MinGRU(RecurrentMixer):
    """y_t = W_o h_t, h_t = (1 - z_t) h_(t-1) + z_t g(W_h x_t), z_t = sigmoid(W_z x_t) (Feng et al. 2024, 3.1 and B.2).

    g(x) = x + 1/2 from 0 on, and sigmoid(x) below, is positive, so all sums are computed from logarithms. The state is
    ln(h) (B, 1, width). Rotary positions have no effect.
    """

    component = "mingru"

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        self.width = config.width
        self.gate = Linear(config.width, config.width, config.bias)
        self.candidate = Linear(config.width, config.width, config.bias, gain=gain)
        self.output = Linear(config.width, config.width, config.bias, residual_writes, gain)

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Mix,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        return self.output(select_rows(mix(self.gate(x), self.candidate(x)), rows))

    def start(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        return (torch.full((batch, 1, self.width), -math.inf, dtype=dtype, device=device),)

    def scan(
        self,
        *projections: Tensor,
        state: State | None = None,
        segments: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Mix gates and candidates (B, T, width) in float32 or wider, chunk by chunk, because long sums lose digits.

        With l_t the sum of ln(1 - z) in the chunk, ln(h_t) = l_t + ln(h_0 + sum over s <= t of z_s g_s exp(-l_s)).
        """
        assert segments is None, "the mixer refuses model.document_mask"
        gate, candidate = (widen(each) for each in projections)
        kept, added = erase(-F.softplus(gate), present), -F.softplus(-gate) + _log_positive(candidate)
        if present is not None:
            added = added.masked_fill(~present.unsqueeze(-1), ABSENT)
        last = None if state is None else state[0]
        logs = []
        for own_kept, own_added in zip(kept.split(CHUNK, dim=1), added.split(CHUNK, dim=1), strict=True):
            decay = own_kept.cumsum(1)
            sums = torch.logcumsumexp(own_added - decay, dim=1)
            logs.append(decay + (sums if last is None else torch.logaddexp(sums, last)))
            last = logs[-1][:, -1:].clone()  # a view would keep the chunk in memory
        mixed = torch.cat(logs, dim=1).exp()
        return mixed.to(projections[0].dtype), () if state is None or last is None else (last,)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return self.gate.flops(length) + self.candidate.flops(length) + self.output.flops(outputs)


MIXER = MinGRU


def _log_positive(x: Tensor) -> Tensor:
    """Return ln(x + 1/2) from 0 on, and ln(sigmoid(x)) below."""
    return torch.where(x >= 0, torch.log(F.relu(x) + 0.5), -F.softplus(-x))

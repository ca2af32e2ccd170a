"""The gated recurrent unit (Cho et al. 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.mixers.gates import GatedRecurrence
from lm.mixers.recurrent import State


class GRU(GatedRecurrence):
    """h_t = (1 - z) n + z h_(t-1), with n = tanh(W_n x_t + r (U_n h_(t-1))) as in `torch.nn.GRU`.

    The gates r and z are sigmoids of x_t and h_(t-1).
    """

    component = "gru"
    gates, parts = 3, 1

    def fused(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        mixed, after = torch.gru(x, state[0], weights, len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, True)
        return mixed, (after,)

    def step(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        (r, z, n), (past_r, past_z, past_n) = inputs.chunk(3, dim=-1), recurrent.chunk(3, dim=-1)
        r, z = torch.sigmoid(r + past_r), torch.sigmoid(z + past_z)
        n = torch.tanh(n + r * past_n)
        return (n + z * (state[0] - n),)


MIXER = GRU

"""Long short-term memory (Hochreiter and Schmidhuber 1997)."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.mixers.gates import GatedRecurrence
from lm.mixers.recurrent import State


class LSTM(GatedRecurrence):
    """h_t = o tanh(c_t), c_t = f c_(t-1) + i tanh(g), as in `torch.nn.LSTM`.

    The gates i, f and o are sigmoids of x_t and h_(t-1). The bias of f starts at 1 (Jozefowicz et al. 2015).
    """

    component = "lstm"
    gates, parts = 4, 2
    ones = slice(1, 2)

    def fused(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        mixed, h, c = torch.lstm(x, state, weights, len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, True)
        return mixed, (h, c)

    def step(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        i, f, g, o = (inputs + recurrent).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


MIXER = LSTM

"""Recurrent networks with gates that read the last output: GRU and LSTM share this form.

Their positions cannot be computed in parallel: position t reads the output of position t - 1.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.initialization import Initializer
from lm.layers import Linear
from lm.mixers.mixer import Mix, select_rows
from lm.mixers.recurrent import RecurrentMixer, State, widen
from lm.positions import Rotary


class GateLinear(Linear):
    """Linear layer of all gates, with PyTorch's initial values of recurrent layers."""

    def __init__(self, inputs: int, outputs: int, bias: bool, ones: slice = slice(0)) -> None:
        """`ones`: the biases that start at 1."""
        super().__init__(inputs, outputs, bias)
        self.ones = ones

    def reset_parameters(self, initializer: Initializer) -> None:
        limit = self.weight.shape[1] ** -0.5
        self.weight.uniform_(-limit, limit, generator=initializer.generator)
        if self.bias is not None:
            self.bias.zero_()
            self.bias[self.ones] = 1.0


class GatedRecurrence(RecurrentMixer):
    """y_t = W_o h_t, with h_t a function of x_t and the state. The state is `parts` tensors (B, width), h first.

    In training and evaluation, PyTorch's own layer reads whole sequences in one call. Generation, and layers with
    adapters, read step by step. Rotary positions have no effect.
    """

    gates: ClassVar[int]
    parts: ClassVar[int]
    ones: ClassVar[slice] = slice(0)
    """Gates whose biases start at 1."""

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        width = self.width = config.width
        ones = slice(self.ones.start and self.ones.start * width, self.ones.stop * width)
        self.input = GateLinear(width, self.gates * width, config.bias, ones)
        self.recurrent = GateLinear(width, self.gates * width, config.bias)
        self.output = Linear(width, width, config.bias, residual_writes, gain)

    def fused(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        """Return h (B, T, width) and the next state from x (B, T, width) and a state (1, B, width), by PyTorch's layer.

        `weights`: the weights of input and recurrence, then their biases if they have any. PyTorch's argument `train`
        is true whenever gradients are enabled, also in evaluation mode, because cuDNN keeps what the backward pass
        needs only then.
        """
        raise NotImplementedError

    def step(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        """Return the next state, from the projections (B, gates x width) of x_t and of h_(t-1)."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Mix,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        return self.output(select_rows(mix(x), rows))

    def start(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        return tuple(torch.zeros(batch, self.width, dtype=dtype, device=device) for _ in range(self.parts))

    def scan(
        self,
        *projections: Tensor,
        state: State | None = None,
        segments: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Mix x (B, T, width) to h (B, T, width)."""
        (x,) = projections
        assert segments is None, "the mixer refuses model.document_mask"
        if present is not None and state is None:  # nothing reads the last state, so padding can come last
            order = present.logical_not().int().argsort(dim=1, stable=True).unsqueeze(-1)
            mixed, after = self.scan(x.take_along_dim(order, dim=1))
            return mixed.take_along_dim(order.argsort(dim=1), dim=1), after
        before = self.start(len(x), x.dtype, x.device) if state is None else tuple(part.to(x.dtype) for part in state)
        if present is None and type(self.input) is type(self.recurrent) is GateLinear:
            weights = [self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias]
            cast = [weight.to(x.dtype) for weight in weights if weight is not None]
            mixed, parts = self.fused(x, tuple(part.unsqueeze(0) for part in before), cast)
            after = tuple(part.squeeze(0) for part in parts)
        else:
            mixed, after = self._read_steps(x, before, present)
        return mixed, () if state is None else tuple(widen(part) for part in after)

    def _read_steps(self, x: Tensor, state: State, present: Tensor | None) -> tuple[Tensor, State]:
        inputs, read = self.input(x), []
        for t in range(x.shape[1]):
            after = self.step(inputs[:, t], self.recurrent(state[0]), state)
            if present is not None:
                kept = present[:, t, None]
                after = tuple(torch.where(kept, new, old) for new, old in zip(after, state, strict=True))
            state = after
            read.append(state[0])
        return torch.stack(read, dim=1), state

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return self.input.flops(length) + self.recurrent.flops(length) + self.output.flops(outputs)

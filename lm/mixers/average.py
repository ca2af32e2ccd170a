"""The uniform average of the past, the simplest attention: all earlier positions have the same weight."""

from __future__ import annotations

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.layers import Linear
from lm.mixers.mixer import Mix, select_rows
from lm.mixers.recurrent import RecurrentMixer, State, erase, widen
from lm.positions import Rotary


class Average(RecurrentMixer):
    """y_t = W_o (1/t) sum over s <= t of W_v x_s (Zhang et al. 2018, equation 5, with projections).

    The state is the sum of the values (B, 1, width) and their number (B, 1, 1). Rotary positions have no effect.
    """

    component = "average"
    fields = ("document_mask",)

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        self.width = config.width
        self.value = Linear(config.width, config.width, config.bias, gain=gain)
        self.output = Linear(config.width, config.width, config.bias, residual_writes, gain)

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Mix,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        return self.output(select_rows(mix(self.value(x)), rows))

    def start(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        sums = torch.zeros(batch, 1, self.width, dtype=dtype, device=device)
        return sums, sums.new_zeros(batch, 1, 1)

    def scan(
        self,
        *projections: Tensor,
        state: State | None = None,
        segments: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Average values (B, T, width)."""
        (values,) = projections
        wide = erase(widen(values), present)
        ones = wide.new_ones(1, values.shape[1], 1) if present is None else present.unsqueeze(-1).to(wide.dtype)
        sums, counts = wide.cumsum(1), ones.cumsum(1)
        if segments is not None:
            first = _first_positions(segments)
            sums = sums - (sums - wide).gather(1, first.expand_as(sums))
            counts = counts - (counts - ones).expand(len(first), -1, -1).gather(1, first)
        if state is not None:
            sums, counts = sums + state[0], counts + state[1]
        mean = (sums / counts.clamp(min=1.0)).to(values.dtype)
        return mean, () if state is None else (sums[:, -1:].clone(), counts[:, -1:].clone())

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return self.value.flops(length) + self.output.flops(outputs)


MIXER = Average


def _first_positions(segments: Tensor) -> Tensor:
    """Return the first position (B, T, 1) int64 of the segment of each position; `segments` is (B, T)."""
    positions = torch.arange(segments.shape[1], device=segments.device).expand_as(segments)
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return torch.where(begins, positions, 0).cummax(1).values.unsqueeze(-1)

"""Linear attention: a kernel replaces the exponential, so that the past fits in one matrix per head."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lm.config import ModelConfig
from lm.layers import Linear
from lm.mixers.mixer import Mix, select_rows
from lm.mixers.recurrent import RecurrentMixer, State, erase, merge_heads, split_heads, widen
from lm.mixers.scan import chunked_scan
from lm.mixers.scan_costs import ScanShape
from lm.positions import Rotary, rotate

EPSILON = 1e-6
"""Added to the sum of the weights of a position."""


class LinearAttention(RecurrentMixer):
    """y_t = f(q_t) S_t / (f(q_t) z_t), S_t = sum of f(k_s) v_s^T, z_t = sum of f(k_s), f(x) = elu(x) + 1.

    Katharopoulos et al. 2020, equations 16 to 20. Rotary positions rotate q and k before f, which stays positive. The
    state is S and z of each head (B, H, D, D + 1): z is the column of a value that is always 1.
    """

    component = "linear"
    fields = ("head_width", "document_mask")

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        self.heads, self.features = config.heads, config.head_features
        self.mapped = self.features
        width = self.heads * self.features
        self.query = Linear(config.width, width, config.bias)
        self.key = Linear(config.width, width, config.bias)
        self.value = Linear(config.width, width, config.bias, gain=gain)
        self.output = Linear(width, config.width, config.bias, residual_writes, gain)

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Mix,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        q, k, v = (split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value))
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        return self.output(select_rows(merge_heads(mix(q, k, v)), rows))

    def feature_map(self, x: Tensor, queries: bool) -> Tensor:
        """Return f(x) (B, H, T, mapped) of `queries` or keys (B, H, T, D), above 0."""
        return (F.elu(x) + 1.0).contiguous()

    def start(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        return (torch.zeros(batch, self.heads, self.mapped, self.features + 1, dtype=dtype, device=device),)

    def scan(
        self,
        *projections: Tensor,
        state: State | None = None,
        segments: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Mix q, k and v (B, H, T, D) in float32 or wider."""
        q = self.feature_map(widen(projections[0]), queries=True)
        k = self.feature_map(widen(projections[1]), queries=False)
        v = F.pad(widen(projections[2]), (0, 1), value=1.0)
        v = erase(v.transpose(1, 2), present).transpose(1, 2)
        sums, after = chunked_scan(q, k, v, segments=segments, state=None if state is None else state[0])
        mixed = sums[..., :-1] / (sums[..., -1:] + EPSILON)
        return mixed.to(projections[0].dtype), () if after is None else (after,)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        projections = self.query.flops(length) + self.key.flops(length) + self.value.flops(length)
        scan = ScanShape(self.heads, self.mapped, self.features + 1)
        return projections + scan.flops(length) + self.output.flops(outputs)


MIXER = LinearAttention

"""Linear attention whose past decays by one factor a head: retention and gated linear attention share this form."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lm.config import ModelConfig
from lm.layers import Linear, RMSNorm
from lm.mixers.mixer import Mix, select_rows
from lm.mixers.recurrent import RecurrentMixer, State, erase, merge_heads, split_heads, widen
from lm.mixers.scan import chunked_scan
from lm.mixers.scan_costs import ScanShape
from lm.positions import Rotary, rotate


class DecayedAttention(RecurrentMixer):
    """y_t = W_o (swish(W_g x_t) * norm(q_t S_t)), S_t = a_t S_(t-1) + k_t v_t^T / sqrt(D).

    The norm is RMSNorm over each head, so the weights of the values need not sum to 1. Rotary positions rotate q and k.
    The state is S (B, H, D, D).
    """

    fields = ("head_width", "document_mask")

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        self.heads, self.features = config.heads, config.head_features
        width = self.heads * self.features
        self.query = Linear(config.width, width, config.bias)
        self.key = Linear(config.width, width, config.bias)
        self.value = Linear(config.width, width, config.bias, gain=gain)
        self.gate = Linear(config.width, width, config.bias)
        self.norm = RMSNorm(self.features, config.norm_eps)
        self.output = Linear(width, config.width, config.bias, residual_writes, gain)

    def decay_logits(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of the decay (B, H, T) for x (B, T, width), or nothing if the decay is fixed."""
        return ()

    def log_decay(self, values: Tensor, *logits: Tensor) -> Tensor:
        """Return ln(a_t) (B or 1, H, T), in the dtype of the values (B, H, T, D), from what `decay_logits` returns."""
        raise NotImplementedError

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
        mixed = merge_heads(self.norm(mix(q, k, v, *self.decay_logits(x))))
        return self.output(select_rows(F.silu(self.gate(x)) * mixed, rows))

    def start(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        return (torch.zeros(batch, self.heads, self.features, self.features, dtype=dtype, device=device),)

    def scan(
        self,
        *projections: Tensor,
        state: State | None = None,
        segments: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Mix q, k and v (B, H, T, D) in float32 or wider. After them come the logits of the decay, if any."""
        q, k, v = (widen(each) for each in projections[:3])
        q, k = q.contiguous(), (k * self.features**-0.5).contiguous()
        v = erase(v.transpose(1, 2), present).transpose(1, 2).contiguous()
        decay = self.log_decay(v, *projections[3:])
        mixed, after = chunked_scan(q, k, v, decay, segments=segments, state=None if state is None else state[0])
        return mixed.to(projections[0].dtype), () if after is None else (after,)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        layers = (self.query, self.key, self.value, self.gate)
        scan = ScanShape(self.heads, self.features, self.features)
        return sum(layer.flops(length) for layer in layers) + scan.flops(length) + self.output.flops(outputs)

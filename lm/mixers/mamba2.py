"""Mamba-2: a state space model whose step size depends on the input (Dao and Gu 2024)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.initialization import Initializer
from lm.layers import Linear, RMSNorm
from lm.mixers.mamba2_costs import EXPANSION, KERNEL
from lm.mixers.mixer import Mix, select_rows
from lm.mixers.recurrent import RecurrentMixer, State, erase, merge_heads, widen
from lm.mixers.scan import chunked_scan
from lm.mixers.scan_costs import ScanShape
from lm.positions import Rotary

STEPS = (0.001, 0.1)
"""Range of the initial step sizes, log-uniform."""
LARGEST_RATE = 16.0
"""The initial rates exp(A_log) are uniform from 1 to this value."""


class Mamba2(RecurrentMixer):
    """y_t = W_o norm((C_t S_t + D u_t) * swish(W_z x_t)), S_t = a_t S_(t-1) + B_t dt_t u_t^T (Dao and Gu 2024, 7).

    u, B and C are a projection of x after a causal depthwise convolution of KERNEL positions and swish. In each head
    dt_t = softplus(w x_t + b) and a_t = exp(-exp(A_log) dt_t). All heads share B and C (B, T, N), with N the width of
    an attention head; u has EXPANSION N features a head. The state is the last KERNEL - 1 inputs of the convolution and
    S (B, H, N, EXPANSION N). Rotary positions have no effect.
    """

    component = "mamba2"
    fields = ("head_width", "document_mask")

    def __init__(
        self, config: ModelConfig, residual_writes: int = 1, value_embedding: bool = False, gain: float = 1.0
    ) -> None:
        super().__init__(config)
        self.heads, self.features = config.heads, config.head_features
        self.inner = EXPANSION * self.heads * self.features
        self.channels = self.inner + 2 * self.features
        self.gate = Linear(config.width, self.inner, config.bias)
        self.input = Linear(config.width, self.channels, config.bias, gain=gain)
        self.step = Linear(config.width, self.heads, bias=False)
        self.kernel = nn.Parameter(torch.empty(self.channels, 1, KERNEL))
        self.kernel_bias = nn.Parameter(torch.empty(self.channels))
        self.step_bias = nn.Parameter(torch.empty(self.heads))
        self.log_rate = nn.Parameter(torch.empty(self.heads))
        self.skip = nn.Parameter(torch.empty(self.heads))
        self.norm = RMSNorm(self.inner, config.norm_eps)
        self.output = Linear(self.inner, config.width, config.bias, residual_writes, gain)

    def forward(
        self,
        x: Tensor,
        rotary: Rotary,
        mix: Mix,
        value_embedding: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        mixed = self.norm(mix(self.input(x), self.step(x)) * F.silu(self.gate(x)))
        return self.output(select_rows(mixed, rows))

    def start(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        inputs = torch.zeros(batch, KERNEL - 1, self.channels, dtype=dtype, device=device)
        return inputs, inputs.new_zeros(batch, self.heads, self.features, EXPANSION * self.features)

    def scan(
        self,
        *projections: Tensor,
        state: State | None = None,
        segments: Tensor | None = None,
        present: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Mix inputs (B, T, channels) and steps (B, T, H) to (B, T, inner), the scan in float32 or wider."""
        inputs, steps = erase(projections[0], present), projections[1]
        batch = inputs.shape[0]
        past = inputs.new_zeros(batch, KERNEL - 1, self.channels) if state is None else state[0].to(inputs.dtype)
        padded = torch.cat((past, inputs), dim=1)
        convolved = widen(F.silu(self._convolve(padded, segments)))
        values, keys, queries = convolved.split((self.inner, self.features, self.features), dim=-1)
        values = values.unflatten(-1, (self.heads, -1))
        steps = erase(F.softplus(widen(steps) + self.step_bias), present)
        mixed, after = chunked_scan(
            queries.unsqueeze(1).contiguous(),
            keys.unsqueeze(1).contiguous(),
            (values * steps.unsqueeze(-1)).transpose(1, 2).contiguous(),
            (steps * -self.log_rate.exp()).transpose(1, 2),
            segments=segments,
            state=None if state is None else state[1],
        )
        mixed = mixed + (values * self.skip.unsqueeze(-1)).transpose(1, 2)
        kept = () if after is None else (widen(padded[:, 1 - KERNEL :]).clone(), after)
        return merge_heads(mixed.to(inputs.dtype)), kept

    def _convolve(self, padded: Tensor, segments: Tensor | None) -> Tensor:
        """Return the causal convolution (B, T, channels) of `padded` (B, KERNEL - 1 + T, channels)."""
        length = padded.shape[1] - KERNEL + 1
        kernel = self.kernel.to(padded.dtype)
        convolved = self.kernel_bias.to(padded.dtype).expand(len(padded), length, -1)
        for place in range(KERNEL):
            read = padded[:, place : place + length]
            if segments is not None:
                read_segments = F.pad(segments, (KERNEL - 1 - place, 0))[:, :length]
                read = read * (read_segments == segments).unsqueeze(-1).to(read.dtype)
            convolved = convolved + read * kernel[:, 0, place]
        return convolved

    def reset_parameters(self, initializer: Initializer) -> None:
        generator = initializer.generator
        self.kernel.uniform_(-(KERNEL**-0.5), KERNEL**-0.5, generator=generator)
        self.kernel_bias.zero_()
        low, high = (math.log(step) for step in STEPS)
        step = self.step_bias.uniform_(low, high, generator=generator).exp()
        self.step_bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
        self.log_rate.uniform_(1.0, LARGEST_RATE, generator=generator).log_()
        self.skip.fill_(1.0)

    def flops(self, length: float, visible: float, outputs: float) -> float:
        projections = self.gate.flops(length) + self.input.flops(length) + self.step.flops(length)
        scan = ScanShape(self.heads, self.features, EXPANSION * self.features, shared_keys=True)
        return projections + scan.flops(length) + self.output.flops(outputs)


MIXER = Mamba2

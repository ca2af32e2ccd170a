"""A sparse autoencoder of activations, in which at most K of F features are active at a position (TopK).

    z = TopK(relu(W_e (x - b) + b_e)),   x' = W_d z + b          (Gao et al. 2024, arXiv 2406.04093)

Training minimises |x - x'|^2 / |x - mean|^2. To revive features that have long been silent, it adds 1/32 of the same
loss for reconstructing the error x - x' from these features. The columns of W_d have length 1, and W_e starts as their
transpose. Activations are divided by their standard deviation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

LEARNING_RATE = 1e-3
REVIVED, REVIVAL_WEIGHT, SILENT_STEPS = 512, 1 / 32, 50


class SparseAutoencoder(nn.Module):
    """An autoencoder with F features, of which at most K are active at a position."""

    def __init__(self, width: int, features: int, active: int, generator: torch.Generator) -> None:
        """`features` is F and `active` is K. Raises ValueError unless 1 <= K <= F."""
        super().__init__()
        if not 1 <= active <= features:
            raise ValueError(f"active is {active}, but must be from 1 to the {features} features")
        self.active, self.scale = active, 1.0
        directions = F.normalize(torch.randn(features, width, generator=generator), dim=-1)
        self.decoder = nn.Parameter(directions)
        """(F, width): what each feature adds"""
        self.encoder = nn.Parameter(directions.clone())
        self.encoder_bias = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(width))

    def prepare(self, x: Tensor) -> None:
        """Set scale and bias from activations x (N, width), before training."""
        with torch.no_grad():
            mean = x.mean(dim=0)
            self.scale = max(1e-12, (x - mean).square().mean().sqrt().item())
            self.bias.copy_(mean / self.scale)

    def inputs(self, x: Tensor) -> Tensor:
        """Return what features see in x (N, width), before TopK: (N, F)."""
        return F.relu(F.linear(x / self.scale - self.bias, self.encoder, self.encoder_bias))

    def encode(self, x: Tensor) -> Tensor:
        """Return the features of x (N, width): (N, F), at most K of them positive and the others 0."""
        return _largest(self.inputs(x), self.active)

    def decode(self, z: Tensor) -> Tensor:
        """Return the activations (N, width) of features z (N, F)."""
        return (z @ self.decoder + self.bias) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """x (..., width) to its reconstruction (..., width), in the dtype of x."""
        return self.decode(self.encode(x.flatten(0, -2).float())).view(x.shape).to(x.dtype)


class AutoencoderTraining:
    """Adam with a learning rate that falls to 0 over the last fifth."""

    def __init__(self, autoencoder: SparseAutoencoder) -> None:
        self.autoencoder = autoencoder
        self.optimizer = torch.optim.Adam(autoencoder.parameters(), LEARNING_RATE)
        self.silent = torch.zeros(len(autoencoder.decoder), dtype=torch.int64, device=autoencoder.decoder.device)
        self._begun = False

    def step(self, x: Tensor, done: float) -> float:
        """Do one step on activations x (N, width), after the share `done` of the training.

        Returns |x - x'|^2 / |x - mean|^2, both summed over positions.
        """
        model = self.autoencoder
        if not self._begun:
            model.prepare(x)
            self._begun = True
        scaled = x / model.scale
        variance = (scaled - scaled.mean(dim=0)).square().sum()
        with torch.enable_grad():
            before = model.inputs(x)
            z = _largest(before, model.active)
            error = scaled - (z @ model.decoder + model.bias)
            loss = unexplained = error.square().sum() / variance
            dead = self.silent >= SILENT_STEPS
            if count := int(dead.sum()):
                revived = _largest(before * dead, min(REVIVED, count)) @ model.decoder
                loss = loss + REVIVAL_WEIGHT * (error.detach() - revived).square().sum() / variance
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, 5 * (1 - done))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            model.decoder.copy_(F.normalize(model.decoder, dim=-1))
            self.silent = (self.silent + 1) * ~(z > 0).any(dim=0)
        return unexplained.item()


def _largest(values: Tensor, count: int) -> Tensor:
    """Return values (N, F) with all but the `count` largest of each row set to 0."""
    kept = values.topk(count, dim=-1)
    return torch.zeros_like(values).scatter(-1, kept.indices, kept.values)

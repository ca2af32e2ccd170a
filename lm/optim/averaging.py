"""An exponential moving average of a model's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """average = decay * average + (1 - decay) * weights.

    Step n uses the decay min(decay, (1 + n) / (10 + n)), so that an early average forgets the random start.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Add the weights of one more step."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        current = [p.detach() for _, p in model.named_parameters()]
        torch._foreach_lerp_(list(self.weights.values()), current, 1.0 - decay)
        self.steps += 1

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights within the context."""
        trained = {name: p.detach().clone() for name, p in model.named_parameters()}
        _fill(model, self.weights)
        try:
            yield
        finally:
            _fill(model, trained)


@torch.no_grad()
def _fill(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])

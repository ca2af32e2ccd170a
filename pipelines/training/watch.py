"""What one wants to know of a training while waiting for it: a smoothed loss, spikes, the share of the machine used."""

import math
import resource
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

SMOOTHING = 0.98  # of the mean and the deviation that a spike is measured against: about the last 50 steps
SPIKE = 6.0  # standard deviations above the mean
BEFORE_SPIKES = 50  # steps, in which losses fall too fast to judge
DIVERGED = 100  # steps in a row with a smoothed loss above the first one


@dataclass
class LossWatch:
    """An exponential mean of the losses without the bias of its start, and which of them are spikes."""

    steps: int = 0
    mean: float = 0.0
    square: float = 0.0
    spikes: list[int] = field(default_factory=list)
    """Steps whose loss stood out since they were last asked for."""
    first: float | None = None
    """Loss of the first step; None in a run that resumed from a checkpoint of version 0.1."""
    above: int = 0
    """Number of latest consecutive steps with a smoothed loss above the first one."""

    @property
    def diverged(self) -> bool:
        """Whether the smoothed loss has been above `first` for at least `DIVERGED` steps."""
        return self.above >= DIVERGED

    def smoothed(self) -> float:
        """Nats per target; nan before the first step."""
        return self.mean / (1.0 - SMOOTHING**self.steps) if self.steps else math.nan

    def update(self, step: int, loss: float) -> bool:
        """Take the loss of a step in; whether it is a spike."""
        spike = self.steps >= BEFORE_SPIKES and loss > self.smoothed() + SPIKE * self._deviation()
        if spike:
            self.spikes.append(step)
        if self.steps == 0:
            self.first = loss
        self.steps += 1
        self.mean = SMOOTHING * self.mean + (1.0 - SMOOTHING) * loss
        self.square = SMOOTHING * self.square + (1.0 - SMOOTHING) * loss * loss
        self.above = self.above + 1 if self.first is not None and self.smoothed() > self.first else 0
        return spike

    def divergence(self) -> str:
        """Return the smoothed loss and the first loss as text."""
        return f"the loss is {self.smoothed():.3f}, and was {self.first:.3f} at the first step"

    def as_list(self) -> list[Any]:
        """What a checkpoint remembers; `LossWatch(*list)` goes on from it."""
        return [self.steps, self.mean, self.square, list(self.spikes), self.first, self.above]

    def _deviation(self) -> float:
        mean_square = self.square / (1.0 - SMOOTHING**self.steps)
        return math.sqrt(max(0.0, mean_square - self.smoothed() ** 2))


def utilisation(tokens_per_s: float, flops_per_token: float, machine: Any) -> dict[str, float]:
    """`mfu`, the share of the device's tabulated dense peak, and `mfu_measured`, of what a matrix product reached on
    it (Chowdhery et al. 2023, appendix B); either is left out where the peak is not known."""
    peaks = {"mfu": machine.peak_flops, "mfu_measured": machine.measured_flops}
    return {name: round(tokens_per_s * flops_per_token / peak, 4) for name, peak in peaks.items() if peak}


def memory_bytes(device: torch.device) -> int:
    """The most that the process has held: of the GPU where it trains on one, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024

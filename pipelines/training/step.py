"""An optimizer step, whose loss and gradient norm may still be on their way from a GPU."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


class OnTheWay:
    """Scalars of a device. Their copies to the host are queued after the device's work so far."""

    def __init__(self, *scalars: Tensor) -> None:
        # Only CUDA has an event to wait for.
        self.values = [scalar.detach().to("cpu", non_blocking=scalar.is_cuda) for scalar in scalars]
        self._copied: torch.cuda.Event | None = None
        if any(scalar.is_cuda for scalar in scalars):
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[float]:
        """Return the numbers. Waits for their copies, but not for later work."""
        if self._copied is not None:
            self._copied.synchronize()
        return [float(value) for value in self.values]


@dataclass(frozen=True)
class Step:
    """The result of one optimizer step. Its numbers are copied to the host while later steps are queued."""

    number: int
    """Number of the step in its run, from 1."""
    lr: float
    weight_decay: float
    batch_tokens: int
    weight: float
    """Sum of the weights of the batch's targets, over all ranks."""
    numbers: OnTheWay
    """This rank's part of the mean loss in nats, and the norm of the gradient."""

    @property
    def loss(self) -> float:
        """This rank's part of the mean loss in nats; nan if the batch has no target, as small masked batches may."""
        return self.numbers.read()[0] if self.weight else math.nan

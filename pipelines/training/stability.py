"""Losses, gradients and weights that are not finite: float16's loss scaling, and what happens to such a step."""

import math
from typing import Any

import torch
from torch import Tensor

from lm.optim.optimizers import Optimizers
from pipelines.cli.display import say
from pipelines.training.parallel import OneProcess
from pipelines.training.progress import Progress

MOST_SKIPPED = 10  # consecutive steps that may be skipped
SMALLEST_SCALE = 1.0  # an overflow at or below this scale has another cause


class NotFiniteError(FloatingPointError):
    """A loss, a gradient or a weight is not finite. `what` names it; the message adds a remedy."""

    def __init__(self, what: str, remedy: str = "try a lower `train.lr`") -> None:
        super().__init__(f"{what}: {remedy}; earlier checkpoints are unchanged")
        self.what = what


class LossScale:
    """Dynamic loss scaling for float16 with torch's GradScaler (Micikevicius et al. 2018, 3.2); off for other dtypes.

    A scaled loss keeps small gradients that float16 would round to 0. After an overflow the step is skipped and the
    scale halved; after 2,000 steps without overflow the scale is doubled.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self._one = torch.ones((), device=device)

    @property
    def enabled(self) -> bool:
        """Whether the loss is scaled."""
        return self._scaler.is_enabled()

    def factor(self) -> Tensor | float:
        """Return the factor of the loss: the scale, or 1.0 if the loss is not scaled."""
        return self._scaler.scale(self._one) if self.enabled else 1.0

    def unscale(self, optimizers: Optimizers) -> None:
        """Divide the gradients by the scale."""
        for part in optimizers.parts:
            self._scaler.unscale_(part)

    def overflowed(self, loss: float, norm: float) -> bool:
        """Update the scale after a step; return whether the scale was too large for the step's gradient.

        No scale helps if the loss itself is not finite.
        """
        if not self.enabled:
            return False
        before = self._scaler.get_scale()
        helpless = not math.isfinite(norm) and (not math.isfinite(loss) or before <= SMALLEST_SCALE)
        self._scaler.update(before if helpless else None)
        return self._scaler.get_scale() < before

    def metrics(self, overflows: int) -> dict[str, float]:
        """Return the entries of metrics.jsonl about the scale."""
        return {"loss_scale": self._scaler.get_scale(), "overflows": overflows} if self.enabled else {}

    def as_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return self._scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint's state. It is empty if the checkpoint had another dtype; the scale then starts anew."""
        if state:
            self._scaler.load_state_dict(state)


def skip_or_raise(at: Progress, step: int, policy: str, loss: float, lr: float) -> None:
    """Count a step as skipped if `policy` is "skip"; otherwise, or after too many, raise NotFiniteError."""
    at.skipped += 1
    what = f"the {'gradient' if math.isfinite(loss) else 'loss'} of step {step} is not finite"
    if policy == "skip" and at.skipped <= MOST_SKIPPED:
        say(f"{what}: skipped")
        return
    in_a_row = f" (nor were those of the {MOST_SKIPPED} steps before)" if at.skipped > 1 else ""
    raise NotFiniteError(
        f"{what}{in_a_row}, at a learning rate of {lr:.3g}",
        "try a lower `train.lr`, a longer `train.warmup_tokens` or `train.dtype='float32'`",
    )


def check_weights(model: torch.nn.Module, step: int, parallel: OneProcess) -> None:
    """Raise NotFiniteError, on all ranks alike, if a weight is not finite: no run could resume from it."""
    weights = list(model.named_parameters())
    broken = [i for i, (_, weight) in enumerate(weights, 1) if not bool(parallel.to_local(weight).isfinite().all())]
    number = parallel.max(max(broken, default=0))
    if number:
        raise NotFiniteError(f"the weights {weights[number - 1][0]} after step {step} are not finite")

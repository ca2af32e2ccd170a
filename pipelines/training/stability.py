"""Numbers that are not finite: how float16 avoids them, and what becomes of a step that has them."""

import math
from typing import Any

import torch

from lm.optim.optimizers import Optimizers
from pipelines.cli.display import say
from pipelines.training.parallel import OneProcess
from pipelines.training.progress import Progress

MOST_SKIPPED = 10  # steps in a row that are not finite, after which a run stops even if it skips
SMALLEST_SCALE = 1.0  # of the loss: an overflow at a smaller one is not the scale's doing


class NotFiniteError(FloatingPointError):
    """A loss, a gradient or weights that are not finite: `what` says which; the message also says what to do."""

    def __init__(self, what: str, remedy: str = "try a lower --train.lr") -> None:
        super().__init__(f"{what}: {remedy}; checkpoints made before are as they were")
        self.what = what


class LossScale:
    """Dynamic loss scaling for float16, torch's own (Micikevicius et al. 2018, 3.2); for any other dtype nothing.

    The gradient of a loss times a large power of two keeps what float16 would round to 0. Where it overflows, the step
    is left out and the scale halved; after 2,000 steps without that it is doubled.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)

    @property
    def enabled(self) -> bool:
        """Whether the loss is scaled."""
        return self._scaler.is_enabled()

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """What to take the gradient of."""
        return self._scaler.scale(loss)

    def unscale(self, optimizers: Optimizers) -> None:
        """Make the gradients those of the loss itself."""
        for part in optimizers.parts:
            self._scaler.unscale_(part)

    def overflowed(self, loss: float, norm: float) -> bool:
        """Adapt the scale to a step of that loss and gradient norm; whether its gradient is not finite because the
        scale was too large. Where the loss itself is not finite no scale would help."""
        if not self.enabled:
            return False
        before = self._scaler.get_scale()
        helpless = not math.isfinite(norm) and (not math.isfinite(loss) or before <= SMALLEST_SCALE)
        self._scaler.update(before if helpless else None)
        return self._scaler.get_scale() < before

    def metrics(self, overflows: int) -> dict[str, float]:
        """What the log says of it."""
        return {"loss_scale": self._scaler.get_scale(), "overflows": overflows} if self.enabled else {}

    def as_state(self) -> dict[str, Any]:
        """What a checkpoint remembers."""
        return self._scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's; one of another dtype has none, and the scale starts as in a new run."""
        if state:
            self._scaler.load_state_dict(state)


def count_skipped(at: Progress, policy: str, loss: float, lr: float) -> None:
    """Let the step just made be left out, since its loss or gradient is not finite, if the recipe's `policy` is "skip";
    else raise NotFiniteError."""
    at.skipped += 1
    what = f"the {'gradient' if math.isfinite(loss) else 'loss'} of step {at.step} is not finite"
    if policy == "skip" and at.skipped <= MOST_SKIPPED:
        say(f"{what}: skipped")
        return
    in_a_row = f" (nor were those of the {MOST_SKIPPED} steps before)" if at.skipped > 1 else ""
    raise NotFiniteError(
        f"{what}{in_a_row}, at a learning rate of {lr:.3g}",
        "try a lower --train.lr, a longer --train.warmup-tokens or --train.dtype float32",
    )


def check_weights(model: torch.nn.Module, step: int, parallel: OneProcess) -> None:
    """NotFiniteError, in all processes alike, when a weight is not finite: a run could not go on from such a
    checkpoint."""
    weights = list(model.named_parameters())
    broken = [i for i, (_, weight) in enumerate(weights, 1) if not bool(parallel.own(weight).isfinite().all())]
    number = parallel.largest(max(broken, default=0))
    if number:
        raise NotFiniteError(f"the weights {weights[number - 1][0]} after step {step} are not finite")

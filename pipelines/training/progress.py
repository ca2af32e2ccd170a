"""Where a run stands."""

import math
from dataclasses import dataclass, field
from typing import Any

from pipelines.cli.display import quantity
from pipelines.training.watch import LossWatch


@dataclass
class Progress:
    """All that a checkpoint must remember besides tensors."""

    step: int = 0
    """Optimizer steps, those included that were left out."""
    tokens: int = 0
    """Tokens trained on: schedules and intervals go by them, so that steps may be of any size."""
    consumed: int = 0
    """Blocks or pairs that the run has read in its order."""
    seconds: float = 0.0
    """Spent training; validation, checkpoints and what happened between two processes are left out."""
    waited: float = 0.0
    """Of these, seconds that the trainer waited for batches."""
    unlogged: list[float] = field(default_factory=list)
    """The losses (nats) of the steps since the last line of metrics.jsonl, which reports their mean."""
    grad_norm: float = 0.0
    """Of the last step that was taken."""
    validation_loss: float | None = None
    """The last one measured, in nats per target."""
    validated_step: int = -1
    """The step after which it was."""
    validated_tokens: int = 0
    """How much of the validation split it was measured on: losses on more or fewer tokens do not compare."""
    lowest_validation_loss: float | None = None
    """Of all that were measured on as many."""
    watch: LossWatch = field(default_factory=LossWatch)
    skipped: int = 0
    """Steps in a row that were left out because their loss or gradient was not finite."""
    overflows: int = 0
    """Steps that were left out because the loss was scaled too high for float16, which is no fault of theirs."""
    rollbacks: int = 0
    """How many times the run went back to a checkpoint."""
    signal: int = 0
    """The signal that asked the run to save and leave, or 0; no checkpoint remembers it."""

    def take_validation_loss(self, loss: float, tokens: int) -> None:
        """Remember the validation loss of the weights as they are, on about so many tokens."""
        lowest = self.lowest_validation_loss if tokens == self.validated_tokens else None
        self.validation_loss, self.validated_step, self.validated_tokens = loss, self.step, tokens
        self.lowest_validation_loss = loss if lowest is None else min(lowest, loss)

    def share_of(self, tokens: int) -> str:
        """Return the tokens so far and the goal `tokens` as text, such as "1.2 Mtok of 10 Mtok"."""
        return f"{quantity(self.tokens, 'tok')} of {quantity(tokens, 'tok')}"

    def validation_line(self) -> str:
        """Return the last validation loss as text; empty before the first validation."""
        if self.validation_loss is None:
            return ""
        perplexity = math.exp(min(self.validation_loss, 700.0))
        return f"validation loss {self.validation_loss:.4f} nats, perplexity {perplexity:,.4g}"

    def summary(self) -> str:
        """Return one line with the steps, tokens, speed and losses so far."""
        rate = quantity(self.tokens / max(1e-9, self.seconds), "tok")
        diverged = f"training diverged: {self.watch.divergence()}" if self.watch.diverged else ""
        so_far = f"{self.step:,} steps, {quantity(self.tokens, 'tok')}, {rate}/s"
        return "; ".join(filter(None, (so_far, self.validation_line(), diverged)))

    def as_state(self) -> dict[str, Any]:
        """What state.json holds of it: a copy, since it is written while training goes on."""
        state = {name: value for name, value in vars(self).items() if name != "signal"}
        return state | {"unlogged": list(self.unlogged), "watch": self.watch.as_list()}

    def restore(self, state: dict[str, Any]) -> None:
        """Stand where `as_state` was taken; what an older checkpoint does not know stays as it is."""
        for name in self.as_state().keys() & state.keys():
            setattr(self, name, LossWatch(*state[name]) if name == "watch" else state[name])

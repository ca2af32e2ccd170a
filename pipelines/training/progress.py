"""Progress: where a run stands, what it logs, and the signals that stop it."""

import math
import signal
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.cli.display import duration, perplexity_text, quantity, say
from pipelines.cli.process import StoppedBySignal, raise_if_interrupted
from pipelines.recipes.config import TrainConfig
from pipelines.run.metrics_log import MetricsLog
from pipelines.training.data import Score

SMOOTHING = 0.98  # decay of the loss's mean and deviation: about the last 50 steps
SPIKE = 6.0  # standard deviations above the mean
BEFORE_SPIKES = 50  # steps in which the loss falls too fast to judge
DIVERGED = 100  # consecutive steps with a smoothed loss above the first one

# Seconds in which several signals count as one: a terminal or a scheduler signals all processes of a job, and their
# parent passes the signal on.
ONE_REQUEST = 1.0


@dataclass
class LossWatch:
    """An exponential mean of the loss, corrected for its start, that detects spikes and divergence."""

    steps: int = 0
    mean: float = 0.0
    square: float = 0.0
    spikes: list[int] = field(default_factory=list)
    """Steps with a spike since the last line of metrics.jsonl."""
    first: float | None = None
    """Loss of the first step; None before it."""
    above: int = 0
    """Number of latest consecutive steps with a smoothed loss above the first one."""

    @property
    def diverged(self) -> bool:
        """Whether the smoothed loss has been above `first` for at least `DIVERGED` steps."""
        return self.above >= DIVERGED

    def smoothed_loss(self) -> float:
        """Return the mean in nats per target; nan before the first step."""
        return self.mean / (1.0 - SMOOTHING**self.steps) if self.steps else math.nan

    def update(self, step: int, loss: float) -> bool:
        """Add the loss of a step; return whether it is a spike."""
        spike = self.steps >= BEFORE_SPIKES and loss > self.smoothed_loss() + SPIKE * self._deviation()
        if spike:
            self.spikes.append(step)
        if self.steps == 0:
            self.first = loss
        self.steps += 1
        self.mean = SMOOTHING * self.mean + (1.0 - SMOOTHING) * loss
        self.square = SMOOTHING * self.square + (1.0 - SMOOTHING) * loss * loss
        self.above = self.above + 1 if self.first is not None and self.smoothed_loss() > self.first else 0
        return spike

    def divergence(self) -> str:
        """Return the smoothed loss and the first loss as text."""
        return f"the loss is {self.smoothed_loss():.3f}, and was {self.first:.3f} at the first step"

    def as_list(self) -> list[Any]:
        """Return the fields for a checkpoint; `LossWatch(*fields)` restores them."""
        return [self.steps, self.mean, self.square, list(self.spikes), self.first, self.above]

    def _deviation(self) -> float:
        mean_square = self.square / (1.0 - SMOOTHING**self.steps)
        return math.sqrt(max(0.0, mean_square - self.smoothed_loss() ** 2))


@dataclass
class Progress:
    """The state of a run that a checkpoint holds besides tensors."""

    step: int = 0
    """Optimizer steps, including skipped ones."""
    tokens: int = 0
    """Tokens trained on. Schedules and intervals count tokens or time, so steps may have any size."""
    consumed: int = 0
    """Blocks or pairs read, in the run's order."""
    seconds: float = 0.0
    """Seconds of training, without validation, checkpoints and time between processes."""
    waited: float = 0.0
    """Seconds of these in which the trainer waited for batches."""
    unlogged: list[float] = field(default_factory=list)
    """Losses (nats) of the steps since the last line of metrics.jsonl, which holds their mean."""
    grad_norm: float = 0.0
    """Gradient norm of the last step that was not skipped."""
    validation_loss: float | None = None
    """Last validation loss, in nats per target."""
    validated_step: int = -1
    """Step of that validation."""
    validated_tokens: int = 0
    """Validation tokens it was measured on. Losses on different numbers of tokens do not compare."""
    criterion: float | None = None
    """The number, best at its lowest, that judges the weights at the last validation: its loss or a score."""
    judged_by: str = ""
    """Name of the score that the criterion is; empty for the loss. Numbers of different names do not compare."""
    lowest_criterion: float | None = None
    """Lowest criterion of that name, on that number of tokens."""
    unimproved: int = 0
    """Validations since the lowest criterion, without that before the first step."""
    watch: LossWatch = field(default_factory=LossWatch)
    skipped: int = 0
    """Latest consecutive steps that were skipped because their loss or gradient was not finite."""
    overflows: int = 0
    """Steps that were skipped because the scaled loss overflowed float16."""
    rollbacks: int = 0
    """Number of rollbacks to a checkpoint."""
    signal: int = 0
    """Signal that asked the run to stop, or 0; not part of a checkpoint."""
    of_tokens: bool = True
    """Whether losses are of tokens, so that their exponentials are perplexities; not part of a checkpoint."""

    def add_validation(self, loss: float, tokens: int, criterion: float | None, judged_by: str = "") -> None:
        """Record the validation of the current weights on about `tokens` tokens; a `criterion` of None is no gain."""
        comparable = (tokens, judged_by) == (self.validated_tokens, self.judged_by)
        lowest = self.lowest_criterion if comparable else None
        self.validation_loss, self.validated_step, self.validated_tokens = loss, self.step, tokens
        self.criterion, self.judged_by = criterion, judged_by
        if criterion is not None and (lowest is None or criterion < lowest):
            self.lowest_criterion, self.unimproved = criterion, 0
        else:
            self.lowest_criterion, self.unimproved = lowest, self.unimproved + (self.step > 0)

    def is_out_of(self, patience: int) -> bool:
        """Return whether the last `patience` validations did not improve. 0: without a limit."""
        return 0 < patience <= self.unimproved

    def share_of(self, train: TrainConfig) -> str:
        """Return the training so far and its goal as text, such as "1.2 Mtok of 10 Mtok" or "0:40 of 5:00"."""
        if train.minutes:
            return f"{duration(self.seconds)} of {duration(60 * train.minutes)}"
        return f"{quantity(self.tokens, 'tok')} of {quantity(train.tokens, 'tok')}"

    def validation_line(self) -> str:
        """Return the last validation loss as text; empty before the first validation."""
        if self.validation_loss is None:
            return ""
        loss = self.validation_loss
        perplexity = f" nats, perplexity {perplexity_text(loss, ',.4g')}" if self.of_tokens else ""
        return f"validation loss {loss:.4f}{perplexity}"

    def training_line(self, lr: float, cross_entropy: bool) -> str:
        """Return the smoothed training loss and the learning rate as text.

        With `cross_entropy`, the loss is a plain cross-entropy, and the text includes its perplexity.
        """
        loss = self.watch.smoothed_loss()
        shown = f", perplexity {perplexity_text(loss, ',.4g')}" if cross_entropy and self.of_tokens else ""
        return f"loss {loss:.3f}{shown}, lr {lr:.2g}"

    def summary(self) -> str:
        """Return one line with the steps, tokens, speed and losses so far."""
        rate = quantity(self.tokens / max(1e-9, self.seconds), "tok")
        diverged = f"training diverged: {self.watch.divergence()}" if self.watch.diverged else ""
        so_far = f"{self.step:,} steps, {quantity(self.tokens, 'tok')}, {rate}/s"
        return "; ".join(filter(None, (so_far, self.validation_line(), diverged)))

    def as_state(self) -> dict[str, Any]:
        """Return the fields for state.json, copied, because training continues while they are written."""
        state = {name: value for name, value in vars(self).items() if name not in ("signal", "of_tokens")}
        return state | {"unlogged": list(self.unlogged), "watch": self.watch.as_list()}

    def restore(self, state: dict[str, Any], by_score: bool) -> None:
        """Set the fields in `state`, the content of a state.json.

        `by_score`: whether a score judges the weights from now on, instead of the loss. If the other one judged them
        before, `unimproved` starts again at 0.
        """
        for name in self.as_state().keys() & state.keys():
            setattr(self, name, LossWatch(*state[name]) if name == "watch" else state[name])
        if bool(self.judged_by) != by_score:
            self.unimproved = 0


class TrainingLog:
    """The lines of metrics.jsonl that a run writes while it trains, and messages about its loss.

    Without a `folder` it writes no lines.
    """

    def __init__(self, folder: Path | None, at: Progress, tensorboard: bool) -> None:
        self._folder, self._at, self._tensorboard = folder, at, tensorboard
        self._metrics: MetricsLog | None = None
        self.start_clock()

    def open(self, step: int, state: dict[str, Any] | None) -> None:
        """Continue metrics.jsonl after `step` (-1: none) of the checkpoint that recorded `state`."""
        self.close()
        if self._folder:
            self._metrics = MetricsLog(self._folder, step, self._tensorboard, state)
        self.start_clock()

    def start_clock(self) -> None:
        """Measure tokens per second from here on."""
        self._clock = self._at.tokens, self._at.seconds

    def tokens_per_second(self) -> float:
        """Return the training speed since the last line, without validation and checkpoints."""
        tokens, seconds = self._clock
        return (self._at.tokens - tokens) / max(1e-9, self._at.seconds - seconds)

    def watch(self, step: int, loss: float) -> None:
        """Add the loss of a step; print a message about a spike or a divergence."""
        at = self._at
        at.unlogged.append(loss)
        smoothed = at.watch.smoothed_loss()
        if at.watch.update(step, loss):
            say(f"step {step:,}: the loss jumped to {loss:.3f}, from about {smoothed:.3f}")
        if at.watch.above == DIVERGED:
            say(f"step {step:,}: training has diverged: {at.watch.divergence()}; try a lower `train.lr`")

    def write_training(self, lr: float, memory_bytes: int, more: dict[str, Any]) -> None:
        """Write a line about the steps since the last line; `lr` is that of the newest step."""
        at = self._at
        self._write(
            "train",
            math.fsum(at.unlogged) / len(at.unlogged),
            smoothed_loss=at.watch.smoothed_loss(),
            lr=lr,
            grad_norm=at.grad_norm,
            tokens_per_s=round(self.tokens_per_second(), 1),
            data_wait_s=round(at.waited, 3),
            memory_bytes=memory_bytes,
            **({"spikes": at.watch.spikes} if at.watch.spikes else {}),
            **more,
        )
        at.unlogged, at.watch.spikes = [], []
        self.start_clock()

    def write_validation(
        self, loss: float, tokens: int, by_source: Mapping[str, float], score: Score | None = None
    ) -> None:
        """Record and print the validation loss of the current weights on about `tokens` tokens.

        `by_source`: the losses that it is a mean of; empty for a plain dataset. `score` judges the weights instead of
        the loss.
        """
        name, value, highest = score or ("", loss, False)
        self._at.add_validation(loss, tokens, -value if highest and value is not None else value, name)
        more = {f"loss/{name}": losses for name, losses in by_source.items()} | (
            {} if score is None or value is None else {name: value}
        )
        self._write("validation", loss, **more)
        sources = ", ".join(f"{name} {losses:.4f}" for name, losses in by_source.items())
        shown = f", {name} {'undefined' if value is None else f'{value:.4f}'}" if score else ""
        say(f"step {self._at.step:,}: {self._at.validation_line()}{shown}{sources and f' ({sources})'}")

    def synced_state(self) -> dict[str, Any] | None:
        """Write the lines through to the disk; return the log's state for a checkpoint."""
        if self._metrics is None:
            return None
        self._metrics.sync()
        return self._metrics.state()

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def _write(self, split: str, loss: float, **more: Any) -> None:
        if self._metrics is not None:
            at = self._at
            self._metrics.write(
                step=at.step, tokens=at.tokens, split=split, loss=loss, **more, time_s=round(at.seconds, 3)
            )


def warn_of_no_target(source: str, tokens: int) -> None:
    """Warn that the first `tokens` tokens of a source's validation split have no target."""
    warnings.warn(
        f"no target in the first {tokens:,} tokens of the validation split of {source}, so there is no validation "
        "loss: raise `train.validation_tokens`",
        stacklevel=3,
    )


@contextmanager
def stop_on_signals(at: Progress, in_job: bool = False) -> Iterator[None]:
    """Set `at.signal` on the first SIGINT or SIGTERM; a signal more than a second later raises KeyboardInterrupt.

    `in_job`: whether torchrun started this process. When one process ends, torchrun sends SIGTERM to the others. A
    process that fails then ignores SIGTERM, so that it can print its error.
    """
    raise_if_interrupted()
    received: list[float] = []  # times in this process: `at.signal` may come from another one

    def receive(number: int, frame: object) -> None:
        received.append(time.monotonic())
        if received[-1] - received[0] > ONE_REQUEST:
            raise StoppedBySignal(number)
        if len(received) > 1:
            return
        at.signal = number
        say(f"{signal.Signals(number).name}: saving a checkpoint after this step (again to leave without)")

    try:
        before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, which handles signals
        before = {}
    try:
        yield
    except Exception:
        if in_job and before:
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

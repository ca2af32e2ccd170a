"""The training loop: batches in, weights, metrics and checkpoints out."""

import gc
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from lm.averaging import WeightAverage
from lm.counting import flops_per_token
from lm.model import LanguageModel
from lm.optimizers import OptimizerSettings, build_optimizers
from lm.schedules import multiplier
from pipelines.display import Bar, quantity, say
from pipelines.training.checkpoints import CheckpointWriter, Keep, checkpoint_folders, resume, take_snapshot
from pipelines.training.config import TrainConfig
from pipelines.training.data import TrainingData, hidden_states
from pipelines.training.loader import Batch
from pipelines.training.machine import Machine
from pipelines.training.prefetch import Prefetcher
from pipelines.training.run import MetricsLog, Run
from pipelines.training.watch import LossWatch, memory_bytes, utilisation

MOST_SKIPPED = 10  # steps in a row that are not finite, after which a run stops even if it skips


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint must remember besides tensors."""

    step: int = 0
    consumed: int = 0
    """Blocks or pairs that the run has trained on."""
    seconds: float = 0.0
    """Spent training; validation, checkpoints and what happened between two processes are left out."""
    unlogged: list[float] = field(default_factory=list)
    """The losses (nats) of the steps since the last line of metrics.jsonl, which reports their mean."""
    validation_loss: float | None = None
    """The last one measured, in nats per target."""
    watch: LossWatch = field(default_factory=LossWatch)
    skipped: int = 0
    """Steps in a row whose loss or gradient was not finite."""
    signal: int = 0
    """The signal that asked the run to save and leave, or 0."""


class Trainer:
    """Trains `model` on the training split until `config.tokens`, or until a signal. Without a run only `step` works:
    nothing is logged or saved.

    The dtype of activations is the model's own compute_dtype; weights and gradients are float32.
    """

    def __init__(
        self,
        run: Run | None,
        model: LanguageModel,
        data: TrainingData,
        config: TrainConfig,
        machine: Machine | None = None,
    ) -> None:
        self.run, self.model, self.data, self.config, self.machine = run, model, data, config, machine
        self.batches = Prefetcher(data)
        self.flops = flops_per_token(model)
        self.device = next(model.parameters()).device
        settings = OptimizerSettings(
            kind=config.optimizer,
            lr=config.lr,
            weight_decay=config.weight_decay,
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
            muon_lr=config.muon_lr,
            muon_momentum=config.muon_momentum,
        )
        self.optimizers = build_optimizers(model, settings, compiled=config.compile)
        self.average = WeightAverage(model, config.average) if config.average else None
        self.forward = torch.compile(model) if config.compile else model
        self.step_tokens = data.step_tokens
        self.steps = math.ceil(config.tokens / self.step_tokens)
        self.at = Progress()
        self.saved_step: int | None = None

    def train(self) -> Progress:
        """Go on from the newest checkpoint, if there is one, to the end."""
        folders = checkpoint_folders(self.run.folder)
        if folders:
            state = resume(self.run.folder, self.model, self.optimizers, self.average)
            names = ("step", "consumed", "seconds", "unlogged", "validation_loss")
            self.at = Progress(**{name: state[name] for name in names}, watch=LossWatch(*state["watch"]))
            self.saved_step = self.at.step
            say(f"resuming from step {self.at.step:,} of {self.steps:,}")
        else:
            torch.manual_seed(self.config.seed)
        # Without a checkpoint even the validation before the first step is measured again.
        self.log = MetricsLog(self.run.folder, self.at.step if folders else -1)
        keep = Keep(
            last=self.config.keep_checkpoints, best=self.config.keep_best, every_tokens=self.config.keep_every_tokens
        )
        self.writer = CheckpointWriter(self.run.folder, keep)
        try:
            with _signals(self.at), Bar(self.run.name, self.steps * self.step_tokens, "tok") as bar:
                bar.begin_at(self.at.step * self.step_tokens)
                if not folders:
                    self._validate()
                self._loop(bar)
                if self.at.signal and self.saved_step != self.at.step:
                    self._checkpoint()
                self.writer.wait()
        finally:
            self.writer.join()
            self.batches.close()
            gc.unfreeze()
            self.log.close()
        return self.at

    def _loop(self, bar: Bar) -> None:
        logged, logged_step = time.perf_counter(), self.at.step
        while self.at.step < self.steps and not self.at.signal:
            loss, norm, lr = self.step()
            self.writer.check()
            if self.at.skipped == 0:
                grad_norm = norm
                self._watch(loss)
            bar.update(self.at.step * self.step_tokens, note=f"loss {self.at.watch.smoothed():.3f}, lr {lr:.2g}")
            if self.at.step == 1:
                # What start-up left behind lives as long as the run: the collector need not look at it again.
                gc.collect()
                gc.freeze()
            last = self.at.step == self.steps
            if self.at.unlogged and (last or self.at.step % self.config.log_every_steps == 0):
                rate = (self.at.step - logged_step) * self.step_tokens / (time.perf_counter() - logged)
                self._log_training(grad_norm, lr, rate)
                logged, logged_step = time.perf_counter(), self.at.step
            if last or self._due(self.config.validate_every_tokens):
                logged += self._timed(self._validate)
            if last or self._due(self.config.checkpoint_every_tokens):
                logged += self._timed(self._checkpoint)

    def _watch(self, loss: float) -> None:
        self.at.unlogged.append(loss)
        smoothed = self.at.watch.smoothed()
        if self.at.watch.update(self.at.step, loss):
            say(f"step {self.at.step:,}: the loss jumped to {loss:.3f}, from about {smoothed:.3f}")

    def _log_training(self, grad_norm: float, lr: float, rate: float) -> None:
        """A line of metrics.jsonl on the steps since the last."""
        more = {"spikes": self.at.watch.spikes} if self.at.watch.spikes else {}
        if self.machine is not None:
            more |= utilisation(rate, self.flops, self.machine)
        self._record(
            "train",
            math.fsum(self.at.unlogged) / len(self.at.unlogged),
            smoothed_loss=self.at.watch.smoothed(),
            lr=lr,
            grad_norm=grad_norm,
            tokens_per_s=round(rate, 1),
            data_wait_s=round(self.batches.waited, 3),
            memory_bytes=memory_bytes(self.device),
            **more,
        )
        self.at.unlogged, self.at.watch.spikes = [], []

    def _set_learning_rate(self) -> float:
        warmup = math.ceil(self.config.warmup_tokens / self.step_tokens)
        lr = multiplier(
            self.config.schedule,
            self.at.step,
            warmup_steps=min(warmup, self.steps - 1),
            total_steps=self.steps,
            final=self.config.min_lr_ratio,
            decay_share=self.config.decay_share,
        )
        self.optimizers.schedule(lr)
        return lr * self.config.lr

    def step(self) -> tuple[float, float, float]:
        """One optimizer step on the next batch: the mean loss in nats per target, the gradient's norm, the learning
        rate. Where one of the first two is not finite the weights stay; FloatingPointError, unless the recipe skips."""
        started = time.perf_counter()
        self.model.train()
        lr = self._set_learning_rate()
        batch = self.batches.step(self.at.consumed)
        weight = float(batch.weights.sum())
        total = 0.0
        for micro in batch.split(self.config.micro_batch):
            smoothing = {"label_smoothing": self.config.label_smoothing, "z_loss": self.config.z_loss}
            loss = self._nats(micro, **smoothing) / max(1.0, weight)
            loss.backward()
            total += loss.detach()
        limit = self.config.grad_clip or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        loss = float(total)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite:
            self.optimizers.step()
        self.optimizers.zero_grad()
        if finite and self.average is not None:
            self.average.update(self.model)
        self._count_skipped(finite, math.isfinite(loss), lr)
        self.at.step += 1
        self.at.consumed += len(batch.inputs)
        self.at.seconds += time.perf_counter() - started
        return loss, norm, lr

    def _count_skipped(self, finite: bool, loss_finite: bool, lr: float) -> None:
        if finite:
            self.at.skipped = 0
            return
        self.at.skipped += 1
        what = f"the {'gradient' if loss_finite else 'loss'} of step {self.at.step + 1} is not finite"
        if self.config.nonfinite == "skip" and self.at.skipped <= MOST_SKIPPED:
            say(f"{what}: skipped")
            return
        in_a_row = f" (nor were those of the {MOST_SKIPPED} steps before)" if self.at.skipped > 1 else ""
        raise FloatingPointError(
            f"{what}{in_a_row}, at a learning rate of {lr:.3g}: try a lower --train.lr, a longer "
            "--train.warmup-tokens or --train.dtype float32; checkpoints made before are as they were"
        )

    def _nats(self, batch: Batch, **smoothing: float) -> torch.Tensor:
        """The sum of nats over the targets of a micro-batch."""
        hidden = hidden_states(self.forward, batch, self.device).flatten(0, 1)
        targets, weights = torch.from_numpy(batch.targets).flatten(), torch.from_numpy(batch.weights).flatten()
        if not batch.weights.all():
            # The masked objective predicts 15 % of the positions, and padding is no target: the head is spared them.
            rows = weights.nonzero().squeeze(1)
            hidden, targets, weights = hidden[rows.to(self.device)], targets[rows], weights[rows]
        return self.model.loss(hidden, targets.to(self.device), weights.to(self.device), **smoothing)

    @torch.no_grad()
    def _validate(self) -> None:
        with self.average.applied(self.model) if self.average else nullcontext():
            self._measure_validation_loss()

    def _measure_validation_loss(self) -> None:
        self.model.eval()
        nats = weight = 0.0
        for batch in self.data.validation(self.config.validation_tokens, self.config.micro_batch):
            nats += float(self._nats(batch))
            weight += float(batch.weights.sum())
        if not math.isfinite(nats):
            raise FloatingPointError(
                f"the validation loss after step {self.at.step} is not finite: try a lower --train.lr; "
                "checkpoints made before are as they were"
            )
        self.at.validation_loss = nats / max(1.0, weight)
        self._record("validation", self.at.validation_loss)

    def _checkpoint(self) -> None:
        self.log.sync()
        state = {
            "step": self.at.step,
            "tokens": self.at.step * self.step_tokens,
            "consumed": self.at.consumed,
            "seconds": self.at.seconds,
            "unlogged": list(self.at.unlogged),  # written while training goes on
            "validation_loss": self.at.validation_loss,
            "watch": self.at.watch.as_list(),
            "averaged_steps": self.average.steps if self.average else 0,  # fewer than steps where some were skipped
        }
        self.writer.write(take_snapshot(self.model, self.optimizers, self.average), state)
        self.saved_step = self.at.step

    def _record(self, split: str, loss: float, **more: float) -> None:
        tokens = self.at.step * self.step_tokens
        self.log.write(
            step=self.at.step, tokens=tokens, split=split, loss=loss, **more, time_s=round(self.at.seconds, 3)
        )

    @staticmethod
    def _timed(work: Callable[[], None]) -> float:
        """Do `work`; the seconds that it took, which do not count as training."""
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def _due(self, every_tokens: int) -> bool:
        """Whether the step just made crossed a multiple of `every_tokens`."""
        tokens = self.at.step * self.step_tokens
        return tokens // every_tokens > (tokens - self.step_tokens) // every_tokens


@contextmanager
def _signals(at: Progress) -> Iterator[None]:
    """SIGINT and SIGTERM ask the loop to save and leave after the step at hand; the same again leaves at once."""

    def ask(number: int, frame: object) -> None:
        if at.signal:
            raise KeyboardInterrupt
        at.signal = number
        say(f"{signal.Signals(number).name}: saving a checkpoint after this step (again to leave without)")

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs us there handles signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summary(trainer: Trainer) -> str:
    """A line on how the run went so far."""
    tokens = trainer.at.step * trainer.step_tokens
    rate = quantity(tokens / max(1e-9, trainer.at.seconds), "tok")
    return f"{trainer.at.step:,} steps, {quantity(tokens, 'tok')}, {rate}/s"

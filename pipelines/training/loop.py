"""The training loop: batches in, weights, metrics and checkpoints out."""

import gc
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace

import torch

from lm.model import LanguageModel
from lm.optim.averaging import WeightAverage
from lm.optim.optimizers import OptimizerSettings, build_optimizers
from lm.optim.schedules import multiplier, weight_decay_multiplier
from pipelines.cli.display import Bar, say
from pipelines.run.folder import Run
from pipelines.run.metrics_log import MetricsLog
from pipelines.run.retention import Keep, checkpoint_folders
from pipelines.training.allocator import keep_freed_memory
from pipelines.training.checkpoints import CheckpointWriter, resume, take_snapshot
from pipelines.training.config import TrainConfig
from pipelines.training.data import BlockData, TrainingData, parts_predicted, parts_read, sent
from pipelines.training.fitting import even, largest_micro_batch
from pipelines.training.loader import Batch
from pipelines.training.machine import Machine
from pipelines.training.parallel import ALONE, OneProcess
from pipelines.training.prefetch import Prefetcher
from pipelines.training.progress import Progress
from pipelines.training.signals import asked_to_stop
from pipelines.training.stability import LossScale, NotFiniteError, check_weights, count_skipped
from pipelines.training.threads import with_threads
from pipelines.training.watch import DIVERGED, memory_bytes, utilisation

USUAL_MICRO_BATCH = 16


@dataclass(frozen=True)
class Step:
    """What one optimizer step was like."""

    loss: float
    """Mean nats per target."""
    lr: float
    weight_decay: float
    tokens: int
    """Of its batch."""


class Trainer:
    """Trains `model` on the training split until `config.tokens`, or until a signal. Without a run only `step` works:
    nothing is logged or saved. In a run on several processes (`parallel`) only the main one has the run; `data` are the
    rows of each, and all take the same decisions at the same step.

    The dtype of activations is the model's own compute_dtype; weights and gradients are float32.
    """

    def __init__(
        self,
        run: Run | None,
        model: LanguageModel,
        data: TrainingData,
        config: TrainConfig,
        machine: Machine | None = None,
        parallel: OneProcess = ALONE,
    ) -> None:
        self.run, self.model, self.data, self.config, self.machine = run, model, data, config, machine
        self.parallel = with_threads(parallel, model, config)
        self.batches = Prefetcher(data)
        self.flops = data.flops_per_token(model) if machine else 0.0
        self.forward = self.parallel.wrap(model, config.compile)
        self.device = next(model.parameters()).device  # where FSDP has brought it
        if self.device.type == "cpu":
            keep_freed_memory()
        narrow = model.compute_dtype == torch.bfloat16  # what the machine is good at, which was found out for the model
        shares = self.parallel.shares(config.optimizer == "muon")
        self.optimizers = build_optimizers(
            model, _settings(config), narrow, config.compile, self.parallel.spread, shares
        )
        self._parameters = list(model.parameters())  # to walk through the modules for them takes a millisecond
        model.train()
        self.average = WeightAverage(model, config.average) if config.average else None
        self.loss_scale = LossScale(model.compute_dtype, self.device)
        self.at = Progress()
        self.saved_step: int | None = None
        self._logged: dict | None = None  # MetricsLog.state() at the restored checkpoint
        # Of one shape they are compiled once; blocks can be, while their number does not rise.
        self._one_shape = config.compile and isinstance(data, BlockData) and not config.batch_tokens_start
        self.config = replace(config, micro_batch=self._micro_batch())
        if self.device.type == "cuda":  # the log is to tell what training needs, not what was tried before
            torch.cuda.reset_peak_memory_stats(self.device)

    def train(self) -> Progress:
        """Go on from the newest checkpoint, if there is one, to the end."""
        folder = self.run.folder if self.run else None
        torch.manual_seed(self.config.seed + self.parallel.rank)
        resumed = self.parallel.tell(bool(folder and checkpoint_folders(folder)))
        if resumed:
            self._restore()
            say(f"resuming from step {self.at.step:,}, {self.at.share_of(self.config.tokens)}")
        # Without a checkpoint even the validation before the first step is measured again.
        self._open_log(self.at.step if resumed else -1)
        keep = Keep(
            last=self.config.keep_checkpoints, best=self.config.keep_best, every_tokens=self.config.keep_every_tokens
        )
        self.writer = CheckpointWriter(folder, keep, self.run.settings if self.run else {})
        try:
            with asked_to_stop(self.at), Bar(self.run.name if self.run else "", self.config.tokens, "tok") as bar:
                bar.begin_at(self.at.tokens)
                if not resumed:
                    self._validate()
                    if self.config.nonfinite == "rollback":
                        self._checkpoint()  # somewhere to go back to
                self._loop(bar)
                if self.at.signal and self.saved_step != self.at.step:
                    self._checkpoint()
                self.writer.wait()
        finally:
            self.writer.join()
            self.batches.close()
            gc.unfreeze()
            if self.log:
                self.log.close()
        return self.at

    def _loop(self, bar: Bar) -> None:
        self._start_clock()
        frozen = False
        while self.at.tokens < self.config.tokens and not self._stopped():
            try:
                self._advance(bar)
            except NotFiniteError as error:
                if self.config.nonfinite != "rollback":
                    raise
                self._roll_back(error)
            if not frozen:
                # What start-up left behind lives as long as the run: the collector need not look at it again.
                gc.collect()
                gc.freeze()
                frozen = True

    def _advance(self, bar: Bar) -> None:
        """One step, and what is due after it."""
        before = self.at.tokens
        step = self.step()
        self.writer.check()
        if self.at.skipped == 0:
            self._watch(step.loss)
        note = f"loss {self.at.watch.smoothed():.3f}, lr {step.lr:.2g}"
        bar.update(min(self.at.tokens, self.config.tokens), note=note)
        last = self.at.tokens >= self.config.tokens
        if self.at.unlogged and (last or self.at.step % self.config.log_every_steps == 0):
            self._log_training(step)
            self._start_clock()
        best = False
        if last or self._due(self.config.validate_every_tokens, before):
            lowest = self.at.lowest_validation_loss
            self._clock += self._timed(self._validate)
            best = self.config.keep_best and self.at.lowest_validation_loss != lowest
        if last or best or self._due(self.config.checkpoint_every_tokens, before):
            self._clock += self._timed(self._checkpoint)

    def _start_clock(self) -> None:
        """Measure tokens a second from here on."""
        self._clock, self._clock_tokens = time.perf_counter(), self.at.tokens

    def _restore(self) -> None:
        """Stand where the run's newest whole checkpoint was made."""
        folder, settings = (self.run.folder, self.run.settings) if self.run else (None, {})
        state = resume(folder, self.model, self.optimizers, settings, self.average, self.parallel)
        self.at.restore(state)
        self._logged = state.get("metrics")
        self.loss_scale.restore(state.get("loss_scale", {}))
        self.saved_step = self.at.step

    def _roll_back(self, error: NotFiniteError) -> None:
        """Go on from the newest checkpoint, but past all that was read since: some of it did not go well with those
        weights (Chowdhery et al. 2023, 5.1). Learning goes back with its clock, so that nothing is left out of it."""
        consumed, rollbacks = self.at.consumed, self.at.rollbacks + 1
        if rollbacks > self.config.max_rollbacks:
            raise NotFiniteError(f"{error.what}, after {self.config.max_rollbacks} rollbacks") from None
        self.writer.wait()
        self._restore()
        say(
            f"{error.what}: back to step {self.at.step:,} and past the {consumed - self.at.consumed:,} "
            f"{self.data.unit} read since (rollback {rollbacks} of at most {self.config.max_rollbacks})"
        )
        self.at.consumed, self.at.rollbacks = consumed, rollbacks
        if self.log:
            self.log.close()
        self._open_log(self.at.step)
        self._start_clock()

    def _open_log(self, step: int) -> None:
        self.log = MetricsLog(self.run.folder, step, self.config.tensorboard, self._logged) if self.run else None

    def _stopped(self) -> bool:
        """Whether a signal has reached any of the processes."""
        asked = self.parallel.largest(self.at.signal)
        if asked:  # else a signal may have come while the others were asked, and counts after the next step
            self.at.signal = asked
        return asked > 0

    def _watch(self, loss: float) -> None:
        self.at.unlogged.append(loss)
        smoothed = self.at.watch.smoothed()
        if self.at.watch.update(self.at.step, loss):
            say(f"step {self.at.step:,}: the loss jumped to {loss:.3f}, from about {smoothed:.3f}")
        if self.at.watch.above == DIVERGED:
            say(f"step {self.at.step:,}: training has diverged: {self.at.watch.divergence()}; try a lower --train.lr")

    def _log_training(self, step: Step) -> None:
        """A line of metrics.jsonl on the steps since the last, of which `step` is the newest."""
        rate = (self.at.tokens - self._clock_tokens) / (time.perf_counter() - self._clock)
        more = {"spikes": self.at.watch.spikes} if self.at.watch.spikes else {}
        if self.config.batch_tokens_start:
            more["batch_tokens"] = step.tokens
        if self.config.weight_decay_schedule != "constant":
            more["weight_decay"] = step.weight_decay
        if self.at.rollbacks:
            more["rollbacks"] = self.at.rollbacks
        more |= self.loss_scale.metrics(self.at.overflows)
        if self.machine is not None:
            more |= utilisation(rate / self.parallel.world_size, self.flops, self.machine)
        self._record(
            "train",
            math.fsum(self.at.unlogged) / len(self.at.unlogged),
            smoothed_loss=self.at.watch.smoothed(),
            lr=step.lr,
            grad_norm=self.at.grad_norm,
            tokens_per_s=round(rate, 1),
            data_wait_s=round(self.at.waited, 3),
            memory_bytes=memory_bytes(self.device),
            **more,
        )
        self.at.unlogged, self.at.watch.spikes = [], []

    def _schedule(self, batch_tokens: int) -> tuple[float, float]:
        """Set the learning rate and weight decay of a step on so many tokens; return them."""
        lr = multiplier(
            self.config.schedule,
            self.at.tokens,
            warmup=min(self.config.warmup_tokens, self.config.tokens),
            total=self.config.tokens,
            stride=batch_tokens,
            final=self.config.min_lr_ratio,
            decay_share=self.config.decay_share,
        )
        decay = weight_decay_multiplier(
            self.config.weight_decay_schedule,
            self.at.tokens,
            total=self.config.tokens,
            final=self.config.weight_decay_ratio,
        )
        self.optimizers.schedule(lr, decay)
        return lr * self.config.lr, decay * self.config.weight_decay

    def step(self) -> Step:
        """One optimizer step on the next batch. Where its loss or gradient is not finite: if the recipe skips such
        steps, or it was float16 that overflowed, the weights stay; else NotFiniteError, and they are spoilt."""
        started = time.perf_counter()
        batch = self.batches.step(self.at.consumed, self.at.tokens)
        self.at.waited += time.perf_counter() - started
        examples, tokens = self.data.size(self.at.consumed, self.at.tokens)
        lr, weight_decay = self._schedule(tokens)
        total, total_norm = self._backward(batch)
        may_stay = self.config.nonfinite == "skip" or self.loss_scale.enabled
        if not may_stay:  # then a GPU has this to do while the host waits for the loss
            self.parallel.update(self.optimizers)
        loss, norm = self.parallel.sum(float(total)), float(total_norm)
        overflowed = self.loss_scale.overflowed(loss, norm)
        finite = math.isfinite(loss) and math.isfinite(norm)
        if finite and may_stay:
            self.parallel.update(self.optimizers)
        self.optimizers.zero_grad()
        if finite and self.average is not None:
            self.average.update(self.model)
        self.at.step += 1
        self.at.tokens += tokens
        self.at.consumed += examples
        self.at.seconds += time.perf_counter() - started
        if finite:
            self.at.skipped, self.at.grad_norm = 0, norm
        elif overflowed:
            self.at.overflows += 1
        else:
            count_skipped(self.at, self.config.nonfinite, loss, lr)
        return Step(loss, lr, weight_decay, tokens)

    def _backward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of a batch, clipped: this process's part of its mean loss, and the norm before clipping, scalars
        that a GPU may still be working on."""
        weight = self.parallel.sum(float(batch.weights.sum()))
        smoothing = {"label_smoothing": self.config.label_smoothing, "z_loss": self.config.z_loss}

        def loss_of(micro: Batch) -> torch.Tensor:
            return self._nats(micro, **smoothing) / max(1.0, weight)

        batch = self._shaped(batch)
        total = self.parallel.gradient(batch, self.config.micro_batch, loss_of, self.loss_scale.scaled)
        self.loss_scale.unscale(self.optimizers)
        return total, self.parallel.clip(self._parameters, self.config.grad_clip or math.inf)

    def _micro_batch(self) -> int:
        """The recipe's, or as many rows as fit; where all are to have one shape, no larger than it takes to cut a batch
        into as many."""
        size = self.config.micro_batch or self._fitting_micro_batch()
        if not self._one_shape:
            return size
        rows = even(self.data.size(0, 0)[0], self.parallel.world_size)
        return even(rows, -(-rows // size))

    def _fitting_micro_batch(self) -> int:
        if self.device.type == "cpu" or not isinstance(self.data, BlockData):
            return USUAL_MICRO_BATCH
        wrapped, self.forward = self.forward, self.model  # not compiled for each size, and without other processes
        batch = self.data.step(0, self.config.batch_warmup_tokens)  # as large as they become
        # What one process has no memory for none may do: they share out what they validate by it.
        rows = -self.parallel.largest(-largest_micro_batch(self._nats, batch, self.model))
        self.forward = wrapped
        say(f"micro-batches of {rows:,} {self.data.unit}, as many as fit the memory")
        return rows

    def _shaped(self, batch: Batch) -> Batch:
        return batch.filled(self.config.micro_batch) if self._one_shape else batch

    def _nats(self, batch: Batch, **smoothing: float) -> torch.Tensor:
        """The sum of nats over the targets of a micro-batch."""
        everywhere = self._one_shape and self.model.config.architecture != "encoder"
        # Sent before the model runs, or the host would wait for it before it could queue the loss.
        tensors = sent(parts_read(batch) | parts_predicted(batch, everywhere), self.device)
        targets, weights = tensors.pop("targets"), tensors.pop("weights")
        if self.config.compile and "rows" in tensors:  # another number in each batch: told, it is not compiled twice
            torch._dynamo.maybe_mark_dynamic(tensors["rows"], 0)
        hidden = self.forward(**tensors).flatten(0, -2)
        return self.model.loss(hidden, targets, weights, **smoothing)

    @torch.no_grad()
    def _validate(self) -> None:
        with self.average.applied(self.model) if self.average else nullcontext():
            self._measure_validation_loss()

    def _measure_validation_loss(self) -> None:
        self.model.eval()
        nats = weight = 0.0
        for batch in self.data.validation(self.config.validation_tokens, self.config.micro_batch):
            nats += self.parallel.measure(self._shaped(batch), self._nats)
            weight += float(batch.weights.sum())
        self.parallel.release(self.model)
        self.model.train()
        nats, weight = self.parallel.sum(nats), self.parallel.sum(weight)
        if not math.isfinite(nats):
            raise NotFiniteError(f"the validation loss after step {self.at.step} is not finite")
        self.at.take_validation_loss(nats / max(1.0, weight), self.config.validation_tokens)
        self._record("validation", self.at.validation_loss)
        say(f"step {self.at.step:,}: {self.at.validation_line()}")

    def _checkpoint(self) -> None:
        check_weights(self.model, self.at.step, self.parallel)
        if self.log:
            self.log.sync()
        state = self.at.as_state() | {
            "metrics": self.log.state() if self.log else None,
            "averaged_steps": self.average.steps if self.average else 0,  # fewer than steps where some were skipped
            "loss_scale": self.loss_scale.as_state(),
        }
        self.writer.write(take_snapshot(self.model, self.optimizers, self.average, self.parallel), state)
        self.saved_step = self.at.step

    def _record(self, split: str, loss: float, **more: float) -> None:
        if self.log is None:
            return
        seconds = round(self.at.seconds, 3)
        self.log.write(step=self.at.step, tokens=self.at.tokens, split=split, loss=loss, **more, time_s=seconds)

    @staticmethod
    def _timed(work: Callable[[], None]) -> float:
        """Do `work`; the seconds that it took, which do not count as training."""
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def _due(self, every_tokens: int, before: int) -> bool:
        """Whether the step from `before` tokens on crossed a multiple of `every_tokens`."""
        return self.at.tokens // every_tokens > before // every_tokens


def _settings(config: TrainConfig) -> OptimizerSettings:
    names = [field.name for field in fields(OptimizerSettings) if field.name != "kind"]
    return OptimizerSettings(kind=config.optimizer, **{name: getattr(config, name) for name in names})

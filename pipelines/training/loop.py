"""The training loop: batches in, weights, metrics and checkpoints out."""

import gc
import math
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from lm.layer_order import rate_factors
from lm.model import LanguageModel, Stack
from lm.optim.averaging import WeightAverage
from lm.optim.optimizer import Execution
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers
from lm.task_model import TrainedModel
from pipelines.cli.display import Bar, say
from pipelines.machine import Machine, keep_freed_memory, peak_memory_bytes
from pipelines.recipes.config import TrainConfig
from pipelines.run.folder import Run
from pipelines.run.retention import checkpoint_folders
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import LossFunction, summed_loss
from pipelines.training.checkpoints import CheckpointWriter, take_snapshot, writers_folder
from pipelines.training.cuda_graphs import compile_to_graphs, own_gradients, uses_graphs
from pipelines.training.data import BlockData, Prefetcher, TrainingData
from pipelines.training.micro_batch import micro_batch_rows
from pipelines.training.parallel import ONE_PROCESS, OneProcess
from pipelines.training.progress import Progress, TrainingLog, stop_on_signals, warn_of_no_target
from pipelines.training.resuming import resume
from pipelines.training.stability import LossScale, NotFiniteError, check_weights, skip_or_raise
from pipelines.training.step import OnTheWay, Step
from pipelines.training.threads import with_threads


class Trainer:
    """Trains `model` until `config.tokens` or `config.minutes`, or until a signal.

    Without a run nothing is logged or saved. With several processes only rank 0 has the run, `data` holds each rank's
    rows, and all ranks take the same decisions at the same step. Weights and gradients are float32.
    """

    def __init__(
        self,
        run: Run | None,
        model: TrainedModel,
        data: TrainingData,
        config: TrainConfig,
        machine: Machine | None = None,
        parallel: OneProcess = ONE_PROCESS,
    ) -> None:
        self.run, self.model, self.data, self.config, self.machine = run, model, data, config, machine
        self.parallel = with_threads(parallel, model, config)
        self.batches = Prefetcher(data)
        self._next_batch: tuple[int, float] | None = None  # arguments of `data.step` for the next step
        # Compiled blocks have one shape, so they are compiled once; but a batch that grows has many.
        grows = config.batch_tokens_start or config.length_start
        self._one_shape = config.compile and isinstance(data, BlockData) and not grows
        every_position = self._one_shape and model.config.architecture != "encoder"
        device = next(model.parameters()).device
        self._graphs = uses_graphs(config, device, self.parallel.kind, every_position)
        forward = compile_to_graphs(model) if self._graphs else self.parallel.wrap(model, config.compile)
        self.device = next(model.parameters()).device  # where FSDP has moved it
        if self.device.type == "cpu":
            keep_freed_memory()
        # On a CPU in float32 the compiled loss is no faster.
        if config.compile and (self.device.type, model.compute_dtype) != ("cpu", torch.float32):
            model.head.compile_loss()
        for stack in [module for module in model.modules() if isinstance(module, Stack)]:
            stack.recompute = config.activation_checkpointing
        settings = {field.name: getattr(config, field.name) for field in fields(OptimizerSettings)[1:]}
        self.optimizers = build_optimizers(
            model,
            OptimizerSettings(kind=config.optimizer, **settings),
            Execution(
                narrow=model.compute_dtype == torch.bfloat16,  # chosen only where the machine is fast in it
                compiled=config.compile,
                spread=self.parallel.spread,
            ),
            self.parallel.optimizer_shares(config.optimizer),
        )
        if config.layer_decay < 1:
            self.optimizers.scale_rates(rate_factors(model, config.layer_decay))
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]  # a walk of 1 ms
        model.train()
        self.average = WeightAverage(model, config.average) if config.average else None
        self.loss_scale = LossScale(model.compute_dtype, self.device)
        self._may_skip = config.nonfinite == "skip" or self.loss_scale.enabled
        self._queued: deque[Step] = deque()  # steps whose numbers are not read yet
        # A GPU begins the next step while the host reads this one's numbers, unless they decide about the update.
        self.steps_ahead = 1 if self.device.type == "cuda" and not self._may_skip else 0
        loss = partial(data.loss, device=self.device, every_position=every_position)
        self.loss: LossFunction = partial(loss, model, forward, compiled=config.compile)
        self.training_loss = partial(self.loss, label_smoothing=config.label_smoothing, z_loss=config.z_loss)
        unwrapped = partial(loss, model, model)
        self.micro_batch = micro_batch_rows(unwrapped, model, data, config, self.parallel, self._one_shape)
        self.at = Progress(of_tokens=isinstance(model, LanguageModel) and data.loss is summed_loss)
        self._folder = run.folder if run else None
        self._settings = run.settings if run else {}
        self._starts_from_run = run is not None and "init_from" in run.facts
        self.writer = CheckpointWriter(
            writers_folder(self._folder, self.parallel), config, self._settings, self.parallel.checkpoint_group
        )
        self.log = TrainingLog(self._folder, self.at, config.tensorboard)
        self._saved_step: int | None = None
        self._best_weights: dict[str, torch.Tensor] = {}
        self._flops_per_token = data.flops_per_token(model) if machine else 0.0
        if self.device.type == "cuda":  # the log reports what training needs, without earlier attempts
            torch.cuda.reset_peak_memory_stats(self.device)

    def train(self) -> Progress:
        """Train from the newest checkpoint, if any, to the end; return the final progress."""
        torch.manual_seed(self.config.seed + self.parallel.rank)
        resumed = self.parallel.broadcast(bool(self._folder and checkpoint_folders(self._folder)))
        log_state = self._restore() if resumed else None
        if resumed:
            say(f"resuming from step {self.at.step:,}, {self.at.share_of(self.config)}")
            if self.at.is_out_of(self.config.patience) and not self._is_over():
                ended = f"training ended after {self.at.unimproved} validations without improvement"
                say(f"{ended}: give more patience, or 0 for no limit")
        # Without a checkpoint even the validation before the first step is repeated.
        self.log.open(self.at.step if resumed else -1, log_state)
        frozen = gc.get_freeze_count() > 0
        signals = stop_on_signals(self.at, in_job=self.parallel.kind != "none")
        try:
            with signals, Bar(self.run.name if self.run else "training", self.config.tokens, "tok") as bar:
                bar.begin_at(self.at.tokens)
                if not resumed:
                    self.validate()
                    # To roll back to, or to resume without the run that lent its weights.
                    if self.parallel.broadcast(self._starts_from_run) or self.config.nonfinite == "rollback":
                        self._checkpoint()
                self._loop(bar, frozen)
                if self._best_weights:
                    self.model.load_state_dict(self._best_weights)
                if self.at.signal and self._saved_step != self.at.step:
                    self._checkpoint()
                self.writer.wait()
        finally:
            self.writer.join()
            self.batches.close()
            if not frozen:
                gc.unfreeze()
            self.log.close()
        return self.at

    def _loop(self, bar: Bar, frozen: bool) -> None:
        """Train to the end or a signal. `frozen`: the caller has frozen objects, so this loop freezes none."""
        while not (self._is_over() or self._is_stopped()) and not self.at.is_out_of(self.config.patience):
            try:
                self._advance(bar)
            except NotFiniteError as error:
                if self.config.nonfinite != "rollback":
                    raise
                self._roll_back(error)
            if not frozen:
                # Objects from start-up live as long as the run: the collector skips them from now on.
                gc.collect()
                gc.freeze()
                frozen = True

    def _is_stopped(self) -> bool:
        """Return whether any rank has received a signal."""
        received = self.parallel.max(self.at.signal)
        if received:  # a signal that arrives during this exchange counts after the next step
            self.at.signal = received
        return received > 0

    def _advance(self, bar: Bar) -> None:
        """Take one step, then log, validate and save if it is time."""
        before = self._position()
        step = self.step()
        self.writer.check()
        goal = self.config.expected_tokens(self.at.tokens, self.at.seconds)
        bar.update(min(self.at.tokens, goal), goal, self.at.training_line(step.lr, self.config.loss_is_cross_entropy))
        intervals = (self.config.validate_every_tokens, self.config.checkpoint_every_tokens)
        to_log = self._due_to_log(step.batch_tokens, goal)
        if to_log or self._is_over() or any(self._due(interval, before) for interval in intervals):
            self._finish_steps()
        last = self._is_over()
        if self.at.unlogged and (last or to_log):
            self._log_training(step)
        improved = False
        if last or self._due(self.config.validate_every_tokens, before):
            lowest = self.at.lowest_criterion
            self.validate()
            improved = self.at.lowest_criterion != lowest
            if self.at.is_out_of(self.config.patience):
                say(f"step {self.at.step:,}: no improvement in {self.config.patience} validations ends the training")
        save = (self.config.keeps_best and improved) or self.at.is_out_of(self.config.patience)
        passed = self.config.word_mark(self.at.tokens) > self.config.word_mark(self.at.tokens - step.batch_tokens)
        if last or save or passed or self._due(self.config.checkpoint_every_tokens, before):
            self._checkpoint()
        if improved and self.config.patience and self.parallel.is_main and self.run is None:
            self._best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}

    def step(self) -> Step:
        """Take one optimizer step on the next batch.

        The host queues all work of a step before it waits for the device. With `steps_ahead` a GPU also begins the next
        step. A step whose loss or gradient is not finite leaves the weights unchanged if the recipe skips such steps or
        if float16 overflowed. Otherwise reading its numbers raises NotFiniteError, and the weights are unusable.
        """
        started = time.perf_counter()
        place = self._next_batch or (self.at.consumed, self._position())
        batch = self.batches.step(*place)
        self.at.waited += time.perf_counter() - started
        examples, tokens = self.data.size(*place)
        # With `minutes`, the length and masks of a batch are those of the time at which the step before it began.
        self._next_batch = self.at.consumed + examples, self.config.position(self.at.tokens + tokens, self.at.seconds)
        if self.device.type == "cpu":
            self.batches.begin(*self._next_batch)
        lr, weight_decay = self._schedule(tokens)
        weight = self.parallel.sum(float(batch.weights.sum()))
        if self._graphs:
            own_gradients(self._parameters)
        rows = self.micro_batch
        if isinstance(self.data, BlockData):  # a length warm-up cuts each block into several rows
            rows *= len(batch.inputs) // -(-examples // self.parallel.world_size)
        batch, scale = self._to_one_shape(batch), self.loss_scale.factor()
        total = self.parallel.gradient(self.training_loss, batch, rows, max(1.0, weight), scale)
        self.loss_scale.unscale(self.optimizers)
        total_norm = self.parallel.clip(self._parameters, self.config.grad_clip or math.inf)
        if not self._may_skip:  # otherwise both scalars decide
            self._update()
        if self.device.type != "cpu":  # earlier, the thread and the launches of kernels would hold each other up
            self.batches.begin(*self._next_batch)
        self.at.step += 1
        self.at.tokens += tokens
        self.at.consumed += examples
        step = Step(self.at.step, lr, weight_decay, tokens, weight, OnTheWay(total, total_norm))
        self._queued.append(step)
        self._read_steps(self.steps_ahead)
        self.optimizers.zero_grad(keep=self._graphs)
        self.at.seconds += time.perf_counter() - started
        self._share_seconds()
        return step

    def _share_seconds(self) -> None:
        """Give all ranks the time of rank 0 if the run ends by time, so that they end at the same step."""
        if self.config.minutes:
            self.at.seconds = self.parallel.broadcast(self.at.seconds)

    def _read_steps(self, ahead: int = 0) -> None:
        """Wait for the numbers of all queued steps but the newest `ahead`, and record them."""
        while len(self._queued) > ahead:
            self._record(self._queued.popleft())

    def _finish_steps(self) -> None:
        """Record all queued steps. The wait for them counts as training time."""
        if self._queued:
            started = time.perf_counter()
            self._read_steps()
            self.at.seconds += time.perf_counter() - started
            self._share_seconds()

    def _record(self, step: Step) -> None:
        """Record the loss and gradient norm of a step. If they decide about the update, update the weights."""
        part, norm = step.numbers.read()
        loss = self.parallel.sum(part)
        overflowed = self.loss_scale.overflowed(loss, norm)
        if math.isfinite(loss) and math.isfinite(norm):
            if self._may_skip:
                self._update()
            self.at.skipped, self.at.grad_norm = 0, norm if step.weight else self.at.grad_norm
        elif overflowed:
            self.at.overflows += 1
        else:
            skip_or_raise(self.at, step.number, self.config.nonfinite, loss, step.lr)
        if self.at.skipped == 0 and step.weight and not math.isnan(loss):
            self.log.watch(step.number, loss)

    def _update(self) -> None:
        """Update the weights, and their average if the run has one."""
        self.parallel.update(self.optimizers)
        if self.average is not None:
            self.average.update(self.model)

    def _schedule(self, batch_tokens: int) -> tuple[float, float]:
        """Set the learning rate and weight decay of a step on `batch_tokens` tokens; return them."""
        lr = self.config.lr_multiplier(self._position(), batch_tokens)
        decay = self.config.weight_decay_multiplier(self._position())
        self.optimizers.schedule(lr, decay)
        return lr * self.config.lr, decay * self.config.weight_decay

    def _to_one_shape(self, batch: Batch) -> Batch:
        return batch.pad_to_multiple(self.micro_batch) if self._one_shape else batch

    def _log_training(self, step: Step) -> None:
        """Write a line of metrics.jsonl about the steps since the last line; `step` is the newest of them."""
        more: dict[str, float] = {}
        if self.config.batch_tokens_start:
            more["batch_tokens"] = step.batch_tokens
        if self.config.weight_decay_schedule != "constant":
            more["weight_decay"] = step.weight_decay
        if self.at.rollbacks:
            more["rollbacks"] = self.at.rollbacks
        more |= self.loss_scale.metrics(self.at.overflows)
        if self.machine is not None:
            rank_rate = self.log.tokens_per_second() / self.parallel.world_size
            more |= self.machine.utilisation(rank_rate * self._flops_per_token)
        self.log.write_training(step.lr, peak_memory_bytes(self.device), more)

    @torch.no_grad()
    def validate(self) -> None:
        """Measure and record the validation loss, of the averaged weights if the run averages them.

        The loss of a mixture is the mean of its sources' losses, weighted by their shares. If a source has no target,
        no loss is recorded.
        """
        self._finish_steps()
        sums, score = {}, None
        with self.average.applied(self.model) if self.average else nullcontext():
            self.model.eval()
            for source in self.data.shares:
                sums[source] = self._validation_sums(source)
            if self.data.score is not None:
                name, value, highest = self.parallel.broadcast(self.data.score(self.model))
                score = name, value if self.at.step else None, highest  # random weights of a head have no merit
            self.parallel.reshard(self.model)
            self.model.train()
        if empty := [source for source, (_, targets) in sums.items() if not targets]:
            if self.run:
                warn_of_no_target(empty[0], self.config.validation_tokens)
            return
        losses = {source: nats / targets for source, (nats, targets) in sums.items()}
        loss = sum(share * losses[source] for source, share in self.data.shares.items())
        if not math.isfinite(loss):
            raise NotFiniteError(f"the validation loss after step {self.at.step} is not finite")
        self.log.write_validation(loss, self.config.validation_tokens, losses if len(losses) > 1 else {}, score)

    def _validation_sums(self, source: str) -> tuple[float, float]:
        """Return the nats and the number of targets of a source's validation split."""
        nats = weight = 0.0
        for batch in self.data.validation(source, self.config.validation_tokens, self.micro_batch):
            nats += self.parallel.measure(self.loss, self._to_one_shape(batch))
            weight += float(batch.weights.sum())
        return self.parallel.sum(nats), self.parallel.sum(weight)

    def _position(self) -> float:
        """Return how far the run is, from 0 to `config.tokens`."""
        return self.config.position(self.at.tokens, self.at.seconds)

    def _is_over(self) -> bool:
        return self._position() >= self.config.tokens

    def _due(self, every_tokens: int, before: float) -> bool:
        """Return whether the step that began at the position `before` crossed a multiple of `every_tokens`."""
        return self._position() // every_tokens > before // every_tokens

    def _due_to_log(self, batch_tokens: int, goal: float) -> bool:
        """Return whether to write a line about training after a step of `batch_tokens` of about `goal` tokens.

        The mean of a few steps is noise: an interval of less than half of `log_every_steps` joins its neighbour.
        """
        every, left = self.config.log_every_steps, math.ceil((goal - self.at.tokens) / batch_tokens)
        return self.at.step % every == 0 and 2 * min(left, len(self.at.unlogged) + len(self._queued)) >= every

    def _checkpoint(self) -> None:
        self._finish_steps()
        check_weights(self.model, self.at.step, self.parallel)
        state = self.at.as_state() | {
            "metrics": self.log.synced_state(),
            "averaged_steps": self.average.steps if self.average else 0,  # without skipped steps
            "loss_scale": self.loss_scale.as_state(),
            "patience": self.config.patience,
        }
        self.writer.write(take_snapshot(self.model, self.optimizers, self.average, self.parallel), state)
        self._saved_step = self.at.step

    def _restore(self) -> dict[str, Any] | None:
        """Return to the run's newest whole checkpoint; return the state of metrics.jsonl in it."""
        state = resume(self._folder, self.model, self.optimizers, self._settings, self.average, self.parallel)
        self.at.restore(state, by_score=self.data.score is not None)
        self.loss_scale.restore(state.get("loss_scale", {}))
        self._saved_step, self._next_batch = self.at.step, None
        return state.get("metrics")

    def _roll_back(self, error: NotFiniteError) -> None:
        """Return to the newest checkpoint, and skip the batches read since (Chowdhery et al. 2023, 5.1).

        The schedules return with it, so that no part of them is left out.
        """
        self._queued.clear()
        self.optimizers.zero_grad(keep=self._graphs)
        consumed, rollbacks = self.at.consumed, self.at.rollbacks + 1
        if rollbacks > self.config.max_rollbacks:
            raise NotFiniteError(f"{error.what}, after {self.config.max_rollbacks} rollbacks") from None
        self.writer.wait()
        log_state = self._restore()
        say(
            f"{error.what}: back to step {self.at.step:,} and past the {consumed - self.at.consumed:,} "
            f"{self.data.unit} read since (rollback {rollbacks} of at most {self.config.max_rollbacks})"
        )
        self.at.consumed, self.at.rollbacks = consumed, rollbacks
        self.log.open(self.at.step, log_state)

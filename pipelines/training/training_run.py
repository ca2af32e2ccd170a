"""Train in a run folder: choose the machine, lock the folder, open or create the run, and train to the end."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lm.costs import count_parameters
from lm.task_model import TrainedModel
from pipelines.cli.display import duration, quantity, say
from pipelines.cli.waiting import doing
from pipelines.machine import Machine, choose_machine, is_available, precision, precision_line, with_peaks
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run, lock, open_or_create
from pipelines.run.metrics_log import require_tensorboard
from pipelines.run.provenance import provenance
from pipelines.training.data import TrainingData
from pipelines.training.loop import Trainer
from pipelines.training.parallel import OneProcess
from tokenizer import Tokenizer


@dataclass(frozen=True)
class Training:
    """Everything that training needs except the folder and the processes."""

    recipe: Recipe
    tokenizer: Tokenizer
    data: TrainingData
    build: Callable[[], TrainedModel]
    """Function that makes the model on the CPU, with the initial weights of a new run"""
    facts: Mapping[str, Any]
    """Entries of the table [run] of config.toml"""
    lines: Sequence[str] = ()
    """Lines to print before training starts"""


def run_training(training: Training, out: Path, parallel: OneProcess) -> int:
    """Train in the run folder `out`, in the processes of `parallel`, and return the exit status.

    A model that cannot be built raises its error before anything is written.
    """
    recipe, tok = training.recipe, training.tokenizer
    if recipe.train.tensorboard:
        require_tensorboard()
    machine = _machine(recipe, out, parallel)
    if parallel.is_sharded:
        _check_fsdp(recipe, out, parallel, machine)
    recipe = replace(recipe, train=replace(recipe.train, device=machine.device_name, dtype=machine.dtype_name))
    model = training.build()
    model.compute_dtype = machine.dtype
    if not parallel.is_sharded:  # FSDP moves one block at a time, because all of them may not fit the GPU
        model = model.to(machine.device)
    facts = {**provenance(machine.device), **training.facts}
    with lock(out) if parallel.is_main else nullcontext(), precision(recipe.train):
        before = Run(out).recipe.train if parallel.is_main and (out / "config.toml").exists() else None
        run = open_or_create(out, recipe, facts, tok) if parallel.is_main else None
        doing("measuring the machine")
        machine = with_peaks(machine) if parallel.is_main else machine
        trainer = Trainer(run, model, training.data, recipe.train, machine, parallel)
        _announce(out, trainer, machine, recipe, before)
        for line in training.lines:
            say(line)
        with _explain_compilation_errors():
            at = trainer.train()
    if at.signal and recipe.train.position(at.tokens, at.seconds) < recipe.train.tokens:
        saved = f"saved at step {at.step:,}, {at.share_of(recipe.train)}"
        say(f"{out}: {saved}; {resume_command(recipe, out)} resumes it")
        return 128 + at.signal if parallel.is_main else 0
    say(f"{out}: {at.summary()}")
    return 0


def batches(recipe: Recipe) -> str:
    """Return the size of a recipe's batches as text."""
    train = recipe.train
    if train.batch_tokens_start:
        grown = f"{train.batch_tokens:,} after {train.batch_warmup_tokens:,}"
        return f"{train.batch_tokens_start:,} tokens, growing to {grown}"
    return f"{'at most ' if recipe.objective == 'sequence-pairs' else ''}{train.batch_tokens:,} tokens"


def resume_command(recipe: Recipe, out: Path) -> str:
    """Return the command that resumes the run in `out`."""
    return "the same command" if recipe.task else f"bytelm pretrain --out {shlex.quote(str(out))}"


def _machine(recipe: Recipe, out: Path, parallel: OneProcess) -> Machine:
    """Return the device of this rank and the dtype that rank 0 chose. An existing run keeps its choice for "auto"."""
    if not parallel.is_main:
        device, dtype = parallel.broadcast(["", ""])
        # Rank 0 has measured the dtype.
        return replace(choose_machine(device, "float32"), dtype=getattr(torch, dtype))
    resumed = (out / "config.toml").exists()
    decided = Run(out).recipe.train if resumed else recipe.train
    if not is_available(decided.device):
        resumed, decided = False, recipe.train  # the run started on another machine
    device = decided.device if recipe.train.device == "auto" else recipe.train.device
    dtype = decided.dtype if recipe.train.dtype == "auto" else recipe.train.dtype
    needs = "several processes" if parallel.kind != "none" else ""
    needs = "flex attention" if recipe.model.attention == "flex" else needs
    machine = choose_machine(device, dtype, half=True, needs=needs)
    if resumed and machine.dtype_name == decided.dtype:
        machine = replace(machine, why=machine.why.replace(" as asked", " as before"))
    parallel.broadcast([machine.device.type, machine.dtype_name])
    return machine


def _check_fsdp(recipe: Recipe, out: Path, parallel: OneProcess, machine: Machine) -> None:
    """Raise ValueError if FSDP cannot train this recipe on this machine."""
    if machine.dtype_name == "float16":
        raise ValueError(
            f"`parallel='{parallel.kind}'` does not scale float16's loss: use `parallel='ddp'`, or "
            "`train.dtype='float32'`"
        )
    if machine.device.type == "cuda" and not recipe.train.micro_batch:
        raise ValueError(
            f"train.micro_batch is 0, and `parallel='{parallel.kind}'` cannot find out what fits a GPU: "
            "give `train.micro_batch`"
        )
    if parallel.device != machine.device.type:
        raise ValueError(f"{out} was begun on another device: give `train.device='{parallel.device}'`")


def _announce(out: Path, trainer: Trainer, machine: Machine, recipe: Recipe, before: TrainConfig | None) -> None:
    """Print the size of the training and its settings. `before`: earlier settings of a resumed run; None if new."""
    parameters = quantity(count_parameters(trainer.model), "")
    trained = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    frozen = "" if trained == count_parameters(trainer.model) else f" ({quantity(trained, '')} of them train)"
    tokens = f"{_length(recipe.train)} in batches of {batches(recipe)}"
    workers = f"; {trainer.parallel.workers}" if trainer.parallel.workers else ""
    say(f"{out.resolve().name}: {parameters} parameters{frozen}, {tokens}{workers}")
    say(precision_line(machine, recipe.model, recipe.train))
    if before and (before.tokens, before.minutes) != (recipe.train.tokens, recipe.train.minutes):
        say(_extension(recipe.train, before))


def _length(train: TrainConfig) -> str:
    """Return the length of a training as text."""
    return duration(60 * train.minutes) if train.minutes else quantity(train.tokens, "tok")


def _extension(train: TrainConfig, before: TrainConfig) -> str:
    """Return a line about the learning rate of a run that is extended from the settings `before`."""
    old, new = _length(before), _length(train)
    if train.minutes or before.minutes:  # the tokens of a timed training are an estimate
        return f"extended from {old} to {new}: the {train.schedule} schedule spans all {new}"

    def rate(total: int) -> str:
        return f"{train.lr_multiplier(before.tokens, train.batch_tokens, total) * train.lr:.3g}"

    return (
        f"extended from {old} to {new}: the {train.schedule} schedule spans all {new}, and the learning rate at {old} "
        f"is {rate(train.tokens)} instead of {rate(before.tokens)}"
    )


@contextmanager
def _explain_compilation_errors() -> Iterator[None]:
    """Turn an error of torch.compile, such as a missing C++ compiler, into a ValueError."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"train.compile is true, but torch.compile failed here: train without it ({why})") from error

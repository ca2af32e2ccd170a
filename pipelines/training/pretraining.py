"""A pretraining run: check that recipe, dataset, run folder and machine fit together, then train."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from lm.matmul import require_float8
from lm.model import LanguageModel
from pipelines.cli.display import answer, quantity, say
from pipelines.cli.waiting import doing
from pipelines.machine import (
    Machine,
    choose_machine,
    cores_per_operation,
    freed_memory_returned,
    is_available,
    precision,
    precision_line,
    with_peaks,
    without_subnormals,
)
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run, lock, open_or_create
from pipelines.run.metrics_log import require_tensorboard
from pipelines.run.provenance import provenance
from pipelines.run.retention import checkpoint_folders
from pipelines.run.sources import Sources, spell
from pipelines.training.data import open_training_data
from pipelines.training.init_from import find_start, shared_start
from pipelines.training.launch import processes
from pipelines.training.loop import Trainer
from pipelines.training.mixture import Dataset, fit_to_data, open_sources
from pipelines.training.model_costs import model_costs
from pipelines.training.parallel import Kind, OneProcess
from pipelines.training.timing import training_speed
from tokenizer import Tokenizer


def train(recipe: Recipe, sources: Sources, out: Path, parallel: Kind, init_from: Path | None = None) -> int:
    """Train the model of `recipe` in this process, or in the processes that torchrun started; see `pretrain`."""
    group, threads = processes(parallel, recipe.train), recipe.train.threads
    with freed_memory_returned(), without_subnormals(), cores_per_operation(threads), group as strategy:
        return _train(recipe, sources, out, strategy, init_from)


def _train(recipe: Recipe, sources: Sources, out: Path, parallel: OneProcess, init_from: Path | None) -> int:
    mixture = open_sources(sources, recipe.objective)
    dataset = mixture.first
    tok = Tokenizer.load(dataset.folder)
    if tok.fingerprint != dataset.tokenizer_fingerprint:
        raise ValueError(
            f"{dataset.place}: its tokenizer.json is not the tokenizer that the dataset was built with "
            f"({tok.fingerprint[:16]} instead of {dataset.tokenizer_fingerprint[:16]}): build the dataset again"
        )
    if parallel.broadcast(mixture.fingerprint) != mixture.fingerprint:
        raise ValueError(
            f"{spell(sources)} is other data on rank {parallel.rank} than on rank 0: give all ranks the same"
        )
    start = shared_start(recipe, dataset, out, init_from, parallel)
    recipe = _fit(recipe, dataset, out, start.vocab_size)
    if recipe.train.tensorboard:
        require_tensorboard()
    training_data = open_training_data(recipe, mixture, tok, parallel.shard, start.facts)
    # A run that cannot be built is refused before anything is written.
    machine = _machine(recipe, out, parallel)
    if recipe.train.fp8_head:
        require_float8(machine.device, machine.dtype, recipe.model.width)
    if parallel.is_sharded:
        _check_fsdp(recipe, out, parallel, machine)
    recipe = replace(recipe, train=replace(recipe.train, device=machine.device_name, dtype=machine.dtype_name))
    model = LanguageModel(recipe.model, recipe.train.seed)
    start.load(model, parallel)
    model.compute_dtype = machine.dtype
    if not parallel.is_sharded:  # FSDP moves one block at a time, because all of them may not fit the GPU
        model = model.to(machine.device)
    facts = {
        "data": spell(sources),
        "dataset_fingerprint": mixture.fingerprint,
        "tokenizer_fingerprint": tok.fingerprint,
        **provenance(machine.device),
        "separated": dataset.info.get("separator") is not None,
        **start.facts,
    }
    with lock(out) if parallel.is_main else nullcontext(), precision(recipe.train):
        tokens_before = _token_budget(out) if parallel.is_main else 0
        run = open_or_create(out, recipe, facts, tok) if parallel.is_main else None
        doing("measuring the machine")
        machine = with_peaks(machine) if parallel.is_main else machine
        trainer = Trainer(run, model, training_data, recipe.train, machine, parallel)
        _announce(out, trainer, machine, recipe, tokens_before)
        for line in (*mixture.lines(recipe.train.tokens), *start.lines(recipe)):
            say(line)
        with _explain_compilation_errors():
            at = trainer.train()
    if at.signal and at.tokens < recipe.train.tokens:
        saved = f"saved at step {at.step:,}, {at.share_of(recipe.train.tokens)}"
        say(f"{out}: {saved}; {_resume_command(out)} resumes it")
        return 128 + at.signal if parallel.is_main else 0
    say(f"{out}: {at.summary()}")
    return 0


def print_plan(recipe: Recipe, sources: Sources, out: Path, init_from: Path | None = None) -> None:
    """Print the work that `recipe` takes on the data of `sources`, its size and its output path."""
    mixture = open_sources(sources, recipe.objective)
    dataset = mixture.first
    start = find_start(recipe, dataset, out, init_from)
    recipe = fit_to_data(recipe, dataset, start.vocab_size)
    open_training_data(recipe, mixture, Tokenizer.load(dataset.folder), facts=start.facts)  # checks special tokens
    train = recipe.train
    costs = model_costs(recipe.model, "float32", train.optimizer)
    available = sum(dataset.split("train").tokens for dataset in mixture.datasets)
    memory = costs["training_bytes"]
    checkpoint = memory["weights"] * (2 if train.average else 1) + memory["moments"]
    retained = train.keep_checkpoints + train.keep_best
    parameters = quantity(costs["parameters"]["total"], "")
    answer(
        f"would train {parameters} parameters on {quantity(train.tokens, 'tok')} of {' and '.join(map(str, sources))} "
        f"({train.tokens / available:.3g} epochs of {quantity(available, 'tok')}), in batches of {batches(recipe)}"
    )
    speed = training_speed(recipe, mixture, start.facts)
    answer(f"compute: {quantity(costs['flops_per_token'] * train.tokens, 'FLOP')}; {speed.time_of(train.tokens)}")
    about = "less than" if train.activation_checkpointing else "about"
    answer(
        f"memory: {quantity(sum(memory[part] for part in ('weights', 'gradients', 'moments')), 'B')} for weights, "
        f"gradients and optimizer, and {about} {quantity(memory['activations'], 'B')} of activations per sequence"
    )
    for line in (*mixture.lines(train.tokens), *start.lines(recipe)):
        answer(line)
    state = "resume the run" if checkpoint_folders(out) else "make a run"
    answer(f"would {state} in {out}, with {retained} checkpoints of about {quantity(checkpoint, 'B')} each")


def batches(recipe: Recipe) -> str:
    """Return the size of a recipe's batches as text."""
    train = recipe.train
    if train.batch_tokens_start:
        grown = f"{train.batch_tokens:,} after {train.batch_warmup_tokens:,}"
        return f"{train.batch_tokens_start:,} tokens, growing to {grown}"
    return f"{'at most ' if recipe.objective == 'sequence-pairs' else ''}{train.batch_tokens:,} tokens"


def _fit(recipe: Recipe, dataset: Dataset, out: Path, vocab_size: int) -> Recipe:
    """Return `fit_to_data` of the recipe; if `out` has a run, the error also says how to resume it."""
    try:
        return fit_to_data(recipe, dataset, vocab_size)
    except ValueError as error:
        if not (out / "config.toml").exists():
            raise
        raise ValueError(f"{error}; or resume the run with its own settings: {_resume_command(out)}") from None


def _resume_command(out: Path) -> str:
    """Return the command that resumes the run in `out`."""
    return f"bytelm pretrain --out {shlex.quote(str(out))}"


def _token_budget(out: Path) -> int:
    """Return the token budget of the run in `out`; 0 for a new run."""
    return Run(out).recipe.train.tokens if (out / "config.toml").exists() else 0


def _machine(recipe: Recipe, out: Path, parallel: OneProcess) -> Machine:
    """Return the device of this rank and the dtype that rank 0 chose; an existing run has already decided "auto"."""
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


def _announce(out: Path, trainer: Trainer, machine: Machine, recipe: Recipe, tokens_before: int) -> None:
    """Print what is trained and how; `tokens_before` is the token budget of a resumed run so far."""
    parameters = quantity(sum(p.numel() for p in trainer.model.parameters()), "")
    tokens = f"{quantity(recipe.train.tokens, 'tok')} in batches of {batches(recipe)}"
    workers = f"; {trainer.parallel.workers}" if trainer.parallel.workers else ""
    say(f"{out.resolve().name}: {parameters} parameters, {tokens}{workers}")
    say(precision_line(machine, recipe.model, recipe.train))
    if tokens_before and tokens_before < recipe.train.tokens:
        say(_extension(recipe, tokens_before))


def _extension(recipe: Recipe, before: int) -> str:
    """Return a line about the learning rate of a run that is extended from `before` tokens."""
    train = recipe.train

    def rate(total: int) -> str:
        return f"{train.lr_multiplier(before, train.batch_tokens, total) * train.lr:.3g}"

    old, new = quantity(before, "tok"), quantity(train.tokens, "tok")
    return (
        f"extended from {old} to {new}: the {train.schedule} schedule spans all {new}, and the learning rate at {old} "
        f"is {rate(train.tokens)} instead of {rate(before)}"
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

"""`bytelm pretrain`: a recipe and a dataset to a trained model."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from pipelines.cli.arguments import DryRun
from pipelines.cli.errors import UsageError
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.cli.waiting import doing
from pipelines.run.recipe import Recipe, load_recipe, recipe_descriptions, recipe_names

if TYPE_CHECKING:
    from pipelines.training.loop import Trainer
    from pipelines.training.machine import Machine
    from pipelines.training.parallel import OneProcess


@verb
def pretrain(
    recipe: Recipe,
    *,
    data: Path,
    out: Path,
    parallel: Literal["none", "ddp", "fsdp"] = "none",
    dry_run: bool = False,
) -> int:
    """Train the model of `recipe` on the dataset `data`, in the run folder `out`; go on if a run is there already.

    `parallel` shares the work among the processes that torchrun started: each calls this function, and the batch, the
    data's order and the losses are those of one process. A run may go on in another number of processes. `dry_run` only
    prints the planned work, its size and its output path.

    Returns 0, or 128 + the signal that stopped it after saving (0 in processes other than the main one). Raises
    ValueError when recipe, dataset and run folder, or `parallel` and the processes, do not fit together,
    FloatingPointError when the loss stops being finite, ConnectionError when another process is gone.
    """
    if dry_run:
        from pipelines.training.data import open_dataset
        from pipelines.training.plan import print_plan

        dataset = open_dataset(data, recipe.objective)
        print_plan(fit_to_data(recipe, dataset), dataset, out)
        return 0
    # torch takes seconds to import: `--help` and a mistyped recipe should not wait for it.
    from pipelines.training.allocator import freed_memory_returned
    from pipelines.training.machine import cores_a_product, without_subnormals
    from pipelines.training.parallel import processes

    threads, group = recipe.train.threads, processes(parallel, recipe.train.device)
    with freed_memory_returned(), without_subnormals(), cores_a_product(threads), group as group:
        return _pretrain(recipe, data, out, group)


def _pretrain(recipe: Recipe, data: Path, out: Path, group: "OneProcess") -> int:
    from lm.model import build_model
    from pipelines.cli.display import say
    from pipelines.run.folder import locked, open_or_create, with_machine
    from pipelines.run.metrics_log import require_tensorboard
    from pipelines.run.provenance import provenance
    from pipelines.training.data import open_dataset, open_training_data
    from pipelines.training.loop import Trainer
    from pipelines.training.machine import kernels, with_peaks
    from tokenizer import Tokenizer

    dataset = open_dataset(data, recipe.objective)
    tok = Tokenizer.load(data)
    if tok.fingerprint != dataset.tokenizer_fingerprint:
        raise ValueError(
            f"{data}: the tokenizer.json in it is not the one that the dataset was built with "
            f"({tok.fingerprint[:16]} instead of {dataset.tokenizer_fingerprint[:16]}): build the dataset again"
        )
    if group.tell(dataset.fingerprint) != dataset.fingerprint:
        raise ValueError(f"{data} is another dataset in process {group.rank} than in the main one: give all the same")
    recipe = _fitted(recipe, dataset, out)
    if recipe.train.tensorboard:
        require_tensorboard()
    training_data = open_training_data(recipe, dataset, tok, group.share)
    # A run that cannot be built is refused before anything is written.
    machine = _machine(recipe, out, group)
    if group.kind == "fsdp" and machine.dtype_name == "float16":
        raise ValueError("--parallel fsdp does not scale float16's loss: use --parallel ddp, or --train.dtype float32")
    if group.kind == "fsdp" and machine.device.type == "cuda" and not recipe.train.micro_batch:
        raise ValueError(
            "train.micro_batch is 0, and --parallel fsdp cannot find out what fits a GPU: give --train.micro-batch"
        )
    if group.kind == "fsdp" and group.device != machine.device.type:
        raise ValueError(f"{out} was begun on another device: give --train.device {group.device}")
    recipe = with_machine(recipe, machine.device.type, machine.dtype_name)
    model = build_model(recipe.model, recipe.train.seed)
    model.compute_dtype = machine.dtype
    if group.kind != "fsdp":  # which brings a block at a time to a GPU that may be too small for all of them
        model = model.to(machine.device)
    facts = {
        "data": str(data.resolve()),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": tok.fingerprint,
        **provenance(machine.device),
        "separated": dataset.info.get("separator") is not None,
    }
    with locked(out) if group.is_main else nullcontext(), kernels(recipe.train):
        before = _trained_for(out) if group.is_main else 0
        run = open_or_create(out, recipe, facts, tok) if group.is_main else None
        doing("measuring the machine")
        machine = with_peaks(machine) if group.is_main else machine
        trainer = Trainer(run, model, training_data, recipe.train, machine, group)
        _announce(out, trainer, recipe, before)
        with _compiling():
            reached = trainer.train()
    if reached.signal and reached.tokens < recipe.train.tokens:
        saved = f"saved at step {reached.step:,}, {reached.share_of(recipe.train.tokens)}"
        say(f"{out}: {saved}; {_resuming(out)} resumes it")
        return 128 + reached.signal if group.is_main else 0
    say(f"{out}: {reached.summary()}")
    return 0


def _announce(out: Path, trainer: "Trainer", recipe: Recipe, before: int) -> None:
    """Say what is about to be trained and how; `before` is the token budget of a resumed run so far."""
    from pipelines.cli.display import quantity, say
    from pipelines.training.machine import precision_line
    from pipelines.training.plan import batch_words

    parameters = quantity(sum(p.numel() for p in trainer.model.parameters()), "")
    tokens = f"{quantity(recipe.train.tokens, 'tok')} in batches of {batch_words(recipe)}"
    workers = f"; {trainer.parallel.workers}" if trainer.parallel.workers else ""
    say(f"{out.resolve().name}: {parameters} parameters, {tokens}{workers}")
    say(precision_line(trainer.machine, recipe.model, recipe.train))
    if before and before < recipe.train.tokens:
        say(_restated(recipe, before))


def _trained_for(out: Path) -> int:
    """Return the token budget of the run in `out`; 0 for a new run."""
    from pipelines.run.folder import Run

    return Run(out).recipe.train.tokens if (out / "config.toml").exists() else 0


def _restated(recipe: Recipe, before: int) -> str:
    """Return a line about the learning rate of a run that is extended from `before` tokens."""
    from lm.optim.schedules import multiplier
    from pipelines.cli.display import quantity

    train = recipe.train

    def rate(total: int) -> str:
        share = multiplier(
            train.schedule,
            before,
            warmup=min(train.warmup_tokens, total),
            total=total,
            stride=train.batch_tokens,
            final=train.min_lr_ratio,
            decay_share=train.decay_share,
        )
        return f"{share * train.lr:.3g}"

    was, now = quantity(before, "tok"), quantity(train.tokens, "tok")
    return (
        f"extended from {was} to {now}: the {train.schedule} schedule spans all {now}, and the learning rate at {was} "
        f"is {rate(train.tokens)} instead of {rate(before)}"
    )


@contextmanager
def _compiling() -> Iterator[None]:
    """ValueError where torch.compile cannot do its work, as without a C++ compiler."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        why = str(error).strip().splitlines()[0]
        raise ValueError(f"train.compile is true, but torch.compile failed here: train without it ({why})") from error


def _machine(recipe: Recipe, out: Path, group: "OneProcess") -> "Machine":
    """Where each process computes, in the dtype that the main one chose. A run that is there has decided what "auto"
    is."""
    import torch

    from pipelines.run.folder import Run
    from pipelines.training.machine import choose_machine

    if not group.is_main:
        return choose_machine(*group.tell(None), half=True)
    resumed = (out / "config.toml").exists()
    decided = Run(out).recipe.train if resumed else recipe.train
    if decided.device == "cuda" and not torch.cuda.is_available():
        resumed, decided = False, recipe.train  # the run was begun elsewhere
    asked = [(getattr(recipe.train, name), getattr(decided, name)) for name in ("device", "dtype")]
    machine = choose_machine(*(there if given == "auto" else given for given, there in asked), half=True)
    if resumed and machine.dtype_name == decided.dtype:
        machine = replace(machine, why=machine.why.replace(" as asked", " as before"))
    group.tell([machine.device.type, machine.dtype_name])
    return machine


def fit_to_data(recipe: Recipe, dataset: Any) -> Recipe:
    """`recipe` with the dataset's vocabulary; ValueError when its own or its context does not fit the dataset."""
    model = recipe.model
    if model.vocab_size not in (0, dataset.vocab_size):
        raise ValueError(
            f"model.vocab_size is {model.vocab_size}, but the dataset's tokenizer has {dataset.vocab_size} entries: "
            "leave it out, or build the dataset with another tokenizer"
        )
    if recipe.objective != "sequence-pairs":
        _check_context(recipe, dataset)
    return replace(recipe, model=replace(model, vocab_size=dataset.vocab_size))


def _fitted(recipe: Recipe, dataset: Any, out: Path) -> Recipe:
    """Return what `fit_to_data` does; if `out` has a run, the error also says how to resume it."""
    try:
        return fit_to_data(recipe, dataset)
    except ValueError as error:
        if not (out / "config.toml").exists():
            raise
        raise ValueError(f"{error}; or resume the run with its own settings: {_resuming(out)}") from None


def _resuming(out: Path) -> str:
    """Return the command that resumes the run in `out`."""
    return f"bytelm pretrain --out {shlex.quote(str(out))}"


def _check_context(recipe: Recipe, dataset: Any) -> None:
    model = recipe.model
    around = 2 if recipe.objective == "masked-token" else 0
    if model.context_length != dataset.context_length + around:
        fitting = model.context_length - around
        raise ValueError(
            f"model.context_length is {model.context_length}, but the dataset has blocks of {dataset.context_length} "
            f"tokens{' (and the encoder reads two more)' if around else ''}: build the dataset with --context-length "
            f"{fitting}, or give --model.context-length {dataset.context_length + around}"
        )


def main(arguments: list[str]) -> int:
    recipe, data, rest, words = Recipe(), tyro.MISSING, arguments, "pretrain RECIPE"
    if arguments and not arguments[0].startswith("-"):
        recipe, rest, words = load_recipe(arguments[0]), arguments[1:], f"pretrain {arguments[0]}"
    elif there := _run_named(arguments):
        recipe, data, words = there.recipe, there.data, f"pretrain --out {there.folder}"
    elif not {"-h", "--help"} & set(arguments):
        raise UsageError(
            f"name a recipe first: {', '.join(recipe_names())}, or a .toml file; or resume a run: bytelm pretrain "
            "--out RUN"
        )

    def command(
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = recipe,
        *,
        data: Path = data,
        out: Path,
        parallel: Literal["none", "ddp", "fsdp"] = "none",
        dry_run: DryRun = False,
    ) -> int:
        """Train the model of a recipe on a dataset; every field of the recipe can be given here.

        Without a recipe, `bytelm pretrain --out RUN` resumes a run with its own settings and dataset. A finished run
        is extended with more tokens: `bytelm pretrain --out RUN --train.tokens 4M`.

        Args:
            data: Folder of the dataset. A run that is resumed by --out alone has its own.
            out: Folder of the run. An existing run is resumed.
            parallel: How the processes that torchrun starts share the work: ddp, a whole model in each, or fsdp, its
                weights and optimizer state cut up among them (on a GPU with a --train.micro-batch). Say torchrun
                --nproc-per-node 2 --no-python bytelm pretrain ... --parallel ddp.
        """
        status = pretrain(recipe, data=data, out=out, parallel=parallel, dry_run=dry_run)
        if status == 0 and not dry_run and int(os.environ.get("RANK", "0")) == 0:
            from pipelines.cli.display import say

            run = shlex.quote(str(out))
            say(f"next: bytelm evaluate {run}, or bytelm generate {run} --prompt TEXT")
        return status

    more = "" if rest is not arguments else f"RECIPE is a .toml file, or one of\n{recipe_descriptions()}"
    return parse(command, rest, words, more=more)


def _run_named(arguments: list[str]) -> Any:
    """Return the run in the folder that --out names, to resume without a recipe; None if there is no run."""
    names = [given for word, given in pairwise(arguments) if word == "--out"]
    names += [word.removeprefix("--out=") for word in arguments if word.startswith("--out=")]
    if not names or not (Path(names[-1]) / "config.toml").exists():
        return None
    from pipelines.run.folder import Run

    return Run(names[-1])

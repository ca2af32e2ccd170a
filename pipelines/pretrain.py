"""`bytelm pretrain`: a recipe and a dataset to a trained model."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from pipelines.arguments import DryRun, parse
from pipelines.recipe import Recipe, load_recipe, recipe_descriptions, recipe_names
from pipelines.verbs import verb

if TYPE_CHECKING:
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
    prints the work, its size and where it would go.

    Returns 0, or 128 + the signal that stopped it after saving (0 in processes other than the main one). Raises
    ValueError when recipe, dataset and run folder, or `parallel` and the processes, do not fit together,
    FloatingPointError when the loss stops being finite, ConnectionError when another process is gone.
    """
    if dry_run:
        from pipelines.dry_run import plan_pretraining

        plan_pretraining(recipe, data, out)
        return 0
    # torch takes seconds to import: `--help` and a mistyped recipe should not wait for it.
    from pipelines.training.machine import cores_a_product, without_subnormals
    from pipelines.training.parallel import processes

    threads, group = recipe.train.threads, processes(parallel, recipe.train.device)
    with without_subnormals(), cores_a_product(threads), group as group:
        return _pretrain(recipe, data, out, group)


def _pretrain(recipe: Recipe, data: Path, out: Path, group: "OneProcess") -> int:
    from lm.model import build_model
    from pipelines.display import quantity, say
    from pipelines.provenance import provenance
    from pipelines.training.data import open_dataset, open_training_data
    from pipelines.training.loop import Trainer, summary
    from pipelines.training.machine import kernels, precision_line, with_peaks
    from pipelines.training.metrics_log import require_tensorboard
    from pipelines.training.run import locked, open_or_create, with_machine
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
    recipe = fit_to_data(recipe, dataset)
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
        run = open_or_create(out, recipe, facts, tok) if group.is_main else None
        machine = with_peaks(machine) if group.is_main else machine
        trainer = Trainer(run, model, training_data, recipe.train, machine, group)
        parameters, tokens = sum(p.numel() for p in model.parameters()), quantity(recipe.train.tokens, "tok")
        say(
            f"{out.resolve().name}: {quantity(parameters, '')} parameters, {tokens} in batches of {batches(recipe)}"
            + (f"; {trainer.parallel.workers}" if trainer.parallel.workers else "")
        )
        say(precision_line(machine, recipe.model, recipe.train))
        with _compiling():
            reached = trainer.train()
    if reached.signal and reached.tokens < recipe.train.tokens:
        reached_tokens = quantity(reached.tokens, "tok")
        say(f"{out}: saved at step {reached.step:,}, {reached_tokens} of {tokens}; the same command goes on from there")
        return 128 + reached.signal if group.is_main else 0
    say(f"{out}: {summary(trainer)}")
    return 0


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

    from pipelines.training.machine import choose_machine
    from pipelines.training.run import Run

    if not group.is_main:
        return choose_machine(*group.tell(None), half=True)
    decided = Run(out).recipe.train if (out / "config.toml").exists() else recipe.train
    if decided.device == "cuda" and not torch.cuda.is_available():
        decided = recipe.train  # the run was begun elsewhere
    asked = [(getattr(recipe.train, name), getattr(decided, name)) for name in ("device", "dtype")]
    machine = choose_machine(*(there if given == "auto" else given for given, there in asked), half=True)
    group.tell([machine.device.type, machine.dtype_name])
    return machine


def batches(recipe: Recipe) -> str:
    """The size of a recipe's batches, in words."""
    train = recipe.train
    if train.batch_tokens_start:
        grown = f"{train.batch_tokens:,} after {train.batch_warmup_tokens:,}"
        return f"{train.batch_tokens_start:,} tokens, growing to {grown}"
    return f"{'at most ' if recipe.objective == 'sequence-pairs' else ''}{train.batch_tokens:,} tokens"


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
    recipe, rest = Recipe(), arguments
    if arguments and not arguments[0].startswith("-"):
        recipe, rest = load_recipe(arguments[0]), arguments[1:]
    elif not {"-h", "--help"} & set(arguments):
        raise ValueError(f"name a recipe first: {', '.join(recipe_names())}, or a .toml file")

    def command(
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = recipe,
        *,
        data: Path,
        out: Path,
        parallel: Literal["none", "ddp", "fsdp"] = "none",
        dry_run: DryRun = False,
    ) -> int:
        """Train the model of a recipe on a dataset; every field of the recipe can be given here.

        Args:
            data: Folder of the dataset.
            out: Folder of the run; one that is there already goes on.
            parallel: How the processes that torchrun starts share the work: ddp, a whole model in each, or fsdp, its
                weights and optimizer state cut up among them (on a GPU with a --train.micro-batch). Say torchrun
                --nproc-per-node 2 --no-python bytelm pretrain ... --parallel ddp.
        """
        return pretrain(recipe, data=data, out=out, parallel=parallel, dry_run=dry_run)

    if rest is not arguments:
        return parse(command, rest, f"pretrain {arguments[0]}")
    return parse(command, rest, "pretrain RECIPE", more=f"RECIPE is a .toml file, or one of\n{recipe_descriptions()}")

"""`bytelm pretrain`: a recipe and a dataset to a trained model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from pipelines.arguments import parse
from pipelines.recipe import Recipe, load_recipe, recipe_descriptions, recipe_names


def pretrain(recipe: Recipe, *, data: Path, out: Path) -> int:
    """Train the model of `recipe` on the dataset `data`, in the run folder `out`; go on if a run is there already.

    Returns 0, or 128 + the signal that stopped it after saving. Raises ValueError when recipe, dataset and run folder
    do not fit together, FloatingPointError when the loss stops being finite.
    """
    # torch takes seconds to import: `--help` and a mistyped recipe should not wait for it.
    import torch

    from lm.model import build_model
    from pipelines.display import quantity, say
    from pipelines.training.data import open_dataset, open_training_data
    from pipelines.training.loop import Trainer, summary
    from pipelines.training.machine import choose_machine, matmul_precision, precision_line, with_peaks
    from pipelines.training.metrics_log import require_tensorboard
    from pipelines.training.run import Run, locked, open_or_create, with_machine
    from tokenizer import Tokenizer

    dataset = open_dataset(data, recipe.objective)
    tok = Tokenizer.load(data)
    if tok.fingerprint != dataset.tokenizer_fingerprint:
        raise ValueError(
            f"{data}: the tokenizer.json in it is not the one that the dataset was built with "
            f"({tok.fingerprint[:16]} instead of {dataset.tokenizer_fingerprint[:16]}): build the dataset again"
        )
    recipe = fit_to_data(recipe, dataset)
    if recipe.train.tensorboard:
        require_tensorboard()
    training_data = open_training_data(recipe, dataset, tok)
    # A run that is there has decided what "auto" is; one that cannot be built is refused before anything is written.
    decided = Run(out).recipe.train if (out / "config.toml").exists() else recipe.train
    asked = [(getattr(recipe.train, name), getattr(decided, name)) for name in ("device", "dtype")]
    machine = choose_machine(*(there if given == "auto" else given for given, there in asked), half=True)
    model = build_model(recipe.model, recipe.train.seed).to(machine.device)
    model.compute_dtype = machine.dtype
    facts = {
        "data": str(data.resolve()),
        "dataset_fingerprint": dataset.fingerprint,
        "tokenizer_fingerprint": tok.fingerprint,
        "torch": torch.__version__,
    }
    with locked(out), matmul_precision(recipe.train.matmul_precision):
        run = open_or_create(out, with_machine(recipe, machine.device.type, machine.dtype_name), facts, tok)
        recipe = run.recipe
        trainer = Trainer(run, model, training_data, recipe.train, with_peaks(machine))
        parameters, tokens = sum(p.numel() for p in model.parameters()), quantity(recipe.train.tokens, "tok")
        say(f"{run.name}: {quantity(parameters, '')} parameters, {tokens} in batches of {batches(recipe)}")
        say(precision_line(machine, recipe.model, recipe.train))
        reached = trainer.train()
    if reached.signal:
        reached_tokens = quantity(reached.tokens, "tok")
        say(f"{out}: saved at step {reached.step:,}, {reached_tokens} of {tokens}; the same command goes on from there")
        return 128 + reached.signal
    say(f"{out}: {summary(trainer)}")
    return 0


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

    def command(recipe: Annotated[Recipe, tyro.conf.arg(name="")] = recipe, *, data: Path, out: Path) -> int:
        """Train the model of a recipe on a dataset; every field of the recipe can be given here.

        Args:
            data: Folder of the dataset.
            out: Folder of the run; one that is there already goes on.
        """
        return pretrain(recipe, data=data, out=out)

    if rest is not arguments:
        return parse(command, rest, f"pretrain {arguments[0]}")
    return parse(command, rest, "pretrain RECIPE", more=f"RECIPE is a .toml file, or one of\n{recipe_descriptions()}")

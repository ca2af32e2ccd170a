"""Training: train the model of a recipe on a dataset.

Examples:
    bytelm pretrain gpt-tiny --data data --out runs/gpt
    bytelm pretrain gpt-tiny --data data --out runs/long --train.tokens 20M
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lm.config import SUBJECTS as MODEL_SUBJECTS
from lm.config import ModelConfig
from lm.warn import warn
from pipelines.cli.arguments import DryRun
from pipelines.cli.errors import UsageError
from pipelines.cli.help import FLAGS, prefixed
from pipelines.cli.parsing import parse
from pipelines.cli.process import PASSIVE_THREADS, StoppedBySignal
from pipelines.cli.shell import command
from pipelines.cli.verbs import refuse_uri, verb
from pipelines.cli.waiting import is_first_process
from pipelines.recipes.config import SUBJECTS as TRAIN_SUBJECTS
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.published import PUBLISHED
from pipelines.recipes.recipe import Recipe, changed, load_recipe, recipe_descriptions, recipe_names
from pipelines.run.sources import Sources, parse_sources, sources_of

if TYPE_CHECKING:
    from pipelines.run.folder import Run
    from pipelines.run.loaded_run import LoadedRun
    from pipelines.training.parallel import Kind

ENVIRONMENT = PASSIVE_THREADS
RecipeOptions = Annotated[Recipe, tyro.conf.arg(name="")]
OUT_OF_MEMORY = "choose a smaller `train.micro_batch`, context or model"

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Data and output": ("data out init_from dry_run", "parallel objective"),
    **prefixed("model", MODEL_SUBJECTS),
    **prefixed("train", TRAIN_SUBJECTS),
    "Adapters": ("", "lora.rank lora.targets lora.alpha lora.dropout"),
}


@verb
def pretrain(
    recipe: RecipeOptions,
    *,
    data: str | Path | Mapping[str | Path, float],
    out: Path,
    model: Annotated[Mapping[str, object], ModelConfig] = MappingProxyType({}),
    train: Annotated[Mapping[str, object], TrainConfig] = MappingProxyType({}),
    init_from: Path | None = None,
    parallel: Literal["none", "ddp", "fsdp", "hsdp"] = "none",
) -> "LoadedRun":
    """Train the model of `recipe` on the dataset `data`, in the run folder `out`, and return the trained run.

    The same call resumes an existing run. `model` and `train` change fields of the recipe:
    `pretrain("gpt-tiny", data="my/data", out="my/gpt", train={"tokens": 100_000})`.

    `data` is a folder or a URI, or a mixture `{folder: weight}`, whose datasets give blocks in proportion to their
    weights.

    With `init_from`, the folder of another run, a new run starts from its weights (averaged weights if it has them), at
    step 0 with a new optimizer.

    `parallel` shares the work among the processes that torchrun started, each of which calls this function. The batch,
    the order of the data and the losses are those of one process, and a run may resume in another number of processes.

    Raises KeyboardInterrupt after Ctrl-C or SIGTERM, when a checkpoint is saved; ValueError if recipe, dataset, run
    folder and processes do not fit together; FloatingPointError if the loss stops being finite; and ConnectionError if
    another process has died.
    """
    from pipelines.run.folder import Run
    from pipelines.run.loaded_run import LoadedRun

    asked = changed(recipe, model, train)
    _refuse_two_lengths(asked, recipe, out)
    if status := _pretrain(asked, sources_of(data), out, init_from, parallel):
        raise StoppedBySignal(status - 128)
    return LoadedRun(Run(out))


def _refuse_two_lengths(recipe: Recipe, before: Recipe, out: Path) -> None:
    """Raise ValueError if `recipe` has other `train.tokens` than `before`, but its words or minutes decide the length.

    `open_or_create` has a better message about minutes for an existing run in `out`.
    """
    words, tokens, minutes = recipe.train.words, recipe.train.tokens, recipe.train.minutes
    if tokens == before.train.tokens:
        return
    if words:
        without = "train.words=0 and train.keep_words=0" if recipe.train.keep_words else "train.words=0"
        raise ValueError(
            f"train.tokens is {tokens}, and train.words is {words}: give one of them ({without} for tokens alone)"
        )
    if minutes == before.train.minutes > 0 and not (out / "config.toml").exists():
        raise ValueError(
            f"train.tokens is {tokens}, and train.minutes is {minutes:g}: give one of them (train.minutes=0 for tokens "
            "alone)"
        )


def _pretrain(
    recipe: Recipe, sources: Sources, out: Path, init_from: Path | None, parallel: "Kind", dry_run: bool = False
) -> int:
    """Return 0, or 128 + the signal that stopped the training after it saved a checkpoint (0 on ranks other than 0)."""
    recipe = _checked(recipe.without_task(), sources, out, init_from)
    from pipelines.training.pretraining import print_plan, train  # imports PyTorch, which takes seconds

    for sentence in recipe.train.unfinished_schedules() if is_first_process() else ():
        warn(sentence)
    if dry_run:
        print_plan(recipe, sources, out, init_from)
        return 0
    return train(recipe, sources, out, parallel, init_from)


def _checked(recipe: Recipe, sources: Sources, out: Path, init_from: Path | None) -> Recipe:
    """Return the recipe with the tokens of its words. Raises ValueError for mistakes that are found without torch."""
    from pipelines.run.folder import Run, opened
    from pipelines.training.mixture import fit_to_data, open_sources
    from pipelines.training.word_budget import with_tokens_of_words

    run = Run(out) if (out / "config.toml").exists() else None
    if run is not None:
        _refuse_other_training(run)
    elif init_from is not None and is_first_process():  # the other nodes do not read it
        opened(init_from)
    if init_from is None and recipe.lora.rank:
        raise ValueError(
            "`lora.rank` is given without `init_from`, but random weights must train: give a trained run to start from"
        )
    mixture = open_sources(sources, recipe.objective)
    if init_from is None and run is None:  # else the other run has its own vocabulary
        fit_to_data(recipe, mixture.first)
    return with_tokens_of_words(recipe, mixture)


def _refuse_other_training(run: "Run") -> None:
    """Raise ValueError if pretraining cannot resume a run, because it was imported or fine-tuned."""
    if "imported_from" in run.facts:
        raise ValueError(f"{run.folder} was imported, and training cannot resume it: choose another `out`")
    if run.recipe.task is not None:
        raise ValueError(
            f"{run.folder} was fine-tuned for the task {run.recipe.task.name}: repeat its bytelm finetune command to "
            "resume it, or choose another `out`"
        )


def next_step(given: Mapping[str, Any], status: int) -> str:
    """Return the command that follows a finished training."""
    return command("evaluate", given["out"]) if status == 0 and is_first_process() else ""


def main(arguments: list[str]) -> int:
    """Run `bytelm pretrain` with command-line arguments."""
    base, data, source, rest, words = Recipe(), tyro.MISSING, None, arguments, "pretrain RECIPE"
    if arguments and not arguments[0].startswith("-"):
        base, rest, words = load_recipe(arguments[0]), arguments[1:], f"pretrain {arguments[0]}"
    elif (out := _named_folder("--out", arguments)) and (out / "config.toml").exists():
        run = _run(out)
        base, words = run.recipe, f"pretrain --out {run.folder}"
        data = tuple(run.facts["data"]) if len(run.sources) > 1 else (str(run.data),)
        source = Path(run.facts["init_from"]) if "init_from" in run.facts else None
    elif other := _named_folder("--init-from", arguments):
        run = _run(other)
        # The other run's device and dtype were chosen for its machine.
        base = replace(run.recipe, train=replace(run.recipe.train, device="auto", dtype="auto"))
        words = f"pretrain --init-from {run.folder}"
    elif not FLAGS & set(arguments):
        raise UsageError(
            f"name a recipe first: {', '.join(recipe_names())}, or a .toml file; or resume a run: bytelm pretrain "
            "--out RUN; or start from another run: bytelm pretrain --init-from OTHER --data DATA --out RUN"
        )

    def command(
        recipe: RecipeOptions = base,
        *,
        data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DATA ...")] = data,
        out: Path,
        init_from: Path | None = source,
        parallel: Literal["none", "ddp", "fsdp", "hsdp"] = "none",
        dry_run: DryRun = False,
    ) -> int:
        """Train the model of a recipe on a dataset; options override fields of the recipe.

        Without a recipe, `bytelm pretrain --out RUN` resumes a run with its own settings and dataset. More
        tokens extend a finished run: `bytelm pretrain --out RUN --train.tokens 4M`. A new run can take the recipe and
        the weights of another run: `bytelm pretrain --init-from OTHER --data DATA --out RUN`.

        Args:
            data: Dataset, or a mixture: 0.7=web 0.3=code. A folder, or a URI such as s3://bucket/data. Each source of a
                mixture gives its share of the tokens, over as many epochs as it needs. Weights may have any sum. All
                sources need the same tokenizer and context length. Default with --out alone: the run's own data.
            out: Folder of the run. An existing run is resumed.
            init_from: Folder of a trained or imported run. The new run starts from its weights, with a new optimizer
                and schedule; without a recipe, also with its recipe.
            parallel: How processes that torchrun starts share the work. ddp: a whole model in each. fsdp: weights and
                optimizer state sharded among them (on a GPU with a --train.micro-batch). hsdp: sharded within each node
                and replicated across nodes. Command: torchrun --nproc-per-node 2 --no-python bytelm pretrain ...
                --parallel ddp.
        """
        _refuse_two_lengths(recipe, base, out)
        return _pretrain(recipe, parse_sources(data), out, init_from, parallel, dry_run)

    return parse(command, rest, words, {} if rest is not arguments else {"Recipes": _listed_recipes()})


def _listed_recipes() -> dict[str, str]:
    """Return the descriptions of recipes for --help; those with published settings share one entry."""
    others = {name: text for name, text in recipe_descriptions().items() if name not in PUBLISHED}
    published = [name for name, each in PUBLISHED.items() if not each.without_recipe]
    return {**others, "from publications": f"{', '.join(published)} (docs/recipes.md)"}


def _named_folder(option: str, arguments: list[str]) -> Path | None:
    """Return the folder that `option` names among the command-line arguments; None if it is absent."""
    names = [value for word, value in pairwise(arguments) if word == option]
    names += [word.removeprefix(f"{option}=") for word in arguments if word.startswith(f"{option}=")]
    if not names:
        return None
    refuse_uri(option, Path(names[-1]))
    return Path(names[-1])


def _run(folder: Path) -> "Run":
    """Return the run in `folder`, whose recipe is used if none is named."""
    from pipelines.run.folder import Run  # lazy: --help with a recipe does not need it

    return Run(folder)

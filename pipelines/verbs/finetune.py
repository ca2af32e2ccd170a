"""Training: train a run for a task, from the weights of a trained run.

Examples:
    bytelm finetune runs/bert --data reviews.jsonl --out runs/reviews
    bytelm finetune runs/bert --task tokens --data ner.conll --out runs/entities
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lm.lora_config import LoraConfig
from lm.warn import warn
from pipelines.cli.arguments import DryRun, RunFolder
from pipelines.cli.parsing import parse
from pipelines.cli.process import PASSIVE_THREADS, StoppedBySignal
from pipelines.cli.shell import command
from pipelines.cli.verbs import verb
from pipelines.cli.waiting import is_first_process
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.recipes.recipe import with_fields
from pipelines.run.folder import opened
from pipelines.tasks import task_class, tasks
from pipelines.tasks.task import Task
from pipelines.verbs.evaluate import show_measured

if TYPE_CHECKING:
    from pipelines.run.folder import Run
    from pipelines.run.loaded_run import LoadedRun
    from pipelines.training.parallel import Kind

ENVIRONMENT = PASSIVE_THREADS
DEFAULT_TASK = "classes"
NO_ADAPTERS = LoraConfig()

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Examples": ("run task data test columns", "held_out truncate"),
    "Training": (
        "epochs batch_size lr seed patience lora.rank",
        "seeds lora.targets lora.alpha lora.dropout "
        "warmup weight_decay layer_decay freeze reinit dropout label_smoothing grad_clip from_scratch compare_scratch",
    ),
    "Device": ("device", "dtype micro_batch parallel"),
    "Output": ("out dry_run", "tensorboard"),
}


@verb
def finetune(
    run: RunFolder,
    *,
    task: str | Task = DEFAULT_TASK,
    data: Sequence[Path],
    test: Sequence[Path] = (),
    out: Path,
    held_out: float = 0.1,
    from_scratch: bool = False,
    compare_scratch: bool = True,
    seeds: int = 1,
    options: Mapping[str, object] = MappingProxyType({}),
    train: Annotated[Mapping[str, object], FinetuneConfig] = MappingProxyType({}),
    lora: Annotated[Mapping[str, object], LoraConfig] = MappingProxyType({}),
    parallel: Literal["none", "ddp", "fsdp", "hsdp"] = "none",
) -> "LoadedRun":
    """Train a run for `task` from the weights of `run`, in the run folder `out`, and return the trained run.

    The same call resumes an existing run. `options`, `train` and `lora` change the fields of the task, of
    FinetuneConfig and of LoraConfig:
    `finetune("my/bert", data="reviews.csv", out="my/reviews", options={"pooling": "first"}, train={"epochs": 3})`.
    evaluation.json holds the results on the held-out examples, compared with simpler predictors.

    Raises KeyboardInterrupt after Ctrl-C or SIGTERM, once a checkpoint is saved. Raises ValueError if the run does not
    fit the task, or if there is nothing to learn or to test. Raises FloatingPointError if the loss is not finite.
    """
    from pipelines.run.folder import Run
    from pipelines.run.loaded_run import LoadedRun

    chosen = task if isinstance(task, Task) else with_fields(task_class(task)(), options, "options")
    config, adapters = with_fields(chosen.settings, train, "train"), with_fields(NO_ADAPTERS, lora, "lora")
    files = _files(data, test, held_out)
    status = _finetune(
        opened(run), chosen, files, out, config, adapters, parallel, from_scratch, compare_scratch, seeds
    )
    if status:
        raise StoppedBySignal(status - 128)
    return LoadedRun(Run(out))


def _files(data: Sequence[Path], test: Sequence[Path], held_out: float) -> Any:
    if not data:
        raise ValueError("name at least one file of examples with `data`")
    from pipelines.tasks.data import ExampleFiles  # imports pyarrow, which --help does not need

    return ExampleFiles(data=tuple(data), test=tuple(test), held_out=held_out)


def _finetune(
    run: "Run",
    task: Task,
    files: Any,
    out: Path,
    config: FinetuneConfig,
    lora: LoraConfig,
    parallel: "Kind",
    from_scratch: bool,
    compare_scratch: bool,
    seeds: int,
    dry_run: bool = False,
) -> int:
    """Return 0, or 128 + the signal that stopped the training after it saved a checkpoint (0 on ranks other than 0)."""
    from pipelines.tasks.data import check_model, encode_task

    check_model(run, task, config, lora)
    _check(config, lora, parallel, from_scratch, seeds)
    work = encode_task(run, files, task, config, lora)
    for sentence in config.unfinished_schedules(work.recipe.train) if is_first_process() else ():
        warn(sentence)
    from pipelines.training import finetuning  # imports PyTorch, which takes seconds

    if dry_run:
        finetuning.print_plan(run, work, files, out, from_scratch)
        return 0
    status = finetuning.train(run, work, files, out, parallel, from_scratch)
    if status == 0 and is_first_process():
        compare_scratch = compare_scratch and "scratch" in task.compared_with
        plan, evaluation = finetuning.evaluate(run, work, out, from_scratch, compare_scratch, seeds)
        show_measured([([plan], evaluation)])
    return status


def _check(config: FinetuneConfig, lora: LoraConfig, parallel: "Kind", from_scratch: bool, seeds: int) -> None:
    """Raise ValueError for options that exclude each other."""
    if seeds < 1:
        raise ValueError(f"`seeds` is {seeds}, but must be at least 1")
    if config.patience and parallel in ("fsdp", "hsdp"):
        raise ValueError(f"`patience` needs the whole model in each process, but `parallel` is {parallel!r}: use 'ddp'")
    for name, given in (("lora.rank", lora.rank), ("freeze", config.freeze), ("reinit", config.reinit)):
        if from_scratch and given:
            raise ValueError(f"`from_scratch` and `{name}` exclude each other, but both are given: leave one out")


def next_step(given: Mapping[str, Any], status: int) -> str:
    """Return the next command, which uses the run."""
    if status or not is_first_process():
        return ""
    verb = task_class(given["task"]).used_by
    return command(verb, given["out"], *(["TEXT"] if verb == "predict" else []))


def main(arguments: list[str]) -> int:
    """Run `bytelm finetune` with command-line arguments."""
    named = [value for word, value in pairwise(arguments) if word == "--task"]
    named += [word.removeprefix("--task=") for word in arguments if word.startswith("--task=")]
    kind = task_class(named[-1] if named else DEFAULT_TASK)
    usual = kind()

    def command(
        run: RunFolder,
        *,
        task: Annotated[str, tyro.conf.arg(metavar="TASK")] = DEFAULT_TASK,
        data: tuple[Path, ...],
        test: tuple[Path, ...] = (),
        out: Path,
        held_out: float = 0.1,
        from_scratch: bool = False,
        compare_scratch: bool = True,
        seeds: int = 1,
        options: Annotated[kind, tyro.conf.arg(name="")] = usual,  # type: ignore[valid-type]  # the task's own class
        settings: Annotated[FinetuneConfig, tyro.conf.arg(name="")] = kind.settings,
        lora: LoraConfig = NO_ADAPTERS,
        parallel: Literal["none", "ddp", "fsdp", "hsdp"] = "none",
        dry_run: DryRun = False,
    ) -> int:
        """Train a run for a task, from the weights of a trained run.

        The same command resumes a run. `bytelm finetune --task TASK --help` shows the options of another task.

        Args:
            task: Task that the examples teach.
            data: Examples to train on: .jsonl, .csv or .tsv (also .gz, .xz or .zst), .parquet, .arrow, or a folder that
                the datasets library saved. Some tasks read other formats too, such as .conll and SQuAD's .json.
            test: Examples to test on. By default, a share of `data` is held out.
            out: Folder of the new run. An existing run is resumed.
            held_out: Share of the examples to hold out, chosen by hash, if there is no `test`.
            from_scratch: Start from random weights instead of the weights of the run.
            compare_scratch: Also train the same model from random weights, which doubles the time.
            seeds: Number of seeds to train with, from `seed` on. The run has the first seed; evaluation.json also gets
                the mean and the spread over all seeds.
            parallel: How processes started by torchrun share the work, as in bytelm pretrain.
        """
        files = _files(data, test, held_out)
        given = (opened(run), options, files, out, settings, lora, parallel)
        return _finetune(*given, from_scratch, compare_scratch, seeds, dry_run)

    return parse(command, arguments, "finetune", {"Tasks": tasks()})

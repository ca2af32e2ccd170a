"""The plan of an evaluation: a run, the splits of a dataset to measure it on, and the run to compare it with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from corpora.object_store import AnyPath
from lm.longer_context import ContextScaling
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.measurement import Measurement
from pipelines.evaluation.measurements import changed_options, measurements, with_changed_options
from pipelines.evaluation.windows import Objective, Stream, WindowSettings
from pipelines.files import distinct_names
from pipelines.recipes.recipe import CORRUPTIONS, Recipe
from pipelines.run.folder import Run
from pipelines.training.batch_objectives import make_objective
from pipelines.training.mixture import Dataset, check_tokenizer, open_dataset
from tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The options of `bytelm evaluate` that apply to every run (see `pipelines.verbs.evaluate`)."""

    splits: tuple[str, ...] = ("validation",)
    corpus: tuple[str, ...] = ()
    reading: Mapping[str, Any] = field(default_factory=dict)
    stride: int | None = None
    min_context: int = 1
    rotary_scaling: ContextScaling = "none"
    measuring: Mapping[str, Any] | None = field(default_factory=dict)
    """Options of the measurements; None leaves them out"""
    checkpoint: str = "auto"
    device: str = "auto"
    dtype: str = "float32"
    without: tuple[str, ...] = ()
    """Parts of the model to delete"""
    zero: bool = False
    """Whether their outputs become zero instead of their means"""

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements with their options; importing them imports torch."""
        return () if self.measuring is None else measurements(self.measuring)


@dataclass(frozen=True)
class Plan:
    """A run, the splits of a dataset to measure it on, and the run to compare it with."""

    run: Run
    dataset: Dataset | CorpusText
    training: Dataset | None
    """The dataset that baselines are fitted on; None leaves them out"""
    windows: WindowSettings
    splits: Mapping[str, Stream]
    other: "Plan | None"
    """The plan of the run to compare with: of the same streams, if it has the same tokenizer"""
    options: EvaluationOptions
    source: str = ""
    """Name of the dataset as a source of the run's mixture"""
    share: float = 1.0
    """Its share of the training tokens"""

    def entry(self, split: str) -> str:
        """Return the name of a split in evaluation.json."""
        entry = f"{split}/{self.source}" if self.source else split
        return f"{entry} without {' '.join(self.options.without)}" if self.options.without else entry


@dataclass(frozen=True)
class TaskPlan:
    """A fine-tuned run, and the examples to measure it on: those of `data`, or by default its held-out ones."""

    run: Run
    data: tuple[Path, ...]
    options: EvaluationOptions
    splits: tuple[str, ...] = ("validation",)
    source: str = ""
    share: float = 1.0

    def entry(self, split: str) -> str:
        """Return the name of a split in evaluation.json."""
        return split


def plans_of(
    run: Run, options: EvaluationOptions, data: AnyPath | None, against: Run | None
) -> list[Plan] | list[TaskPlan]:
    """Return the plan of one evaluation, or a plan for each source of the mixture that the run was trained on."""
    if options.without:
        run.require_language_model()
    if run.recipe.task and not options.corpus and not (data and (data / "dataset.json").exists()):
        return [_task_plan(run, options, data, against)]
    run.require_language_model()
    if data or options.corpus or len(run.sources) < 2:
        return [plan(run, options, data, against)]
    names, total = distinct_names(list(run.sources)), sum(run.sources.values())
    return [
        replace(plan(run, options, source, against), source=name, share=weight / total)
        for name, (source, weight) in zip(names, run.sources.items(), strict=True)
    ]


def entries_of(plans: list[Plan] | list[TaskPlan]) -> list[str]:
    """Return the names of the entries that `measure` makes: of a mixture also the means over its sources."""
    means = [mean_entry(plans[0], split) for split in plans[0].splits] if len(plans) > 1 else []
    return [*means, *(plan.entry(split) for plan in plans for split in plan.splits)]


def mean_entry(plan: "Plan | TaskPlan", split: str) -> str:
    """Return the name of the mean over the sources of a mixture, of which `plan` is one."""
    return replace(plan, source="").entry(split)


def plan(run: Run, options: EvaluationOptions, data: AnyPath | None = None, against: Run | None = None) -> Plan:
    """Return the plan of one evaluation; ValueError for options that do not fit the run."""
    for measurement in with_changed_options(options.measuring or {}):
        measurement.check(run, options)
    if options.without and run.recipe.model.architecture == "encoder-decoder":
        raise ValueError(
            f"{run.folder} is an encoder-decoder, and a part in `without` cannot name one of its stacks: leave it out"
        )
    dataset: Dataset | CorpusText
    training: Dataset | None
    splits: Mapping[str, Stream]
    if options.corpus:
        dataset, training = corpus_of(run, options.corpus, options.splits, options.reading), training_data_of(run)
        splits = {name: split.stream for name, split in dataset.splits.items()}
    else:
        dataset = training = dataset_of(run, data)
        splits = {split: dataset.split(split) for split in options.splits}
    windows = windows_of(run, dataset, options.stride, options.min_context)
    chosen = Plan(run, dataset, training, windows, splits, None, options)
    if against is None:
        return chosen
    own = replace(options, measuring=None, checkpoint="auto")
    check_comparable(against, run)
    if not has_other_tokenizer(against, run):
        theirs = replace(chosen, run=against, options=own)
    elif options.corpus or len(against.sources) == 1:
        theirs = plan(against, own)
    else:
        raise ValueError(
            f"{against.folder} has another tokenizer than {run.folder}, and was not trained on one dataset: name a "
            "text for both with `corpus`"
        )
    return replace(chosen, other=replace(theirs, training=None))


def _task_plan(run: Run, options: EvaluationOptions, data: AnyPath | None, against: Run | None) -> TaskPlan:
    if against is not None:
        raise ValueError(f"{run.folder} is fine-tuned for a task: evaluate both runs, and leave `against` out")
    of_texts = {"splits": ("validation",), "stride": None, "min_context": 1, "without": ()}
    unfit = [name for name, default in of_texts.items() if getattr(options, name) != default]
    if run.recipe.model != run.trained_recipe.model:  # results of a task do not record the context
        unfit.append("context")
    if named := [f"`{name}`" for name in (*unfit, *changed_options(options.measuring or {}))]:
        raise ValueError(f"{run.folder} is fine-tuned for a task: leave {' and '.join(named)} out")
    if data is not None and not isinstance(data, Path):
        raise ValueError(f"`data` is {data}: give a local file of examples")
    if data is None and not run.facts["data"]:
        raise ValueError(f"{run.folder} was imported and has no examples: name a file to measure it on with `data`")
    return TaskPlan(run, () if data is None else (data,), options)


def objective_of(run: Run, length: int, tokenizer: Tokenizer) -> Objective:
    """Return the objective of a run."""
    return make_objective(run.recipe.objective, length, tokenizer, run.recipe.model.document_mask, run.facts)


def dataset_of(run: Run, data: AnyPath | None) -> Dataset:
    """Return the dataset in `data`; by default the dataset that the run was trained on.

    Raises ValueError if the run has no dataset any more, or if the dataset was built with another tokenizer.
    """
    dataset = open_dataset(data or _own_dataset(run), run.recipe.objective)
    check_tokenizer(dataset, run)
    return dataset


def _own_dataset(run: Run) -> AnyPath:
    if not run.sources:
        raise ValueError(f"{run.folder} was imported and has no dataset: name one to measure it on with `data`")
    if len(run.sources) > 1:
        named = ", ".join(map(str, run.sources))
        raise ValueError(f"{run.folder} was trained on several datasets: name one with `data` ({named})")
    [data] = run.sources
    if not data.exists():
        raise ValueError(f"the dataset of the run, {data}, does not exist any more: name another with `data`")
    return data


def corpus_of(run: Run, specs: Sequence[str], splits: Sequence[str], reading: Mapping[str, Any]) -> CorpusText:
    """Return a corpus encoded for a run; ValueError for a run on pairs. `reading` are options of `open_corpus`."""
    if run.recipe.objective == "sequence-pairs":
        raise ValueError(f"{run.folder} was trained on pairs, and `corpus` names a text: give a dataset with `data`")
    return CorpusText(specs, run, window_of(run.recipe), splits, reading)


def training_data_of(run: Run) -> Dataset | None:
    """Return the dataset that a run was trained on, None if it does not exist any more."""
    return dataset_of(run, None) if len(run.sources) == 1 and run.data.exists() else None


def window_of(recipe: Recipe) -> int:
    """Return the number of tokens of a stream in one input of the model of a recipe."""
    return recipe.model.context_length - recipe.edges


def windows_of(run: Run, dataset: Dataset | CorpusText, stride: int | None, min_context: int) -> WindowSettings:
    """Return the windows of a run; ValueError for settings that do not fit the run or the dataset."""
    window, objective = window_of(run.recipe), run.recipe.objective
    if objective != "next-token" and (stride is not None or min_context != 1):
        raise ValueError(
            f"{run.folder} was trained on {objective}: it reads whole blocks or pairs, so `stride` and `min_context` "
            "do not apply"
        )
    whole_blocks = objective in ("masked-token", *CORRUPTIONS)
    if whole_blocks and isinstance(dataset, TokenDataset) and dataset.context_length != window:
        raise ValueError(
            f"{run.folder} reads blocks of {window} tokens, but {dataset.place} has blocks of "
            f"{dataset.context_length}: build a dataset with `context_length={window}`"
        )
    stride = window if stride is None else stride
    for name, value in (("`stride`", stride), ("`min_context`", min_context)):
        if not 1 <= value <= window:
            raise ValueError(f"{name} is {value}, but must be from 1 to the window of {window} tokens")
    return WindowSettings(window, stride, min_context)


def check_comparable(other: Run, this: Run) -> None:
    """Raise ValueError unless two runs can be compared.

    With one tokenizer, both must predict the same positions from the same context. With different tokenizers, both must
    have bits per byte: of the text, or of masked text.
    """
    if has_other_tokenizer(other, this):
        objectives = [run.recipe.objective for run in (other, this)]
        if objectives[0] != objectives[1] or objectives[0] not in ("next-token", "masked-token"):
            raise ValueError(
                f"{other.folder} and {this.folder} have different tokenizers, so they are compared per byte, and both "
                f"must have the objective next-token or both masked-token; their objectives are {objectives[0]} and "
                f"{objectives[1]}"
            )
        return
    theirs, ours = ((r.recipe.objective, r.recipe.model.context_length) for r in (other, this))
    if theirs != ours:
        raise ValueError(
            f"{other.folder} and {this.folder} do not predict the same positions: "
            f"{theirs[0]} with a context of {theirs[1]}, and {ours[0]} with {ours[1]}"
        )
    masks = [r.recipe.model.document_mask for r in (other, this)]
    if masks[0] != masks[1]:
        with_mask, without = (other, this) if masks[0] else (this, other)
        raise ValueError(
            f"{with_mask.folder} has model.document_mask and {without.folder} has not: they do not "
            "predict from the same context; evaluate them separately"
        )


def has_other_tokenizer(other: Run, this: Run) -> bool:
    """Return whether two runs have different tokenizers."""
    return other.tokenizer().fingerprint != this.tokenizer().fingerprint

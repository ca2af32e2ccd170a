"""The plan of an evaluation: a run, the splits of a dataset to measure it on, and the run to compare it with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corpora.object_store import AnyPath
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.entropy_calibration import check_entropy_calibration
from pipelines.evaluation.inputs import (
    check_comparable,
    check_text_is_kept,
    corpus_of,
    dataset_of,
    has_other_tokenizer,
    training_data_of,
    training_text_of,
    windows_of,
)
from pipelines.evaluation.memorisation import check_memorisation
from pipelines.evaluation.windows import Stream, WindowSettings
from pipelines.files import distinct_names
from pipelines.run.folder import Run
from pipelines.training.mixture import Dataset


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The options of `bytelm evaluate` that apply to every run (see `pipelines.verbs.evaluate`)."""

    splits: tuple[str, ...] = ("validation",)
    corpus: tuple[str, ...] = ()
    reading: Mapping[str, Any] = field(default_factory=dict)
    unit: str = "byte"
    stride: int | None = None
    min_context: int = 1
    beams: int = 4
    length_penalty: float = 1.0
    compressors: bool = False
    memorisation: bool = False
    memory: int = 2_000_000_000
    entropy_calibration: int = 0
    checkpoint: str = "newest"
    device: str = "auto"
    dtype: str = "float32"


@dataclass(frozen=True)
class Plan:
    """A run, the splits of a dataset to measure it on, and the run to compare it with."""

    run: Run
    dataset: Dataset | CorpusText
    training: Dataset | None
    """The dataset that baselines are fitted on; None leaves them out"""
    windows: WindowSettings
    splits: Mapping[str, Stream]
    other: "Run | Plan | None"
    """The run to compare with: a run with the same tokenizer, or the plan of a run with another one"""
    options: EvaluationOptions
    memorised: TokenDataset | None = None
    """The dataset whose training split is searched for text of the splits"""
    source: str = ""
    """Name of the dataset as a source of the run's mixture"""
    share: float = 1.0
    """Its share of the training tokens"""

    @property
    def other_run(self) -> Run | None:
        """The run to compare with."""
        return self.other.run if isinstance(self.other, Plan) else self.other

    def entry(self, split: str) -> str:
        """Return the name of a split in evaluation.json."""
        return f"{split}/{self.source}" if self.source else split


def plans_of(folder: Path, options: EvaluationOptions, data: AnyPath | None, against: Path | None) -> list[Plan]:
    """Return the plan of one evaluation, or a plan for each source of the mixture that the run was trained on."""
    run = Run(folder)
    if data or options.corpus or len(run.sources) < 2:
        return [plan(folder, options, data, against)]
    names, total = distinct_names(list(run.sources)), sum(run.sources.values())
    return [
        replace(plan(folder, options, source, against), source=name, share=weight / total)
        for name, (source, weight) in zip(names, run.sources.items(), strict=True)
    ]


def entries_of(plans: Sequence[Plan]) -> list[str]:
    """Return the names of the entries that `measure` makes: of a mixture also the means over its sources."""
    means = plans[0].splits if len(plans) > 1 else ()
    return [*means, *(plan.entry(split) for plan in plans for split in plan.splits)]


def plan(folder: Path, options: EvaluationOptions, data: AnyPath | None = None, against: Path | None = None) -> Plan:
    """Return the plan of one evaluation; ValueError for options that do not fit the run in `folder`."""
    run = Run(folder)
    if options.compressors and run.recipe.objective == "sequence-pairs":
        raise ValueError(f"{folder} was trained on pairs, and --compressors needs a text: leave it out")
    _check_unit(run, options)
    check_text_is_kept(run, options.compressors, options.unit)
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
    other: Run | Plan | None = None
    if against:
        other = Run(against)
        check_comparable(other, run)
        if has_other_tokenizer(other, run):
            other = plan(against, replace(options, compressors=False, memorisation=False, entropy_calibration=0))
            other = replace(other, training=None)
    check_entropy_calibration(options.entropy_calibration)
    memorised = None
    if options.memorisation:
        check_memorisation(options.memory)
        memorised = training_text_of(run, dataset)
    return Plan(run, dataset, training, windows, splits, other, options, memorised)


def _check_unit(run: Run, options: EvaluationOptions) -> None:
    """Raise ValueError for options that do not fit --corpus or --unit word."""
    if options.corpus and options.compressors:
        raise ValueError("--compressors needs a training split: name a dataset with --data instead of --corpus")
    if options.unit == "byte":
        return
    if not options.corpus:
        raise ValueError("--unit word counts the words of a corpus: name one with --corpus")
    if run.recipe.objective != "next-token":
        objective = run.recipe.objective
        raise ValueError(f"{run.folder} was trained on {objective}, which has no perplexity per word: leave --unit out")
    if options.min_context != 1:
        raise ValueError("--unit word needs a score for every token: leave --min-context out")

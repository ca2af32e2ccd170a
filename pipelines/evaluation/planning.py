"""The plan of an evaluation: a run, the splits of a dataset to measure it on, and the run to compare it with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corpora.object_store import AnyPath
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.inputs import (
    check_comparable,
    corpus_of,
    dataset_of,
    has_other_tokenizer,
    training_data_of,
    windows_of,
)
from pipelines.evaluation.measurement import Measurement
from pipelines.evaluation.measurements import measurements
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
    stride: int | None = None
    min_context: int = 1
    measurements: tuple[Measurement, ...] = field(default_factory=measurements)
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
    for measurement in options.measurements:
        measurement.check(run, options)
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
            other = plan(against, replace(options, measurements=()))
            other = replace(other, training=None)
    return Plan(run, dataset, training, windows, splits, other, options)

"""The evaluations of a run, and evaluation.json, which keeps them. A new one replaces an earlier one of equal settings.

`splits` of evaluation.json has the newest evaluation of each split: its results, field by field. For each split,
`measured` records the date, hardware, checkpoint and data. `earlier` lists the other evaluations as {"split",
"numbers", "measured"}, the newest first. The other fields (`run`, `checkpoint`, `data`, ...) describe the newest one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from lm.values import read_as
from lm.warn import warn
from pipelines.evaluation.measurement import Result, with_fields_of
from pipelines.evaluation.measurements.predictions import Numbers
from pipelines.evaluation.measurements.settings import Settings
from pipelines.evaluation.numbers import headline, keys, measured_results, numbers, overflows, task_results
from pipelines.files import read_json, write_json

if TYPE_CHECKING:
    from pipelines.run.folder import Run

R = TypeVar("R", bound=Result)
# The results that every evaluation has.
ALWAYS = (Numbers, Settings)
# One evaluation replaces another if these fields and all settings agree wherever both have them.
SOURCES = ("checkpoint", "checkpoint_sha256", "dataset_fingerprint", "tokenizer_fingerprint", "against")
SPLITS = ("train", "validation", "test")  # of a dataset
# Fields of evaluation.json about the newest evaluation.
NEWEST = ("checkpoint", "data", "dataset_fingerprint", "tokenizer_fingerprint", "against")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How a split was measured."""

    checkpoint: str
    checkpoint_sha256: str
    data: str
    """Folder or URI of the dataset, or the names of the corpora"""
    dataset_fingerprint: str
    tokenizer_fingerprint: str
    against: str | None
    """Folder of the run compared with"""
    date: str
    version: str
    python: str
    torch: str
    hardware: str
    seconds: float


@dataclass(frozen=True, repr=False)
class SplitEvaluation:
    """The evaluation of one split. Its attributes are the numbers and results of evaluation.json.

    `evaluation.perplexity` is a number, None if it was not measured, and `evaluation.difference` a result.
    """

    split: str
    results: tuple[Result, ...]
    measured: Measured

    @classmethod
    def from_json(cls, split: str, entry: Mapping[str, Any], measured: Measured) -> "SplitEvaluation":
        """Return the evaluation in an entry of evaluation.json; ValueError if a result is damaged or missing."""
        read: list[Result | None] = []
        for kind in task_results(entry["task"]) if "task" in entry else measured_results():
            if kind.key:
                read.append(kind.from_json(entry[kind.key]) if kind.key in entry else None)
            elif kind in ALWAYS or any(entry.get(name) is not None for name in kind.__dataclass_fields__):
                read.append(kind.from_json(entry))
        return cls(split, tuple(result for result in read if result is not None), measured)

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the split. `overflow` names perplexities that are null because no float holds them."""
        entry = {key: value for result in self.results for key, value in result.entry().items()}
        return entry | ({"overflow": too_large} if (too_large := overflows(self)) else {})

    def find(self, kind: type[R]) -> R | None:
        """Return the result of a kind, None if it was not measured."""
        return next((result for result in self.results if isinstance(result, kind)), None)

    @cached_property
    def entries(self) -> dict[str, Any]:
        """Numbers by name, and results by key."""
        values: dict[str, Any] = {}
        for result in self.results:
            values |= {result.key: result} if result.key else {f.name: getattr(result, f.name) for f in fields(result)}
        return values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in keys():
            near = get_close_matches(name, keys(), 1)
            meant = f". Did you mean {near[0]!r}?" if near else "; dir() lists what it has"
            raise AttributeError(f"an evaluation has no number or result {name!r}{meant}")
        return self.entries.get(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.entries]

    def __repr__(self) -> str:
        return f"{self.split}: {headline(self)}"

    @property
    def text(self) -> tuple[str, str]:
        """The text that was scored: the split and the fingerprint of its dataset."""
        return self.split, self.measured.dataset_fingerprint

    def text_name(self, own: str) -> str:
        """Return the name of the text: its split, and the folder of a dataset other than that with fingerprint `own`.

        A corpus and a source of a mixture have an entry with their own name.
        """
        if self.split not in SPLITS or not own or self.measured.dataset_fingerprint == own:
            return self.split
        return f"{self.split} of {'/'.join(PurePosixPath(self.measured.data).parts[-2:])}"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings and sources that it has."""
        chosen = {key: self.entries.get(key) for key, number in numbers().items() if number.setting}
        chosen |= {key: getattr(self.measured, key) for key in SOURCES}
        return {key: value for key, value in chosen.items() if value is not None}

    def replaces(self, other: "SplitEvaluation") -> bool:
        """Whether both measure the same: every setting that both record agrees."""
        ours, theirs = self.settings, other.settings
        return self.split == other.split and all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())

    def completed_by(self, old: "SplitEvaluation") -> "SplitEvaluation":
        """Return the evaluation; numbers that it lacks, such as compressor sizes, come from the `old` one."""
        kept = {type(result): result for result in old.results}
        for result in self.results:
            before = kept.get(type(result))
            kept[type(result)] = result if before is None else result.completed_by(before)
        return SplitEvaluation(self.split, tuple(kept.values()), with_fields_of(self.measured, old.measured))


@dataclass(frozen=True, repr=False)
class Evaluation:
    """All evaluations of a run. Its attributes are the splits: `evaluation.validation.bits_per_byte`."""

    run: str
    splits: dict[str, SplitEvaluation]
    """The newest evaluation of each split"""
    earlier: tuple[SplitEvaluation, ...] = ()
    """Evaluations with other settings, the newest first"""
    asked: tuple[str, ...] = field(default=(), compare=False)
    """Splits measured by the call that returned this; empty if it was read from a file"""

    @classmethod
    def read(cls, folder: Path) -> "Evaluation | None":
        """Return the content of a run's evaluation.json; None before bytelm evaluate, ValueError if it is damaged."""
        path = folder / "evaluation.json"
        if not path.exists():
            return None
        remedy = f"run bytelm evaluate {folder} again"
        contents = read_json(path, remedy)
        try:
            return cls.from_json(contents)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}): {remedy}") from None

    @classmethod
    def from_json(cls, contents: Any) -> "Evaluation":
        """Return the evaluations in the contents of an evaluation.json; ValueError if they are damaged."""
        file = read_as(_File, contents)
        if file.measured.keys() != file.splits.keys():
            raise ValueError("splits and measured name different splits")
        newest = {name: SplitEvaluation.from_json(name, e, file.measured[name]) for name, e in file.splits.items()}
        earlier = (SplitEvaluation.from_json(one.split, one.numbers, one.measured) for one in file.earlier)
        return cls(file.run, newest, tuple(earlier))

    def to_json(self) -> dict[str, Any]:
        """Return the contents of evaluation.json."""
        newest = next(iter(self.splits.values())).measured
        contents = {"run": self.run, **{key: getattr(newest, key) for key in NEWEST}}
        contents["splits"] = {name: split.to_json() for name, split in self.splits.items()}
        contents["measured"] = {name: asdict(split.measured) for name, split in self.splits.items()}
        earlier = [
            {"split": one.split, "numbers": one.to_json(), "measured": asdict(one.measured)} for one in self.earlier
        ]
        return contents | ({"earlier": earlier} if earlier else {})

    @property
    def all(self) -> list[SplitEvaluation]:
        """The newest evaluation of each split, then the earlier ones."""
        return [*self.splits.values(), *self.earlier]

    def adding(self, added: list[SplitEvaluation]) -> "Evaluation":
        """Return the evaluations with new ones `added`. Numbers that a new one lacks come from the one it replaces."""
        newest, earlier = dict(self.splits), list(self.earlier)
        for new in reversed(added):
            known = [*([newest.pop(new.split)] if new.split in newest else []), *earlier]
            same = next((old for old in known if new.replaces(old)), None)
            earlier = [old for old in known if old is not same]
            newest = {new.split: new.completed_by(same) if same else new, **newest}
        return replace(self, splits=newest, earlier=tuple(earlier), asked=tuple(new.split for new in added))

    def main(self, own: str) -> SplitEvaluation | None:
        """Return the evaluation that speaks for a run that was trained on the dataset with the fingerprint `own`.

        It is the newest one of the validation split of this dataset. Without one it is the newest one of this dataset,
        of another validation split, or of any text. One with the context of the training goes before all others.
        """

        def rank(evaluation: SplitEvaluation) -> tuple[bool, bool, bool]:
            other_length = evaluation.trained_length is not None
            return other_length, evaluation.measured.dataset_fingerprint != own, evaluation.split != "validation"

        return min(self.all, key=rank, default=None)

    def __getattr__(self, name: str) -> SplitEvaluation:
        if name.startswith("_") or name not in self.splits:
            known = "" if name.startswith("_") else f"; it has {', '.join(self.splits)}"
            raise AttributeError(f"the evaluation has no split {name!r}{known}")
        return self.splits[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.splits]

    def __repr__(self) -> str:
        """Return a line for each split that was asked for, and below a line for every other evaluation of the run."""
        asked = [self.splits[name] for name in self.asked]
        others = [f"  {one!r} ({one.measured.data})" for one in self.all if one not in asked]
        lines = [f"evaluation of {self.run}", *(f"  {split!r}" for split in asked)]
        return "\n".join([*lines, *(["also in evaluation.json"] if asked and others else []), *others])


def add_to_file(run: "Run", added: list[SplitEvaluation]) -> Evaluation:
    """Add evaluations of splits to the run's evaluation.json; return all that it holds. A damaged file is renamed."""
    path = run.results / "evaluation.json"
    try:
        earlier = Evaluation.read(run.results)
    except ValueError:
        aside = path.replace(path.with_name("evaluation.json.damaged"))
        warn(f"{path} is damaged: renamed to {aside.name}, and a new file begun")
        earlier = None
    evaluation = (earlier or Evaluation(run.name, {})).adding(added)
    write_json(path, evaluation.to_json())
    return evaluation


@dataclass(frozen=True)
class _Earlier:
    split: str
    numbers: dict[str, Any]
    measured: Measured


@dataclass(frozen=True)
class _File:
    run: str
    splits: dict[str, dict[str, Any]]
    measured: dict[str, Measured]
    earlier: tuple[_Earlier, ...] = ()

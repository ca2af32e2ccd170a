"""evaluation.json: every evaluation of a run. A new one replaces only an earlier one with the same settings.

`splits` has the newest evaluation of each split. For each split, `measured` records the date, hardware, checkpoint and
data of that evaluation. `earlier` lists the other evaluations as {"split", "numbers", "measured"}, the newest first.
The other fields (`run`, `checkpoint`, `data`, ...) describe the newest evaluation.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lm.values import read_as
from pipelines.evaluation.measurement import Result
from pipelines.evaluation.numbers import results_of
from pipelines.files import read_json

# One evaluation replaces another if these fields agree wherever both have them.
SETTINGS = ("window", "stride", "min_context", "document_mask", "dtype", "beams", "length_penalty")
SOURCES = ("checkpoint", "checkpoint_sha256", "dataset_fingerprint", "tokenizer_fingerprint", "against")
# The newest evaluation's, beside `splits`.
NEWEST = ("checkpoint", "data", "dataset_fingerprint", "tokenizer_fingerprint", "against")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one split: its entries in `splits` and `measured`."""

    split: str
    numbers: dict[str, Any]
    measured: dict[str, Any]

    @cached_property
    def results(self) -> list[Result]:
        """The results in `numbers`."""
        return results_of(self.numbers)

    @property
    def text(self) -> tuple[str, Any]:
        """The text that was scored: the split and the fingerprint of its dataset."""
        return self.split, self.measured.get("dataset_fingerprint")

    def replaces(self, other: "Evaluation") -> bool:
        """Whether both measure the same: every setting that both record agrees."""
        ours, theirs = (_without_none({**each.numbers, **each.measured}) for each in (self, other))
        shared = [key for key in (*SETTINGS, *SOURCES) if key in ours and key in theirs]
        return self.split == other.split and all(ours[key] == theirs[key] for key in shared)


def evaluations_of(contents: dict[str, Any] | None) -> list[Evaluation]:
    """Return all evaluations in the contents of an evaluation.json: the newest of each split, then the earlier ones."""
    if not contents:
        return []
    measured = contents["measured"]
    newest = [Evaluation(split, numbers, measured[split]) for split, numbers in contents["splits"].items()]
    return [*newest, *(Evaluation(**each) for each in contents.get("earlier", []))]


def with_evaluations(contents: dict[str, Any] | None, run: str, added: list[Evaluation]) -> dict[str, Any]:
    """Return the contents of evaluation.json with the evaluations `added`.

    A replaced evaluation passes on the numbers that its successor lacks, such as compressor sizes.
    """
    known = evaluations_of(contents)
    count = len(contents["splits"]) if contents else 0
    newest, earlier = {each.split: each for each in known[:count]}, known[count:]
    for new in reversed(added):
        candidates = [each for each in (newest.pop(new.split, None), *earlier) if each is not None]
        same = next((each for each in candidates if new.replaces(each)), None)
        if same is not None:
            candidates.remove(same)
            new = Evaluation(new.split, _update(same.numbers, new.numbers), _update(same.measured, new.measured))
        newest, earlier = {new.split: new, **newest}, candidates
    result = {"run": run, **{key: added[0].measured.get(key) for key in NEWEST}}
    result["splits"] = {split: each.numbers for split, each in newest.items()}
    result["measured"] = {split: each.measured for split, each in newest.items()}
    return result | ({"earlier": [asdict(each) for each in earlier]} if earlier else {})


def read_evaluation(folder: Path) -> dict[str, Any] | None:
    """Return the content of a run's evaluation.json; None before bytelm evaluate, and ValueError if it is damaged."""
    path = folder / "evaluation.json"
    if not path.exists():
        return None
    remedy = f"run bytelm evaluate {folder} again"
    contents: dict[str, Any] = read_json(path, remedy)
    try:
        _check(contents)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): {remedy}") from None
    return contents


def _check(contents: Any) -> None:
    """Raise ValueError unless `contents` has the structure of an evaluation.json."""
    known = read_as(_File, contents)
    if known.measured.keys() != known.splits.keys():
        raise ValueError("splits and measured name different splits")
    for entry in (*known.splits.values(), *(each.numbers for each in known.earlier)):
        results_of(entry)


@dataclass(frozen=True)
class _File:
    splits: dict[str, dict[str, Any]]
    measured: dict[str, dict[str, Any]]
    earlier: tuple[Evaluation, ...] = ()


def _update(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return old | {key: value for key, value in new.items() if value is not None or key not in old}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}

"""evaluation.json: every evaluation of a run. A new one replaces only an earlier one with the same settings.

`splits` has the newest evaluation of each split. For each split, `measured` records the date, hardware, checkpoint and
data of that evaluation. `earlier` lists the other evaluations as {"split", "numbers", "measured"}, the newest first.
The other fields (`run`, `checkpoint`, `data`, ...) describe the newest evaluation.
"""

from dataclasses import asdict, dataclass
from typing import Any

from pipelines.evaluation.numbers import LOGARITHMS, NUMBERS

# One evaluation replaces another if these fields agree wherever both have them.
SETTINGS = ("window", "stride", "min_context", "document_mask", "dtype", "beams", "length_penalty")
SOURCES = ("checkpoint", "checkpoint_sha256", "dataset_fingerprint", "tokenizer_fingerprint", "against")
_ALWAYS_THERE = ("tokens", "cross_entropy_bits", "accuracy")
# Numbers of a group of tokens that are None if the bytes of its tokens are unknown.
_PER_BYTE = ("bytes", "bits_per_byte", "bits_per_original_byte")
# Version 0.1 recorded these once for all splits, and no date.
COMMON = ("checkpoint", "data", "dataset_fingerprint", "tokenizer_fingerprint", "against")


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of one split: its entries in `splits` and `measured`."""

    split: str
    numbers: dict[str, Any]
    measured: dict[str, Any]

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
    common = {key: contents.get(key) for key in COMMON}
    measured = contents.get("measured", {})
    newest = [Evaluation(split, numbers, measured.get(split, common)) for split, numbers in contents["splits"].items()]
    return [*newest, *(Evaluation(**each) for each in contents.get("earlier", []))]


def with_evaluations(contents: dict[str, Any] | None, run: str, added: list[Evaluation]) -> dict[str, Any]:
    """Return the contents of evaluation.json with the evaluations `added`.

    A replaced evaluation passes on the numbers that its successor lacks, such as those of compressors.
    """
    known = evaluations_of(contents)
    count = len(contents["splits"]) if contents else 0
    newest, earlier = {each.split: each for each in known[:count]}, known[count:]
    for new in reversed(added):
        candidates = [each for each in (newest.pop(new.split, None), *earlier) if each is not None]
        same = next((each for each in candidates if new.replaces(each)), None)
        if same is not None:
            candidates.remove(same)
            new = Evaluation(new.split, _updated(same.numbers, new.numbers), _updated(same.measured, new.measured))
        newest, earlier = {new.split: new, **newest}, candidates
    result = {"run": run, **{key: added[0].measured.get(key) for key in COMMON}}
    result["splits"] = {split: each.numbers for split, each in newest.items()}
    result["measured"] = {split: each.measured for split, each in newest.items()}
    return result | ({"earlier": [asdict(each) for each in earlier]} if earlier else {})


def is_whole(contents: dict[str, Any]) -> bool:
    """Whether `contents` has the structure of an evaluation.json."""
    splits, measured, earlier = (contents.get(key) for key in ("splits", "measured", "earlier"))
    return (
        isinstance(splits, dict)
        and _is_table_of_tables(splits)
        and all(map(_are_numbers, splits.values()))
        and (measured is None or _is_table_of_tables(measured))
        and (earlier is None or (isinstance(earlier, list) and all(map(_is_entry, earlier))))
    )


def _is_entry(value: Any) -> bool:
    if not (isinstance(value, dict) and value.keys() == {"split", "numbers", "measured"}):
        return False
    tables = all(isinstance(value[key], dict) for key in ("numbers", "measured"))
    return isinstance(value["split"], str) and tables and _are_numbers(value["numbers"])


def _are_numbers(numbers: dict[str, Any]) -> bool:
    """Whether `numbers` can be the entry of a split: it has the fields that a report needs, of the right types."""
    curves, compressors = numbers.get("curves", {}), numbers.get("compressors", {})
    if not (isinstance(curves, dict) and _is_table_of_tables(compressors)):
        return False
    return (
        all(_is_number(numbers.get(key)) for key in _ALWAYS_THERE)
        and all(
            value is None or key == "dtype" or _is_number(value) for key, value in numbers.items() if key in NUMBERS
        )
        and all(_is_number(bits.get(key)) for bits in compressors.values() for key in ("alone", "given_train"))
        and all(isinstance(value, list) for value in curves.values())
        and all(value is None or _is_number(value) for value in curves.get("loss_by_position", []))
        and all(isinstance(each, dict) and _is_number(each.get("count")) for each in curves.get("reliability", []))
        and _are_intervals(numbers.get("intervals"))
        and _is_difference(numbers.get("difference"))
        and _is_breakdown(numbers.get("breakdown", {}))
        and _is_memorisation(numbers.get("memorisation"))
        and _is_calibration(numbers.get("entropy_calibration"))
    )


def _are_intervals(value: Any) -> bool:
    """Whether `value` is None, or has [low, high] or None for each number, and describes the samples.

    The bounds of a perplexity can be None if the interval of its logarithm is known.
    """
    if value is None:
        return True
    if not isinstance(value, dict) or value.get("resampled") not in ("documents", "blocks"):
        return False
    counts = ("documents",) if value["resampled"] == "documents" else ("documents", "contexts", "contexts_per_block")
    return all(isinstance(value.get(key), int) for key in counts) and all(
        _is_pair(value[key]) or (_is_pair(value[key], None) and _is_pair(value.get(LOGARITHMS.get(key, ""))))
        for key in value.keys() & NUMBERS.keys()
        if value[key] is not None
    )


def _is_pair(value: Any, *others: None) -> bool:
    """Whether `value` is a list of two numbers; `others` are values that may stand for a number."""
    return isinstance(value, list) and len(value) == 2 and all(each in others or _is_number(each) for each in value)


def _is_difference(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and isinstance(value.get("sentence"), str)
        and isinstance(value.get("divergence", ""), str)
        and isinstance(value.get("reservations", []), list)
        and all(isinstance(each, str) for each in value.get("reservations", []))
    )


def _is_breakdown(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(rows, list) and all(map(_is_row, rows)) for rows in value.values()
    )


def _is_memorisation(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict)
        and isinstance(value.get("training"), str)
        and isinstance(value.get("bytes"), int)
        and _is_number(value.get("sampled"))
        and isinstance(value.get("curve"), list)
        and all(map(_is_match, value["curve"]))
    )


def _is_match(value: Any) -> bool:
    """Whether `value` is a row of the curve of an entry `memorisation`."""
    if not isinstance(value, dict) or not all(_is_number(value.get(key)) for key in ("length", "begin", "inside")):
        return False
    loss = value.get("loss")
    return loss is None or (isinstance(loss, dict) and all(row is None or _is_group(row) for row in loss.values()))


def _is_calibration(value: Any) -> bool:
    if value is None:
        return True
    rows = value.get("positions") if isinstance(value, dict) else 0
    return rows is None or (isinstance(rows, list) and all(map(_is_position, rows)))


def _is_position(value: Any) -> bool:
    """Whether `value` is a row of an entropy calibration: [mean, low, high] of each of its columns."""
    return (
        isinstance(value, dict)
        and all(_is_number(value.get(key)) for key in ("first", "last"))
        and all(
            isinstance(value.get(key), list) and len(value[key]) == 3 and all(map(_is_number, value[key]))
            for key in ("generated", "validation", "difference")
        )
    )


def _is_row(value: Any) -> bool:
    """Whether `value` is a row of a breakdown."""
    return _is_group(value) and isinstance(value.get("name"), str) and isinstance(value.get("text", ""), str)


def _is_group(value: Any) -> bool:
    """Whether `value` has the size and the loss of a group of tokens."""
    return (
        isinstance(value, dict)
        and all(_is_number(value.get(key)) for key in ("tokens", "bits_per_token", "share"))
        and all(value.get(key) is None or _is_number(value[key]) for key in _PER_BYTE)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_table_of_tables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())


def _updated(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return old | {key: value for key, value in new.items() if value is not None or key not in old}


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}

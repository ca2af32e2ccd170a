"""The data of a run: one dataset, or a mixture of datasets with weights, such as 0.7=wiki 0.3=code.

A dataset is a folder or a URI such as s3://bucket/wiki. config.toml has a single one as text, and a mixture as a list:
data = ["7=/data/wiki", "3=/data/code"].
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.files import place

if TYPE_CHECKING:
    from corpora.object_store import AnyPath

Sources = dict["AnyPath", int]
"""Datasets and their weights: integers without a common factor, so 1 for a single dataset."""

MOST_PARTS = 100_000  # largest sum of integer weights, the number of blocks after which the sources repeat


def sources_of(data: "str | AnyPath | Mapping[Any, float]") -> Sources:
    """Return a dataset, or datasets with weights, as `Sources`.

    Weights may have any sum. Raises ValueError for no dataset, a weight that is not above 0, and a folder named twice.
    """
    if not isinstance(data, Mapping):
        return {place(data): 1}
    if not data:
        raise ValueError("`data` names no dataset: give a folder, or a mixture such as {'wiki': 0.7, 'code': 0.3}")
    return _in_lowest_terms([(place(folder), _exact(str(weight), folder)) for folder, weight in data.items()])


def parse_sources(words: Sequence[str]) -> Sources:
    """Return the sources in the words of the command line: one folder, or WEIGHT=FOLDER for each source."""
    if not words:
        raise ValueError("`data` names no dataset: give a folder, or a mixture such as 0.7=wiki 0.3=code")
    # The query of a URI may contain =.
    before = words[0].partition("=")[0]
    if len(words) == 1 and (before == words[0] or "://" in before or Path(words[0]).exists()):
        return {place(words[0]): 1}
    weighted = []
    for word in words:
        weight, _, folder = word.partition("=")
        if not folder:
            raise ValueError(
                f"`data='{word}'`: each source of a mixture needs a weight and a folder, such as 0.5={word}"
            )
        weighted.append((place(folder), _exact(weight, folder)))
    return _in_lowest_terms(weighted)


def spell(sources: Sources) -> str | list[str]:
    """Return sources as in config.toml, with absolute paths."""
    words = [f"{weight}={folder.resolve()}" for folder, weight in sources.items()]
    return words if len(words) > 1 else words[0].removeprefix("1=")


def _exact(weight: str, folder: "str | AnyPath") -> Fraction:
    """Return a weight as an exact fraction; ValueError unless it is a number above 0."""
    try:
        exact = Decimal(weight)
    except InvalidOperation:
        exact = Decimal("nan")
    if not exact.is_finite():
        raise ValueError(f"{weight[:40]!r}, the weight of {folder}, is not a number: give a weight such as 0.3")
    if exact <= 0:
        raise ValueError(f"the weight of {folder} is {weight[:40]}, but must be above 0: leave out an unused source")
    if not 1e-12 < exact < 1e12:
        raise ValueError(f"the weight of {folder} is {weight[:40]}: give weights from 1e-12 to 1e12")
    return Fraction(exact)


def _in_lowest_terms(weighted: "Sequence[tuple[AnyPath, Fraction]]") -> Sources:
    folders = [folder.resolve() for folder, _ in weighted]
    for number, (folder, _) in enumerate(weighted):
        if folders[number] in folders[:number]:
            raise ValueError(f"{folder} is named twice: name it once, with the sum of its weights")
    denominator = math.lcm(*(weight.denominator for _, weight in weighted))
    numerators = [int(weight * denominator) for _, weight in weighted]
    divisor, total = math.gcd(*numerators), sum(numerators)
    if total // divisor > MOST_PARTS:
        rounded = " ".join(
            f"{max(float(weight * denominator / total), 1e-4):.4f}={folder}" for folder, weight in weighted
        )
        raise ValueError(
            f"the weights have too many digits: in whole numbers they add up to {total // divisor:,}, and at most "
            f"{MOST_PARTS:,} is allowed: round them, such as {rounded}"
        )
    return {folder: number // divisor for (folder, _), number in zip(weighted, numerators, strict=True)}

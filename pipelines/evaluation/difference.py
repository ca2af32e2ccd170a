"""Compute the paired difference of two runs on the same documents, its 95 % interval, and a sentence about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lm.metrics.intervals import block_length, interval
from lm.metrics.predictions import bits
from pipelines.evaluation.confidence import Sampling, draw
from pipelines.evaluation.core import FEWEST_CONTEXTS, FEWEST_DOCUMENTS
from pipelines.evaluation.documents import Key, StreamText
from pipelines.evaluation.token_scores import TokenScores
from pipelines.run.folder import Run

NO_DIVERGENCE = (
    "The runs have different tokenizers: their predictions are over different tokens and have no KL or Jensen-Shannon "
    "divergence."
)
SEEDS = "training seeds not counted"
UNITS = {
    "bits_per_byte": "bits per byte",
    "bits_per_original_byte": "bits per byte of the original",
    "masked_bits_per_byte": "bits per byte of masked text",
}
ROUNDING = 1e-3  # bytes; sums of fractions of bytes are inexact


class Gap(NamedTuple):
    """The difference of two runs: run minus other, negative if the run is better."""

    unit: str
    value: float
    low: float | None
    """None for a text that is too short for an interval, as `high`"""
    high: float | None
    documents: int | None


@dataclass(frozen=True)
class ScoredText:
    """The scores of one run on a split, in the tokens of its own tokenizer."""

    scores: TokenScores
    text: StreamText
    keys: list[Key]


def difference(
    scores: TokenScores, sampling: Sampling | None, sizes: np.ndarray | None, unit: str = UNITS["bits_per_byte"]
) -> Gap:
    """Return the difference of two runs with the same tokenizer, from `scores.gaps`.

    sizes (N,): bytes of the scored tokens, counted as `unit` says. Without them the unit is bits per token.
    """
    if sizes is None:
        sizes, unit = np.ones(len(scores.gaps)), "bits per token"
    value = scores.gaps.sum() / sizes.sum()
    if sampling is None:
        return _gap(unit, value, None, None)
    gaps, size = sampling.draw(scores.gaps, sizes).T
    return _gap(unit, value, gaps / size, sampling.documents)


def difference_per_byte(ours: ScoredText, theirs: ScoredText, window: int, unit: str = UNITS["bits_per_byte"]) -> Gap:
    """Return the difference in `unit` of two runs with different tokenizers.

    Documents are paired by the hash of their bytes. If a dataset ends within a document, only the bytes that both
    datasets have count. `window` is the context of our run in tokens. Raises ValueError if no document is in both.
    """
    places = {key: place for place, key in enumerate(theirs.keys)}
    pairs = np.array([(place, places[key]) for place, key in enumerate(ours.keys) if key in places], np.int64)
    if not len(pairs):
        raise ValueError(
            "no document is in both datasets, so the runs cannot be compared: build both from the same corpus with "
            "bytelm build-dataset"
        )
    sizes = np.stack([np.diff(each.text.document_starts)[pairs[:, i]] for i, each in enumerate((ours, theirs))])
    common = sizes.min(axis=0)
    segment = None
    if len(pairs) < FEWEST_DOCUMENTS:
        segment = max(1, round(ours.text.size / len(ours.text.start) * window))
    sums = np.stack(
        [
            column
            for i, each in enumerate((ours, theirs))
            for column in _sums_of_pairs(each, pairs[:, i], common, segment)
        ],
        axis=1,
    )
    block = None if segment is None else block_length(len(sums))
    totals = sums.sum(axis=0)
    value = totals[0] / totals[1] - totals[2] / totals[3]
    if len(sums) < FEWEST_CONTEXTS:
        return _gap(unit, value, None, len(pairs))
    columns = draw(sums, block).T
    return _gap(unit, value, columns[0] / columns[1] - columns[2] / columns[3], len(pairs))


def _sums_of_pairs(
    each: ScoredText, documents: np.ndarray, common: np.ndarray, segment: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the nats and the bytes of each unit, each (units,) float64.

    A unit is one of the paired `documents` (P,), or a segment of their joined text. Only the first `common` (P,) bytes
    of a document count.
    """
    text, indices = each.text, each.scores.indices
    number = np.full(text.documents, -1)
    number[documents] = np.arange(len(documents))
    pair = number[text.document[indices]]
    sizes = text.sizes[indices]
    inside = text.start[indices] - text.document_starts[text.document[indices]]
    counted = (pair >= 0) & (inside + sizes <= common[pair] + ROUNDING)
    pair, sizes, nats = pair[counted], sizes[counted], each.scores.nats[counted]
    unit, units = pair, len(documents)
    if segment is not None:
        unit = (((np.cumsum(common) - common)[pair] + inside[counted]) // segment).astype(np.int64)
        units = int(common.sum() - 1) // segment + 1
        unit = np.minimum(unit, units - 1)  # a separator at the end has no byte
    return np.bincount(unit, nats, minlength=units), np.bincount(unit, sizes, minlength=units)


def _gap(unit: str, nats: float, samples: np.ndarray | None, documents: int | None) -> Gap:
    low, high = (None, None) if samples is None else interval(bits(1) * samples)
    return Gap(unit, bits(float(nats)), low, high, documents)


def reservations(runs: Sequence[Run], unit: str) -> list[str]:
    """Return the caveats, as sentences, of comparing runs with different tokenizers in `unit`."""
    lossy = [run.name for run in runs if not run.tokenizer().is_lossless]
    found = [
        f"The tokenizer of {name} loses text, such as case or unknown words, which the model does not have to predict."
        for name in lossy
    ]
    if unit == UNITS["masked_bits_per_byte"]:
        found.append(
            "Each run masks 15 % of its own tokens. The other tokens of a masked word stay visible, which favours "
            "tokenizers with shorter tokens."
        )
    return found


def sentence(gap: Gap, run: str, other: str) -> str:
    """Return a sentence about the difference of two runs, by their names."""
    unit, value, low, high, _ = gap
    if value == 0:
        return f"{run} and {other} are equally good on this text: their losses are the same; {SEEDS}."
    better = run if value < 0 else other
    digits = 3 if abs(value) >= 0.01 else 5
    head = f"{better} is better by {abs(value):.{digits}f} {unit}"
    if low is None or high is None:
        return f"{head} on this text, which is too short for an interval; {SEEDS}."
    first, last = (-high, -low) if value < 0 else (low, high)
    span = f"95 %: {first:.{digits}f} to {last:.{digits}f}"
    if first > 0:
        return f"{head} ({span}) on text like this; {SEEDS}."
    return f"{head} on this text, but the interval includes 0 ({span}): text like this may show none; {SEEDS}."

"""N-gram baselines: fitted on the training split, scored on the targets of the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lm.metrics.baselines import Bigram, Unigram
from pipelines.dataset.pairs import Lists, Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.windows import BATCH_WINDOWS, Objective, Stream
from pipelines.training.data import validation_batch
from pipelines.training.mixture import Dataset
from pipelines.training.objectives import PairObjective, SpanCorruption

SPAN_BLOCKS = 2048  # of span corruption that the baselines are fitted on


@dataclass(frozen=True)
class Baselines:
    """The add-one unigram and the Witten-Bell bigram of the tokens that a model predicts on the training split."""

    unigram: Unigram
    bigram: Bigram

    @classmethod
    def fit(cls, dataset: Dataset, objective: Objective) -> "Baselines":
        """Fit both on all tokens of the training split, or on the targets of an encoder-decoder.

        The targets of span corruption are from the first `SPAN_BLOCKS` blocks.
        """
        chunks = _targets(dataset.split("train"), objective)
        unigram = Unigram.fit(chunks, dataset.vocab_size)
        return cls(unigram, Bigram.fit(chunks, unigram))


def _targets(train: Stream, objective: Objective) -> Sequence[np.ndarray]:
    match objective, train:
        case PairObjective(), Pairs():
            return [_with_ends(train.targets, objective.end_id)]
        case SpanCorruption(), TokenStream():
            return [_span_targets(train, objective)]
        case _, TokenStream():
            return train.chunks()
    raise AssertionError(f"{type(objective).__name__} has no targets in {type(train).__name__}")


def _with_ends(lists: Lists, end_id: int) -> np.ndarray:
    """Return an end token, and then every list with an end token after it."""
    first = np.concatenate(([0], np.cumsum(lists.lengths)))
    return np.insert(np.concatenate(lists.chunks()).astype(np.int64), first, end_id)


def _span_targets(stream: TokenStream, objective: SpanCorruption) -> np.ndarray:
    last = min(SPAN_BLOCKS, stream.blocks)
    firsts = range(0, last, BATCH_WINDOWS)
    batches = (validation_batch(stream, objective, first, min(BATCH_WINDOWS, last - first)) for first in firsts)
    return np.concatenate([batch.targets.ravel() for batch in batches])


class BaselineScores:
    """Sums up the scores of baselines on the targets of a split."""

    def __init__(self, baselines: Baselines) -> None:
        self._baselines = baselines
        self._nats = {"unigram": 0.0, "bigram": 0.0}
        self._most_frequent = int(baselines.unigram.counts.argmax())
        self._hits = self._tokens = 0

    def update(self, previous: np.ndarray, targets: np.ndarray) -> None:
        """Score targets (N,) after the tokens `previous` (N,). The unigram predicts a target after no token (-1)."""
        nats = self._baselines.unigram.nll(targets)
        self._nats["unigram"] += math.fsum(nats)
        preceded = previous >= 0
        nats[preceded] = self._baselines.bigram.nll(previous[preceded], targets[preceded])
        self._nats["bigram"] += math.fsum(nats)
        self._hits += int((targets == self._most_frequent).sum())
        self._tokens += len(targets)

    def result(self) -> dict[str, float]:
        """Return the numbers of the baselines for evaluation.json."""
        tokens = max(1, self._tokens)
        bits = {f"{name}_cross_entropy_bits": nats / math.log(2) / tokens for name, nats in self._nats.items()}
        return bits | {"unigram_accuracy": self._hits / tokens}

"""N-gram baselines: fitted on the training split, scored on the targets of the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lm.metrics.baselines import Bigram, Unigram
from lm.metrics.units import bits
from pipelines.dataset.pair_dataset import Lists, Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import BATCH_WINDOWS, Objective, Stream
from pipelines.training.batch_objectives import Corruption, PairObjective, validation_batch
from pipelines.training.mixture import Dataset

CORRUPTED_BLOCKS = 2048  # that the baselines of encoder-decoders are fitted on


@dataclass(frozen=True)
class NGrams(Result):
    """The scores of the baselines on a split."""

    unigram_cross_entropy_bits: float = number(
        "unigram baseline, bits per token",
        "Cross-entropy of the token frequencies of the training split, with add-one smoothing.",
        4,
        headline=True,
    )
    bigram_cross_entropy_bits: float = number(
        "bigram baseline, bits per token",
        "Cross-entropy of a Witten-Bell bigram model of the training split.",
        4,
        headline=True,
    )
    unigram_accuracy: float = number(
        "unigram baseline, accuracy",
        "Accuracy of always predicting the most frequent token of the training split.",
        4,
        headline=True,
    )


@dataclass(frozen=True, kw_only=True)
class NGramBaselines(Measurement):
    """The n-gram baselines. They are measured wherever the training split is known."""

    result = NGrams

    def measure(self, split: ScoredSplit) -> NGrams | None:
        return split.baselines.score(split.tokens.previous, split.tokens.targets) if split.baselines else None


MEASUREMENT = NGramBaselines


@dataclass(frozen=True)
class Baselines:
    """The add-one unigram and the Witten-Bell bigram of the tokens that a model predicts on the training split."""

    unigram: Unigram
    bigram: Bigram

    @classmethod
    def fit(cls, dataset: Dataset, objective: Objective) -> "Baselines":
        """Fit both on all tokens of the training split, or on the targets of an encoder-decoder.

        The targets of corrupted text are from the first `CORRUPTED_BLOCKS` blocks.
        """
        chunks = _targets(dataset.split("train"), objective)
        unigram = Unigram.fit(chunks, dataset.vocab_size)
        return cls(unigram, Bigram.fit(chunks, unigram))

    def score(self, previous: np.ndarray, targets: np.ndarray) -> NGrams:
        """Return the scores of targets (N,) after the tokens `previous` (N,).

        Without a previous token (-1), the unigram predicts the target.
        """
        nats = self.unigram.nll(targets)
        unigram = math.fsum(nats)
        preceded = previous >= 0
        nats[preceded] = self.bigram.nll(previous[preceded], targets[preceded])
        hits = np.count_nonzero(targets == self.unigram.counts.argmax())
        tokens = len(targets)
        return NGrams(bits(unigram / tokens), bits(math.fsum(nats) / tokens), hits / tokens)


def _targets(train: Stream, objective: Objective) -> Sequence[np.ndarray]:
    match objective, train:
        case PairObjective(), Pairs():
            return [_with_ends(train.targets, objective.end_id)]
        case Corruption(), TokenStream():
            return [_corrupted_targets(train, objective)]
        case _, TokenStream():
            return train.chunks()
    raise AssertionError(f"{type(objective).__name__} has no targets in {type(train).__name__}")


def _with_ends(lists: Lists, end_id: int) -> np.ndarray:
    """Return an end token, and then every list with an end token after it."""
    first = np.concatenate(([0], np.cumsum(lists.lengths)))
    return np.insert(np.concatenate(lists.chunks()).astype(np.int64), first, end_id)


def _corrupted_targets(stream: TokenStream, objective: Corruption) -> np.ndarray:
    last = min(CORRUPTED_BLOCKS, stream.blocks)
    firsts = range(0, last, BATCH_WINDOWS)
    batches = (validation_batch(stream, objective, first, min(BATCH_WINDOWS, last - first)) for first in firsts)
    return np.concatenate([batch.targets.ravel() for batch in batches])

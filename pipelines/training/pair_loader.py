"""From pairs to what an encoder-decoder reads: batches of similar lengths, in an order drawn by (seed, epoch).

An epoch is a permutation of all pairs, cut into chunks; within a chunk the pairs are sorted by length, cut into batches
and the batches shuffled. So one integer, the pairs consumed, resumes the order, and only one chunk is ever sorted.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Self

import numpy as np

from lm.objectives import sequence_pairs
from pipelines.dataset.pairs import Pairs
from pipelines.training.loader import WHOLE, Batch, Share, required
from tokenizer import END_OF_TEXT, PAD, Tokenizer

# Batches that are sorted together: with more, batches hold less padding, and are less random.
CHUNK_BATCHES = 64


class SequencePairs:
    """The objective of pairs: the encoder reads the source and its end; the decoder predicts the target and its end,
    from a start on. Padding fills up what is shorter, unseen and without a weight."""

    def __init__(
        self,
        context_length: int,
        *,
        start_id: int,
        end_id: int,
        pad_id: int,
        before: Sequence[int] = (),
        after: Sequence[int] | None = None,
    ) -> None:
        """`before` and `after`: the ids around a source, if not just the end."""
        self.positions = context_length
        self.start_id, self.end_id, self.pad_id = start_id, end_id, pad_id
        self.before, self.after = tuple(before), (end_id,) if after is None else tuple(after)
        self._around = len(self.before) + len(self.after), 1  # ids that are read beside a source, and a target

    @classmethod
    def of(cls, tokenizer: Tokenizer, context_length: int) -> Self:
        """As we train it, with `<|endoftext|>` as start and end, and `<|pad|>`; ValueError when `tokenizer` lacks
        one."""
        special = tokenizer.special_tokens
        required("sequence-pairs", (END_OF_TEXT, PAD), special)
        end = special[END_OF_TEXT]
        return cls(context_length, start_id=end, end_id=end, pad_id=special[PAD])

    def batch(self, pairs: Pairs, rows: np.ndarray) -> Batch:
        """The pairs of those numbers. What is longer than the context, with its end, is cut."""
        sides = zip((pairs.sources, pairs.targets), self._around, strict=True)
        lengths = [int(side.lengths[rows].max()) + around for side, around in sides]
        made = sequence_pairs(
            [pairs.sources[row] for row in rows.tolist()],
            [pairs.targets[row] for row in rows.tolist()],
            start_id=self.start_id,
            end_id=self.end_id,
            pad_id=self.pad_id,
            source_length=min(lengths[0], self.positions),
            target_length=min(lengths[1], self.positions),
            before=self.before,
            after=self.after,
        )
        return Batch(made.inputs, made.targets, made.weights, made.source, made.source_present)

    def lengths(self, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """(N,) positions of each source and each target, ends included."""
        sides = zip((pairs.sources, pairs.targets), self._around, strict=True)
        return tuple(np.minimum(side.lengths.astype(np.int64) + around, self.positions) for side, around in sides)

    def cut(self, pairs: Pairs) -> int:
        """How many pairs are longer than the context."""
        source, target = (self.positions - around for around in self._around)
        return int(((pairs.sources.lengths > source) | (pairs.targets.lengths > target)).sum())


class PairLoader:
    """The training batches of a run, in its order: each pair once an epoch.

    `batch_tokens` bounds the positions of a batch, those of its longest source plus its longest target times its
    pairs; a batch has at least one pair.
    """

    def __init__(self, pairs: Pairs, objective: SequencePairs, batch_tokens: int, seed: int) -> None:
        self.pairs, self.objective = pairs, objective
        self._batch_tokens, self._seed = batch_tokens, seed
        self._sources, self._targets = objective.lengths(pairs)
        mean = float(self._sources.mean() + self._targets.mean())
        self._chunk_pairs = max(1, round(CHUNK_BATCHES * batch_tokens / mean))
        self._permutation = lru_cache(maxsize=2)(self._permuted)
        self._batches = lru_cache(maxsize=2)(self._cut_into_batches)

    def batch(self, consumed: int, share: Share = WHOLE) -> Batch:
        """A process's share of the batch that follows the first `consumed` pairs of the run."""
        rows = self.rows(consumed)
        mine, own = share.rows(len(rows))
        return self.objective.batch(self.pairs, rows[mine]).only(own)

    def size(self, consumed: int) -> tuple[int, int]:
        """How many pairs that batch has, and tokens, with their ends and without padding."""
        rows = self.rows(consumed)
        return len(rows), int(self._sources[rows].sum() + self._targets[rows].sum())

    def rows(self, consumed: int) -> np.ndarray:
        """The pairs of the batch that follows the first `consumed` of the run, which must be whole batches."""
        epoch, within = divmod(consumed, len(self.pairs))
        chunk, offset = divmod(within, self._chunk_pairs)
        rows, bounds = self._batches(epoch, chunk)
        first = int(np.searchsorted(bounds, offset))
        assert bounds[first] == offset, "pairs consumed are no whole batches"
        return rows[bounds[first] : bounds[first + 1]]

    def _permuted(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self._seed, epoch)).permutation(len(self.pairs))

    def _cut_into_batches(self, epoch: int, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of a chunk in their order, and where in it batches begin and end: (batches + 1,)."""
        rows = self._permutation(epoch)[chunk * self._chunk_pairs : (chunk + 1) * self._chunk_pairs]
        rows = rows[np.lexsort((self._sources[rows], self._targets[rows]))]
        batches, start, widest = [], 0, (0, 0)
        sources, targets = self._sources[rows].tolist(), self._targets[rows].tolist()
        for end, lengths in enumerate(zip(sources, targets, strict=True)):
            wider = max(widest[0], lengths[0]), max(widest[1], lengths[1])
            if end > start and (end + 1 - start) * sum(wider) > self._batch_tokens:
                batches.append(rows[start:end])
                start, wider = end, lengths
            widest = wider
        batches.append(rows[start:])
        order = np.random.default_rng((self._seed, epoch, chunk)).permutation(len(batches))
        shuffled = [batches[number] for number in order.tolist()]
        return np.concatenate(shuffled), np.cumsum([0, *map(len, shuffled)])

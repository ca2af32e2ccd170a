"""The windows of a split or a text: the inputs of a model, the positions that are scored, and the scores.

A decoder reads the stream in windows of its context length, `stride` tokens apart. Each token is scored once, in the
first window that predicts it: chunked if the stride is the window, sliding if it is shorter. An encoder reads blocks
with the masks of seed 0 and epoch 0, or masks one place of a block. An encoder-decoder reads blocks with the spans of
that seed and epoch, or pairs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.dataset.pair_dataset import Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.training.batch import Batch
from pipelines.training.batch_objectives import (
    Corruption,
    MaskedToken,
    NextToken,
    PairObjective,
    StreamObjective,
    validation_batch,
)

# Limits of a batch, so that long windows do not fill memory.
BATCH_WINDOWS, BATCH_POSITIONS = 16, 16_384
SMALL_BATCH = 4096  # positions of a batch of short windows; in smaller batches, Python is the bottleneck

Stream = TokenStream | Pairs
"""The examples of a split."""
Objective = StreamObjective | PairObjective


@dataclass(frozen=True)
class WindowSettings:
    """Sizes of windows over a stream, in tokens."""

    window: int
    stride: int
    min_context: int


@dataclass(frozen=True)
class Windows:
    """A batch of B windows with P positions each."""

    batch: Batch
    """inputs and targets (B, P)"""
    scored: np.ndarray
    """bool (B, P)"""
    previous: np.ndarray
    """int64 (B, P): the token before each target, -1 if there is none"""
    indices: np.ndarray
    """int64 (B, P): the place of each target in the stream; -1 if the targets are not a part of a stream"""
    first: int = 0
    """number of the first window in the split"""

    def scores(self, rows: np.ndarray, columns: np.ndarray, nats: np.ndarray, correct: np.ndarray) -> "TokenScores":
        """Return the scores of the positions (rows, columns), each (N,)."""
        return TokenScores(
            self.batch.targets[rows, columns].astype(np.int32),
            self.previous[rows, columns].astype(np.int32),
            columns.astype(np.int32),
            (self.first + rows).astype(np.int32),
            self.indices[rows, columns],
            nats,
            correct,
        )


@dataclass(frozen=True)
class TokenScores:
    """Scores of N tokens, 33 bytes each."""

    targets: np.ndarray
    """int32 (N,): ids of the scored tokens"""
    previous: np.ndarray
    """int32 (N,): ids of the tokens before them, -1 if there is none"""
    columns: np.ndarray
    """int32 (N,): their positions in the window, from 0"""
    windows: np.ndarray
    """int32 (N,): numbers of their windows in the split, or of their pairs"""
    indices: np.ndarray
    """int64 (N,): their places in the stream, -1 if they are not a part of a stream"""
    nats: np.ndarray
    """float64 (N,): -ln p"""
    correct: np.ndarray
    """bool (N,): whether the model ranked the token first"""

    @classmethod
    def join(cls, parts: Sequence["TokenScores"]) -> "TokenScores":
        """Return the scores of consecutive parts of a split; at least one part."""
        return cls(*(np.concatenate(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))


def windows_over(
    stream: Stream, objective: Objective, settings: WindowSettings
) -> tuple[Iterator[Windows], int | None]:
    """Return the windows of a split, and the number of their positions if it is known in advance."""
    match objective, stream:
        case NextToken(), TokenStream():
            return decoder_windows(stream, objective, settings.stride, settings.min_context), stream.tokens
        case MaskedToken(), TokenStream():
            return encoder_windows(stream, objective), None
        case Corruption(), TokenStream():
            return corrupted_windows(stream, objective), stream.blocks * objective.positions
        case PairObjective(), Pairs():
            return pair_windows(stream, objective), int(sum(objective.lengths(stream)[1]))
    raise AssertionError(f"{type(objective).__name__} has no windows over {type(stream).__name__}")


def decoder_windows(
    stream: TokenStream,
    objective: NextToken,
    stride: int,
    min_context: int = 1,
    *,
    first: int = 1,
    rolling: bool = False,
) -> Iterator[Windows]:
    """Yield the windows of a decoder that score the tokens of a stream from index `first` on.

    Positions with fewer than `min_context` tokens before them in their window are not scored. With `min_context` 1,
    only the first token of the stream is not scored, because nothing precedes it. If `rolling`, the last window moves
    back until it is full, as in lm-eval.
    """
    window = objective.length
    count = decoder_window_count(stream.tokens, window, stride)
    columns = np.arange(max(1, min(window, stream.tokens - 1)))  # a stream can be shorter than a window
    rows = windows_per_batch(window)
    for number in range(max(0, math.ceil((first - window) / stride)), count, rows):
        starts = np.arange(number, min(number + rows, count)) * stride
        already = np.where(starts > 0, starts - stride + window, 0)
        if rolling:
            starts = np.minimum(starts, max(0, stream.tokens - 1 - window))
        batch = objective.batch(stream, starts).columns(len(columns))
        indices = starts[:, None] + 1 + columns
        unscored = np.maximum(already, first - 1)[:, None]
        scored = (batch.weights > 0) & (indices > unscored) & (columns + 1 >= min_context)
        yield Windows(batch, scored, batch.inputs, indices, number)


def decoder_window_count(tokens: int, window: int, stride: int) -> int:
    """Return the number of windows over `tokens` tokens. The last one is the first whose targets reach the end."""
    return 1 + max(0, math.ceil((tokens - 1 - window) / stride))


def encoder_windows(stream: TokenStream, objective: MaskedToken) -> Iterator[Windows]:
    """Yield the blocks of an encoder, scored at the positions selected for masking."""
    columns = np.arange(objective.positions) - 1
    rows = windows_per_batch(objective.positions)
    for first in range(0, stream.blocks, rows):
        batch = validation_batch(stream, objective, first, rows)
        starts = np.arange(first, first + len(batch.inputs)) * objective.length
        previous = np.roll(batch.targets, 1, axis=1)
        previous[:, 1] = [int(stream.read(start - 1, 1)[0]) if start else -1 for start in starts.tolist()]
        yield Windows(batch, batch.weights > 0, previous, starts[:, None] + columns, first)


def lone_mask_windows(
    stream: TokenStream, objective: MaskedToken, starts: np.ndarray, columns: np.ndarray, ends: np.ndarray | None = None
) -> Iterator[Windows]:
    """Yield a block from each of `starts` (N,) of a stream, scored at its token `columns` (N,).

    See `MaskedToken.alone`.
    """
    rows = windows_per_batch(objective.positions)
    for first in range(0, len(starts), rows):
        part = slice(first, first + rows)
        blocks = stream.gather(starts[part], objective.length)
        batch = objective.alone(blocks, columns[part], None if ends is None else ends[part])
        indices = starts[part, None] + np.arange(objective.positions) - 1
        yield Windows(batch, batch.weights > 0, np.roll(batch.targets, 1, axis=1), indices, first)


def corrupted_windows(stream: TokenStream, objective: Corruption) -> Iterator[Windows]:
    """Yield the blocks of an encoder-decoder, scored at all targets, such as removed spans and their sentinels."""
    rows = windows_per_batch(objective.positions + objective.source_positions)
    for first in range(0, stream.blocks, rows):
        batch = validation_batch(stream, objective, first, rows)
        yield Windows(batch, batch.weights > 0, batch.inputs, np.full(batch.inputs.shape, -1), first)


def pair_windows(pairs: Pairs, objective: PairObjective) -> Iterator[Windows]:
    """Yield all pairs, scored at every token of the target and at its end token."""
    for first in range(0, len(pairs), BATCH_WINDOWS):
        batch = objective.batch(pairs, np.arange(first, min(first + BATCH_WINDOWS, len(pairs))))
        yield Windows(batch, batch.weights > 0, batch.inputs, np.full(batch.inputs.shape, -1), first)


def sequence_windows(
    sequences: Sequence[np.ndarray], source: Sequence[int] | None = None, firsts: Sequence[int] | None = None
) -> Iterator[Windows]:
    """Yield each sequence of ids as a window, scored from its index in `firsts` on, by default from 1.

    `indices` count the ids of all sequences in order.

    Padding is on the right, which is correct only for causal models. An encoder-decoder reads `source` with each.
    """
    lengths = np.array([len(ids) for ids in sequences])
    offsets, begins = np.cumsum(lengths) - lengths, np.array(firsts or [1] * len(sequences))
    rows = windows_per_batch(max(1, int(lengths.max(initial=1))))
    for first in range(0, len(sequences), rows):
        part = slice(first, first + rows)
        ids = np.zeros((len(lengths[part]), int(lengths[part].max())), np.int64)
        for row, sequence in zip(ids, sequences[part], strict=True):
            row[: len(sequence)] = sequence
        places = np.arange(1, ids.shape[1])
        scored = (places >= begins[part, None]) & (places < lengths[part, None])
        read = None if source is None else np.tile(np.array(source, np.int64), (len(ids), 1))
        batch = Batch(ids[:, :-1], ids[:, 1:], scored.astype(np.float32), read)
        yield Windows(batch, scored, batch.inputs, offsets[part, None] + places, first)


def windows_per_batch(positions: int) -> int:
    """Return the number of windows of `positions` positions in a batch."""
    return max(1, min(max(BATCH_WINDOWS, SMALL_BATCH // positions), BATCH_POSITIONS // positions))

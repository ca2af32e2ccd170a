"""From a stream of tokens to what a model reads: which blocks, in which order, with which objective.

The n-th block of a run is a function of (seed, n) alone, so one integer, the blocks consumed, resumes the order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from lm.objectives import lengths_of_span_corruption, masked_token, next_token, span_corruption
from pipelines.dataset.reader import TokenStream
from tokenizer import CLS, END_OF_TEXT, MASK, SEP, Tokenizer, sentinels


@dataclass(frozen=True)
class Share:
    """The rows of every batch that one of `parts` processes reads."""

    part: int = 0
    parts: int = 1

    def rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Of a batch of `count` rows the numbers of those to read, and which of them are this part's own.

        Parts are contiguous, cover the batch and differ in size by one at most. All read equally many rows: a smaller
        part reads one that is not its own, whose weights must be 0 (`Batch.only`).
        """
        first, end = (count * part // self.parts for part in (self.part, self.part + 1))
        rows = np.arange(first, first + -(-count // self.parts))
        return np.minimum(rows, count - 1), rows < end


WHOLE = Share()


@dataclass(frozen=True)
class Batch:
    """What a model reads and must predict: inputs and targets (B, P) int64, weights (B, P) float32, 0 where a
    position is not a target."""

    inputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    source: np.ndarray | None = None
    """(B, S) int64: what an encoder reads for a decoder."""
    source_present: np.ndarray | None = None
    """(B, S) bool: False where the source is padding; None where it has none."""
    segments: np.ndarray | None = None
    """(B, P) int64: the document of each position, where documents must not see each other."""

    def split(self, size: int) -> Iterable["Batch"]:
        """Micro-batches of at most `size` rows."""
        for start in range(0, len(self.inputs), size):
            rows = slice(start, start + size)
            parts = vars(self).items()
            yield Batch(**{name: None if part is None else part[rows] for name, part in parts})

    def columns(self, count: int) -> "Batch":
        """The first `count` positions of every row, for a stack that reads nothing else."""
        if count == self.inputs.shape[1]:
            return self
        parts = vars(self).items()
        return Batch(**{name: None if part is None else part[:, :count] for name, part in parts})

    def filled(self, size: int) -> "Batch":
        """The batch with so many copies of its last row that `size` divides it, their weights 0."""
        count = len(self.inputs)
        rows = np.arange(-(-count // size) * size)
        if len(rows) == count:
            return self
        parts = vars(self).items()
        more = {name: None if part is None else part[np.minimum(rows, count - 1)] for name, part in parts}
        return Batch(**more).only(rows < count)

    def only(self, own: np.ndarray) -> "Batch":
        """The batch with weights of 0 in the other rows than `own` (B,) bool."""
        return self if own.all() else replace(self, weights=self.weights * own[:, None])


class Objective(Protocol):
    """Turns blocks of `length` tokens that start at `starts` (B,) of the stream into a batch. Masks, if any, are drawn
    by (seed, epoch, number of the block)."""

    length: int
    positions: int
    """Of a block, in the stack that predicts."""
    source_positions: int
    """Of a block, in the encoder beside a decoder; 0 without one."""

    def batch(self, stream: TokenStream, starts: np.ndarray, draws: Iterable[tuple[int, int, int]]) -> Batch: ...


class NextToken:
    """The decoder's objective: T inputs, each followed by its target. The last token of the stream has no successor:
    its target has weight 0."""

    source_positions = 0

    def __init__(self, context_length: int, separator: int | None = None) -> None:
        """`separator`: the id before which a document ends, where documents must not see each other."""
        self.length = self.positions = context_length
        self._separator = separator

    def batch(self, stream: TokenStream, starts: np.ndarray, draws: Iterable[tuple[int, int, int]]) -> Batch:
        blocks = np.zeros((len(starts), self.length + 1), np.int64)
        weights_of_padding = np.ones((len(starts), self.length), np.float32)
        for row, start in enumerate(starts.tolist()):
            tokens = stream.read(start, self.length + 1)
            blocks[row, : len(tokens)] = tokens
            weights_of_padding[row, len(tokens) - 1 :] = 0
        inputs, targets, weights = next_token(blocks)
        return Batch(inputs, targets, weights * weights_of_padding, segments=segments_of(inputs, self._separator))


class MaskedToken:
    """The encoder's objective: `<|cls|>`, the T tokens of a block with some of them masked, `<|sep|>`."""

    source_positions = 0

    def __init__(
        self, context_length: int, special: Mapping[str, int], vocab_size: int, separator: int | None = None
    ) -> None:
        """`special`: the ids of special tokens, which are never masked; `vocab_size`: below which random tokens are."""
        required("masked-token", (MASK, CLS, SEP), special)
        self.length, self.positions = context_length, context_length + 2
        self._separator = separator
        self._ids = {"mask_id": special[MASK], "cls_id": special[CLS], "sep_id": special[SEP]}
        self._ids |= {"special_ids": np.array(sorted(set(special.values()))), "vocab_size": vocab_size}

    def batch(self, stream: TokenStream, starts: np.ndarray, draws: Iterable[tuple[int, int, int]]) -> Batch:
        blocks = stream.gather(starts, self.length)
        rows = [
            masked_token(block, np.random.default_rng(draw), **self._ids)
            for block, draw in zip(blocks, draws, strict=True)
        ]
        inputs, targets, weights = (np.stack(part) for part in zip(*rows, strict=True))
        return Batch(inputs, targets, weights, segments=segments_of(targets, self._separator))

    def alone(self, blocks: np.ndarray, columns: np.ndarray) -> Batch:
        """Each block (B, T) with only position `columns` (B,) masked, and it the only target."""
        rows = np.arange(len(blocks))
        edges = np.full((len(blocks), 1), self._ids["cls_id"]), np.full((len(blocks), 1), self._ids["sep_id"])
        targets = np.concatenate([edges[0], blocks, edges[1]], axis=1)
        inputs, weights = targets.copy(), np.zeros(targets.shape, np.float32)
        inputs[rows, columns + 1] = self._ids["mask_id"]
        weights[rows, columns + 1] = 1
        return Batch(inputs, targets, weights, segments=segments_of(targets, self._separator))


class SpanCorruption:
    """T5's objective: the encoder reads the T tokens of a block with some spans of them taken out, and
    `<|endoftext|>`; the decoder says what was taken out, after the sentinel of each span, and `<|endoftext|>`."""

    def __init__(
        self, context_length: int, special: Mapping[str, int], start_id: int | None = None, end_id: int | None = None
    ) -> None:
        """`start_id` and `end_id`: other ids than `<|endoftext|>` that targets begin with and both sides end with."""
        self.source_positions, self.positions = lengths_of_span_corruption(context_length, end=True)
        both = self.source_positions + self.positions
        spans = (both - context_length - 2) // 2  # each adds a sentinel to both, as do the ends
        required("span-corruption", sentinels(spans), special, "--sentinels 100")
        if start_id is None or end_id is None:
            required("span-corruption", (END_OF_TEXT,), special)
            start_id = end_id = special[END_OF_TEXT]
        self.length = context_length
        sentinel_ids = [special[name] for name in sentinels(spans)]
        self._ids = {"sentinel_ids": sentinel_ids, "start_id": start_id, "end_id": end_id}

    def batch(self, stream: TokenStream, starts: np.ndarray, draws: Iterable[tuple[int, int, int]]) -> Batch:
        blocks = stream.gather(starts, self.length)
        rows = [
            span_corruption(block, np.random.default_rng(draw), **self._ids)
            for block, draw in zip(blocks, draws, strict=True)
        ]
        source, inputs, targets, weights = (np.stack(part) for part in zip(*rows, strict=True))
        return Batch(inputs, targets, weights, source)


StreamObjective = NextToken | MaskedToken | SpanCorruption


def make_objective(
    name: str, context_length: int, tokenizer: Tokenizer, document_mask: bool = False
) -> StreamObjective:
    """The objective of a recipe for blocks of `context_length` tokens; with `document_mask` its batches number the
    documents, so that they do not see each other."""
    special, separator = tokenizer.special_tokens, None
    if document_mask:
        required("document_mask", (END_OF_TEXT,), special)
        separator = special[END_OF_TEXT]
    if name == "next-token":
        return NextToken(context_length, separator)
    if name == "masked-token":
        return MaskedToken(context_length, special, tokenizer.vocab_size, separator)
    return SpanCorruption(context_length, special)


def required(
    objective: str, names: Iterable[str], special: Mapping[str, int], remedy: str = "--special-tokens"
) -> None:
    """ValueError when the special tokens of a tokenizer lack one of `names`, which `objective` needs."""
    for name in names:
        if name not in special:
            raise ValueError(
                f"{objective} needs the special token {name}, which the tokenizer lacks: train one that has it "
                f"(bytelm train-tokenizer {remedy}), or of an imported model name it in tokenizer_config.json and "
                "import it again"
            )


def segments_of(ids: np.ndarray, separator: int | None) -> np.ndarray | None:
    """The number within its row of each position's document, which a separator begins: (B, P) to (B, P) int64."""
    return None if separator is None else np.cumsum(ids == separator, axis=1)


class Loader:
    """The training batches of a run, in its order.

    `sampling` "permutation" visits every block once an epoch, in an order drawn by (seed, epoch); "crops" reads at
    offsets of the stream drawn by (seed, number of the crop).
    """

    def __init__(self, stream: TokenStream, objective: Objective, sampling: str, seed: int) -> None:
        self.stream, self.objective, self.seed = stream, objective, seed
        self._crops = sampling == "crops"
        self._order = lru_cache(maxsize=2)(self._permutation)

    def batch(self, consumed: int, blocks: int, share: Share = WHOLE) -> Batch:
        """Of the `blocks` blocks after the first `consumed` of the run, a process's share."""
        rows, own = share.rows(blocks)
        starts = np.empty(len(rows), np.int64)
        draws = []
        for row, number in enumerate((consumed + rows).tolist()):
            if self._crops:
                # One target more than the length: every crop has a successor for its last token.
                last = self.stream.tokens - self.objective.length - 1
                starts[row] = np.random.default_rng((self.seed, 0, number, 1)).integers(max(1, last + 1))
                draws.append((self.seed, 0, number))
            else:
                epoch, index = divmod(number, self.stream.blocks)
                block = int(self._order(epoch)[index])
                starts[row] = block * self.objective.length
                draws.append((self.seed, epoch, block))
        return self.objective.batch(self.stream, starts, draws).only(own)

    def _permutation(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(self.stream.blocks)


def validation_batch(stream: TokenStream, objective: Objective, first: int, blocks: int, share: Share = WHOLE) -> Batch:
    """Of the blocks [first, first + blocks) of a split in its order a process's share, with the masks of seed 0, epoch
    0, which never change."""
    rows, own = share.rows(min(blocks, stream.blocks - first))
    numbers = first + rows
    return objective.batch(stream, numbers * objective.length, [(0, 0, int(n)) for n in numbers]).only(own)

"""Objectives: classes that turn blocks of a token stream, or pairs, into batches.

An objective of a token stream reads blocks of `length` tokens. `positions` is the number of positions of a row in the
stack that predicts, `source_positions` in the encoder of an encoder-decoder (0 without one). Each row's random choices
are seeded by its row of `draws` (B, 3) int64: seed, epoch, block number. A row that is a part of a block has a fourth
number, which differs for each part.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from lm.objectives import (
    length_of_infilled,
    lengths_of_span_corruption,
    masked_next_token,
    masked_token,
    next_token,
    permuted_sentences,
    sequence_pairs,
    span_corruption,
    text_infilling,
)
from pipelines.dataset.pair_dataset import Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.run.text_ids import ROLES, ids_of
from pipelines.training.batch import ALL_ROWS, Array, Batch, Shard
from pipelines.training.masking import STANDARD, Masking
from pipelines.training.seeding import generators
from tokenizer import CLS, END_OF_TEXT, MASK, PAD, SEP, Tokenizer, sentinels

STOPS = (".", "!", "?", "…", "。", "！", "？")
"""Marks that end a sentence"""
CLOSING = b" \t\r\n\"')]}"
"""Characters that may follow such a mark in its token"""


class NextToken:
    """The decoder's objective: T inputs, each with the next token as its target.

    The last token of the stream has no successor, so its target has weight 0.
    """

    source_positions = 0

    def __init__(self, context_length: int, separator: int | None = None) -> None:
        """`separator`: the id that begins a document, for models with a document mask."""
        self.length = self.positions = context_length
        self._separator = separator

    def batch(self, stream: TokenStream, starts: Array, draws: Array | None = None) -> Batch:
        """Return the blocks that begin at `starts` (B,) of the stream; nothing is random."""
        inputs, targets, weights = next_token(stream.gather(starts, self.length + 1))
        weights[starts[:, None] + np.arange(1, self.length + 1) >= stream.tokens] = 0
        return Batch(inputs, targets, weights, segments=document_numbers(inputs, self._separator))


class MaskedToken:
    """The encoder's objective: `<|cls|>`, a block of T tokens with some masked, `<|sep|>`."""

    source_positions = 0

    def __init__(
        self,
        context_length: int,
        special: Mapping[str, int],
        vocab_size: int,
        separator: int | None = None,
        masking: Masking = STANDARD,
    ) -> None:
        """`special`: ids of special tokens, which are never masked. Random replacements are below `vocab_size`."""
        require_special_tokens("masked-token", (MASK, CLS, SEP), special)
        self.length, self.positions = context_length, context_length + 2
        self._separator, self._vocab_size, self._masking = separator, vocab_size, masking
        self._mask, self._cls, self._sep = special[MASK], special[CLS], special[SEP]
        self._special = np.array(sorted(set(special.values())))

    def batch(self, stream: TokenStream, starts: Array, draws: Array) -> Batch:
        """Return the blocks that begin at `starts` (B,) of the stream, each masked by its draw."""
        blocks, drawn_from = stream.gather(starts, self.length), generators(draws)
        inputs, targets, weights = masked_token(
            blocks,
            drawn_from,
            share=self._masking.share,
            starts=self._masking.starts(blocks, drawn_from),
            mask_id=self._mask,
            cls_id=self._cls,
            sep_id=self._sep,
            special_ids=self._special,
            vocab_size=self._vocab_size,
        )
        return Batch(inputs, targets, weights, segments=document_numbers(targets, self._separator))

    def alone(self, blocks: Array, columns: Array, ends: Array | None = None) -> Batch:
        """Return blocks (B, T) in which only token `columns` (B,) of each is a target.

        Only this token is masked, or the tokens up to `ends` (B,), exclusive.
        """
        rows, places = np.arange(len(blocks)), np.arange(blocks.shape[1])
        edges = np.full((len(blocks), 1), self._cls), np.full((len(blocks), 1), self._sep)
        targets = np.concatenate([edges[0], blocks, edges[1]], axis=1)
        inputs, weights = targets.copy(), np.zeros(targets.shape, np.float32)
        ends = columns + 1 if ends is None else ends
        inputs[:, 1:-1][(places >= columns[:, None]) & (places < ends[:, None])] = self._mask
        weights[rows, columns + 1] = 1
        return Batch(inputs, targets, weights, segments=document_numbers(targets, self._separator))


class NextOrMaskedToken:
    """GPT-BERT's objective of a decoder (Charpentier and Samuel 2024, 2).

    Each row is drawn to be causal, as in `NextToken`, or masked. A masked row attends to both sides, and the position
    before each selected token predicts it. Targets of a masked row weigh 1 / share, so both kinds of rows weigh the
    same on average.
    """

    source_positions = 0

    def __init__(
        self,
        context_length: int,
        special: Mapping[str, int],
        vocab_size: int,
        separator: int | None = None,
        masking: Masking = STANDARD,
    ) -> None:
        """The arguments are as in `MaskedToken`; `masking.rows` is the probability that a row is masked."""
        require_special_tokens("train.masked_rows", (MASK,), special)
        self.length = self.positions = context_length
        self._causal = NextToken(context_length, separator)
        self._mask, self._special = special[MASK], np.array(sorted(set(special.values())))
        self._vocab_size, self._masking = vocab_size, masking

    def batch(self, stream: TokenStream, starts: Array, draws: Array) -> Batch:
        """Return the blocks that begin at `starts` (B,) of the stream, each causal or masked by its draw."""
        batch, drawn_from = self._causal.batch(stream, starts), generators(draws)
        causal = np.array([generator.random() >= self._masking.rows for generator in drawn_from], bool)
        rows = np.flatnonzero(~causal)
        blocks, drawn_from = stream.gather(starts[rows], self.length + 1), [drawn_from[row] for row in rows]
        inputs, _, weights = masked_next_token(
            blocks,
            drawn_from,
            share=self._masking.share,
            starts=self._masking.starts(blocks, drawn_from),
            mask_id=self._mask,
            special_ids=self._special,
            vocab_size=self._vocab_size,
        )
        batch.inputs[rows] = inputs
        batch.weights[rows] *= weights / np.float32(self._masking.share)
        return replace(batch, causal=causal[:, None])


class Corruption:
    """An objective of encoder-decoders: the encoder reads corrupted blocks, the decoder restores them."""

    length: int
    positions: int
    source_positions: int

    def batch(self, stream: TokenStream, starts: Array, draws: Array) -> Batch:
        """Return the blocks that begin at `starts` (B,) of the stream, each corrupted by its draw."""
        return self.corrupt(stream.gather(starts, self.length), generators(draws))

    def corrupt(self, blocks: Array, generators: Sequence[np.random.Generator]) -> Batch:
        """Return the batch of blocks (B, T); each row draws from its own generator."""
        raise NotImplementedError


class SpanCorruption(Corruption):
    """T5's objective (Raffel et al. 2020, 3.1.4).

    The encoder reads a block of T tokens in which sentinels replace some spans, and `<|endoftext|>`. The decoder
    predicts the spans, each after its sentinel, and `<|endoftext|>`.
    """

    def __init__(
        self, context_length: int, special: Mapping[str, int], start_id: int | None = None, end_id: int | None = None
    ) -> None:
        """`start_id` begins targets and `end_id` ends both sides; both default to `<|endoftext|>`."""
        self.source_positions, self.positions = lengths_of_span_corruption(context_length, end=True)
        # Both sides together hold the tokens, two ends, and two sentinels a span.
        spans = (self.source_positions + self.positions - context_length - 2) // 2
        require_special_tokens("span-corruption", sentinels(spans), special, "`sentinels=100`")
        if start_id is None or end_id is None:
            require_special_tokens("span-corruption", (END_OF_TEXT,), special)
            start_id = end_id = special[END_OF_TEXT]
        self.length = context_length
        self._sentinels = [special[name] for name in sentinels(spans)]
        self._start, self._end = start_id, end_id

    def corrupt(self, blocks: Array, generators: Sequence[np.random.Generator]) -> Batch:
        source, inputs, targets, weights = span_corruption(
            blocks, generators, sentinel_ids=self._sentinels, start_id=self._start, end_id=self._end
        )
        return Batch(inputs, targets, weights, source)


class Denoising(Corruption):
    """BART's objective (Lewis et al. 2020, 2.2): permuted sentences, then text infilling.

    The encoder reads a block of T tokens, with its sentences in random order and masks in place of some spans, then
    `<|endoftext|>`. The decoder predicts the whole block and `<|endoftext|>`.
    """

    def __init__(self, context_length: int, special: Mapping[str, int], stop_ids: Array) -> None:
        """`stop_ids`: ids that end a sentence, see `sentence_stops`."""
        require_special_tokens("denoising", (MASK, END_OF_TEXT), special)
        self.length, self.positions = context_length, context_length + 1
        self.source_positions = length_of_infilled(context_length) + 1
        self._stops, self._mask, self._end = stop_ids, special[MASK], special[END_OF_TEXT]

    def corrupt(self, blocks: Array, generators: Sequence[np.random.Generator]) -> Batch:
        permuted = permuted_sentences(blocks, generators, stop_ids=self._stops, separator_id=self._end)
        source, present = text_infilling(permuted, generators, mask_id=self._mask)
        rows, ends = np.arange(len(blocks)), present.sum(axis=1)
        source, present = (np.pad(part, ((0, 0), (0, 1))) for part in (source, present))
        source[rows, ends], present[rows, ends] = self._end, True
        edge = np.full((len(blocks), 1), self._end)
        inputs, targets = np.concatenate([edge, blocks], axis=1), np.concatenate([blocks, edge], axis=1)
        weights = np.ones(targets.shape, np.float32)
        return Batch(inputs.astype(np.int64), targets.astype(np.int64), weights, source, present)


def sentence_stops(tokenizer: Tokenizer) -> Array:
    """Return the ids of tokens that end in a full stop, an exclamation or question mark, or an ellipsis.

    Space, quotation marks and brackets may follow the mark.
    """
    ends = tuple(mark.encode() for mark in STOPS)
    ids = np.flatnonzero(tokenizer.ordinary).tolist()
    return np.array([i for i in ids if tokenizer.token_bytes(i).rstrip(CLOSING).endswith(ends)], np.int64)


StreamObjective = NextToken | MaskedToken | NextOrMaskedToken | Corruption


class PairObjective:
    """The objective of pairs: the encoder reads the source and its end, the decoder predicts the target and its end.

    Shorter sides are padded. Padding is masked in attention and has weight 0.
    """

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
        """`before` and `after`: ids around a source; by default only `end_id` after it."""
        self.positions = context_length
        self.start_id, self.end_id, self.pad_id = start_id, end_id, pad_id
        self.before, self.after = tuple(before), (end_id,) if after is None else tuple(after)
        self._around = len(self.before) + len(self.after), 1  # ids added to a source, and to a target

    @classmethod
    def of(cls, special: Mapping[str, int], context_length: int) -> Self:
        """Return the objective of our own training: `<|endoftext|>` starts and ends, `<|pad|>` pads.

        Raises ValueError if `special` lacks one of them.
        """
        require_special_tokens("sequence-pairs", (END_OF_TEXT, PAD), special)
        end = special[END_OF_TEXT]
        return cls(context_length, start_id=end, end_id=end, pad_id=special[PAD])

    def batch(self, pairs: Pairs, rows: Array) -> Batch:
        """Return the pairs with the numbers `rows`; a side longer than the context, with its end, is cut."""
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

    def lengths(self, pairs: Pairs) -> tuple[Array, Array]:
        """Return the positions (N,) of each source and of each target, ends included."""
        source, target = (
            np.minimum(side.lengths.astype(np.int64) + around, self.positions)
            for side, around in zip((pairs.sources, pairs.targets), self._around, strict=True)
        )
        return source, target

    def cut(self, pairs: Pairs) -> int:
        """Return the number of pairs that are longer than the context."""
        source, target = (self.positions - around for around in self._around)
        return int(((pairs.sources.lengths > source) | (pairs.targets.lengths > target)).sum())


def make_objective(
    name: str,
    length: int,
    tokenizer: Tokenizer,
    document_mask: bool = False,
    facts: Mapping[str, Any] | None = None,
    masking: Masking = STANDARD,
) -> StreamObjective | PairObjective:
    """Return the objective `name` for blocks of `length` tokens, or for pairs of at most `length` positions a side.

    With `document_mask`, batches number the documents of each row. `facts` is the table [run] of a run's config.toml,
    which holds the special ids of an imported model or a published tokenizer. `masking` is for training; measurements
    use the default. Raises ValueError if a special token is missing.
    """
    facts = facts or {}
    special, separator = tokenizer.special_tokens | facts.get("roles", {}), None
    if document_mask:
        require_special_tokens("document_mask", (END_OF_TEXT,), special)
        separator = special[END_OF_TEXT]
    if name == "next-token" and masking.rows:
        return NextOrMaskedToken(length, special, tokenizer.vocab_size, separator, masking)
    if name == "next-token":
        return NextToken(length, separator)
    if name == "masked-token":
        return MaskedToken(length, special, tokenizer.vocab_size, separator, masking)
    if name == "denoising":
        return Denoising(length, special, sentence_stops(tokenizer))
    if "special_ids" not in facts:
        return PairObjective.of(special, length) if name == "sequence-pairs" else SpanCorruption(length, special)
    ids = ids_of("encoder-decoder", facts, tokenizer)
    if ids.start is None or not ids.stops:
        missing = "decoder_start_token_id" if ids.start is None else "eos_token_id"
        raise ValueError(f"the imported model's config.json has no {missing}: add it and import again")
    start, end = ids.start, ids.stops[0]
    if name == "span-corruption":
        return SpanCorruption(length, special, start_id=start, end_id=end)
    pad = end if ids.pad is None else ids.pad  # any id: padding is masked
    return PairObjective(length, start_id=start, end_id=end, pad_id=pad, before=ids.before, after=ids.after)


def require_special_tokens(
    purpose: str, names: Iterable[str], special: Mapping[str, int], option: str = "`special_tokens`"
) -> None:
    """Raise ValueError if `special` lacks one of `names`; `option` of train-tokenizer adds them."""
    for name in names:
        if name not in special:
            nameable = name in ROLES.values()
            also = ", or name it in an imported model's tokenizer_config.json and import again" if nameable else ""
            raise ValueError(
                f"{purpose} needs the special token {name}, which the tokenizer lacks: train one that has it "
                f"(train-tokenizer with {option}){also}"
            )


def document_numbers(ids: Array, separator: int | None) -> Array | None:
    """Return the document number (B, P) of each position within its row; a separator begins a document."""
    return None if separator is None else np.cumsum(ids == separator, axis=1)


def validation_batch(
    stream: TokenStream, objective: StreamObjective, first: int, blocks: int, shard: Shard = ALL_ROWS
) -> Batch:
    """Return a rank's rows of the blocks [first, first + blocks) of a split, with the masks of seed 0 and epoch 0."""
    rows, belongs = shard.rows(min(blocks, stream.blocks - first))
    numbers = first + rows
    draws = np.stack([0 * numbers, 0 * numbers, numbers], axis=1)
    return objective.batch(stream, numbers * objective.length, draws).weighing_only(belongs)

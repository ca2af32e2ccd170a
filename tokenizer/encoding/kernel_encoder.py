"""Encoding with the kernels: tables shared by all threads, and one encoder with its own caches per thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tokenizer import first_use
from tokenizer.byte_level import BY_MERGES
from tokenizer.document_blocks import Block, as_readonly, cut, cut_within, single_block
from tokenizer.encoding.long_pretokens import encode_long
from tokenizer.encoding.merge_tables import (
    cut_table,
    made_by_rank,
    merge_table,
    merge_tokens,
    table_rows,
    token_table,
)
from tokenizer.kernels import encode as encode_kernel
from tokenizer.kernels import hash_tables as kernel
from tokenizer.kernels import long as long_kernel
from tokenizer.kernels import merges as apply_kernel
from tokenizer.kernels.caches import LARGE_ROW, SMALL_ROW, Caches
from tokenizer.kernels.cuts import Cuts
from tokenizer.kernels.tools import align
from tokenizer.kernels.trie_words import Pieces
from tokenizer.splitting.patterns import resolve_pattern
from tokenizer.splitting.pretokenize import CHUNK, NO_AUTOMATON, automaton_arrays, pretokenize
from tokenizer.splitting.splitter import Splitter
from tokenizer.workers import share_out

if TYPE_CHECKING:
    from tokenizer.bpe_vocabulary import BytePairVocabulary

SMALL_CACHE = 1 << 19  # rows of 32 bytes
LARGE_CACHE = 1 << 16  # rows of 128 bytes
SMALL_TEXT = 1 << 16  # `encode_to_list` keeps room for the ids of up to this many bytes
PART_IDS = 1 << 20  # ids of a part
PIECE = 1 << 20  # bytes that a thread encodes at once
REWRITTEN_PIECE = 1 << 18  # the same, if the rewritten text must stay in the L2 cache
BYTE = np.dtype(np.uint8)
NO_CUTS = Cuts(np.zeros(0, dtype=np.uint16), np.zeros(0, dtype=np.uint64))
NO_PIECES = Pieces(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), np.zeros(0))
CHUNKS_PER_CALL = 8  # of CHUNK pretokens: milliseconds, between which Ctrl-C is handled


class KernelTables:
    """Read-only tables of a vocabulary, shared by all threads. Tables for other kinds of vocabularies stay empty."""

    def __init__(self, pattern: Splitter):
        self.pattern = pattern
        self.automaton = automaton_arrays(pattern)
        none, nothing = np.zeros(1, dtype=np.int64), np.frombuffer(b"", dtype=np.uint8)
        self.tokens = kernel.Tokens(align(4 * table_rows(0), 0), np.zeros(table_rows(0), np.uint64), nothing, none)
        pairs = align(2 * table_rows(0), int(kernel.NOTHING))
        of_bytes = np.full(65536, kernel.NOTHING, dtype=np.uint64)
        self.merges = kernel.Merges(np.arange(256, dtype=np.int32), pairs, of_bytes)
        self.cuts = NO_CUTS
        self.pieces = NO_PIECES

    def encode_long(
        self, data: np.ndarray, start: int, end: int, out: np.ndarray, at: int, check: Callable[[], None]
    ) -> int:
        """Write the ids of a pretoken that is too long for the kernel to out[at:] and return their end."""
        raise NotImplementedError

    def pretokenize(self, block: Block) -> tuple[Block, Iterator[np.ndarray]]:
        """Return the block that the kernel encodes, and the ends of its pretokens in chunks."""
        return pretokenize(block, self.pattern)


class MergeTables(KernelTables):
    """The tables of merges of bytes.

    token_bytes: the bytes of each id, empty for none. byte_ids: int32 (256,). listed: the merges, int32 (n, 3).
    ranks: int64 (n,); the merges of the lowest rank come first, and among them the leftmost. by_merges: whether a
    pretoken becomes a token only if merging makes it. whole: bool, whether a pretoken may become the token.
    """

    def __init__(
        self,
        pattern: Splitter,
        token_bytes: list[bytes],
        byte_ids: np.ndarray,
        listed: np.ndarray,
        ranks: np.ndarray,
        *,
        by_merges: bool,
        whole: np.ndarray | bool = True,
    ):
        super().__init__(pattern)
        self.token_bytes = token_bytes
        self.byte_lengths = np.array([len(token) for token in token_bytes], dtype=np.int32)
        # Merging makes long tokens anyway, and a table would hold their megabytes a second time.
        found_whole = ((self.byte_lengths <= apply_kernel.SCRATCH) | (not by_merges)) & whole
        self.tokens = self._table_of(found_whole)
        # A piece of a pretoken may be looked up whole only if merging makes every token that is found whole.
        if by_merges:
            self.cuts = cut_table(self.token_bytes, listed)
        self.merges = merge_table(listed, ranks, byte_ids)
        # The id that each rank makes, or None if a merge may rank before the merges that make its parts.
        self.made_by = made_by_rank(listed, ranks) if long_kernel.monotone(listed, ranks, len(token_bytes)) else None
        if by_merges:
            # A whole pretoken may be looked up only if merging gives the same id; leave out all other tokens.
            parts = merge_tokens(self.tokens, self.merges)
            reached = (parts[:, 0] == 1) & (parts[:, 1] == np.arange(len(parts)))
            if not reached[np.diff(self.tokens.offsets) > 0].all():
                self.tokens = self._table_of(reached)

    def _table_of(self, wanted: np.ndarray) -> kernel.Tokens:
        """Return the table of the tokens where `wanted`, bool (tokens,), is true."""
        if wanted.all():
            return token_table(self.token_bytes)
        return token_table([token if keep else b"" for token, keep in zip(self.token_bytes, wanted, strict=True)])

    def encode_long(
        self, data: np.ndarray, start: int, end: int, out: np.ndarray, at: int, check: Callable[[], None]
    ) -> int:
        return encode_long(data, start, end, self, out, at, check)


class EncodingTables(MergeTables):
    """The tables of byte-level BPE."""

    def __init__(self, vocabulary: BytePairVocabulary):
        listed = vocabulary.merges
        super().__init__(
            vocabulary.pattern,
            [token or b"" for token in vocabulary.tokens] + [bytes([byte]) for byte in vocabulary.missing_bytes],
            vocabulary.byte_ids,
            listed,
            np.arange(len(listed)),
            by_merges=vocabulary.semantics == BY_MERGES,
        )


class Encoder:
    """One thread's encoder: bounded caches of recent pretokens, and scratch memory."""

    def __init__(self, tables: KernelTables):
        self.tables = tables
        self.caches = Caches(align(SMALL_CACHE * SMALL_ROW, 0), align(LARGE_CACHE * LARGE_ROW, 0))
        for cache in self.caches:
            cache.fill(0)  # so that the system allocates the pages now and not during encoding
        self.batch = np.zeros(1, dtype=encode_kernel.BATCH_RECORD)
        self.ends = np.empty(CHUNK, dtype=np.int64)
        automaton = NO_AUTOMATON if tables.automaton is None else tables.automaton
        self._tables = (*automaton, *tables.merges, *tables.cuts, *tables.tokens, *tables.pieces, *self.caches)
        # Arguments for a short text, which takes less time to encode than they take to create.
        self._offsets = np.zeros(2, dtype=np.int64)
        self._id_offsets = np.zeros(2, dtype=np.int64)
        self._state = np.zeros(8, dtype=np.int64)
        self._out = np.empty(SMALL_TEXT + 4, dtype=np.uint32)
        # Python converts signed integers faster, and no id has the upper bit set.
        self._ids, self._size, self._reached = self._out.view(np.int32).data, self._offsets.data, self._state.data
        arrays = (self._offsets, self._out, self._id_offsets, self._state, self.ends, self.batch)
        self._fixed = (*arrays, CHUNKS_PER_CALL, *self._tables)

    def encode(self, block: Block, check: Callable[[], None] = lambda: None) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all documents, uint32, and the offset of each document's ids, int64 (documents + 1,)."""
        if self.tables.automaton is None:
            block, ends_by_chunk = self.tables.pretokenize(block)
        state = np.zeros(8, dtype=np.int64)
        id_offsets = np.zeros(len(block.offsets), dtype=np.int64)
        out = np.empty(block.size + 4 if block.size <= REWRITTEN_PIECE else block.size // 2, dtype=np.uint32)
        state[encode_kernel.POSITION] = state[encode_kernel.START] = start = block.offsets[0]
        while state[encode_kernel.DOCUMENT] < len(block.offsets) - 1 and block.offsets[state[1] + 1] == start:
            state[encode_kernel.DOCUMENT] += 1  # empty documents at the very beginning
        if self.tables.automaton is not None:
            out = self._run(block, self.ends, out, id_offsets, state, check)
        else:
            state[encode_kernel.SCANNED] = len(block.offsets) - 1
            for ends in ends_by_chunk:
                state[encode_kernel.FIRST], state[encode_kernel.LAST] = 0, len(ends)
                out = self._run(block, ends, out, id_offsets, state, check)
        return out[: state[encode_kernel.OUT]], id_offsets

    def parts(self, block: Block) -> Iterator[np.ndarray]:
        """Yield the ids of one document in parts, uint32. Each part is overwritten by the next."""
        scanned = self.tables.automaton is None
        chunks = iter([self.ends])
        if scanned:
            block, chunks = self.tables.pretokenize(block)
        state, id_offsets = np.zeros(8, dtype=np.int64), np.zeros(2, dtype=np.int64)
        state[encode_kernel.POSITION] = state[encode_kernel.START] = block.offsets[0]
        out = np.empty(PART_IDS, dtype=np.uint32)
        for ends in chunks:
            if scanned:
                state[encode_kernel.SCANNED], state[encode_kernel.FIRST], state[encode_kernel.LAST] = 1, 0, len(ends)
            outcome = encode_kernel.MORE
            while outcome != encode_kernel.DONE:
                outcome = encode_kernel.encode(
                    block.data, block.offsets, out, id_offsets, state, ends, self.batch, CHUNKS_PER_CALL, *self._tables
                )
                yield out[: state[encode_kernel.OUT]]
                state[encode_kernel.OUT] = 0
                if outcome == encode_kernel.GROW and state[encode_kernel.NEEDED] > len(out):
                    out = np.empty(state[encode_kernel.NEEDED], dtype=np.uint32)
                elif outcome == encode_kernel.LONG:
                    first = state[encode_kernel.FIRST]
                    start, end = int(state[encode_kernel.START]), int(ends[first])
                    ids = np.empty(end - start, dtype=np.uint32)  # unused pages take no memory
                    size = self.tables.encode_long(block.data, start, end, ids, 0, lambda: None)
                    for done in range(0, size, PART_IDS):
                        yield ids[done : min(done + PART_IDS, size)]
                    state[encode_kernel.START], state[encode_kernel.FIRST] = end, first + 1

    def encode_to_list(self, text: bytes) -> list[int]:
        """Return the ids of one text."""
        if not 0 < len(text) <= SMALL_TEXT or self.tables.automaton is None:
            return self.encode(single_block(text))[0].view(np.int32).data.tolist()  # faster than array.tolist
        self._size[1] = len(text)
        self._state.fill(0)
        data = np.frombuffer(text, dtype=BYTE)
        if encode_kernel.encode(data, *self._fixed) != encode_kernel.DONE:
            block = Block(data, self._offsets)
            self._run(block, self.ends, self._out, self._id_offsets, self._state, lambda: None)
        return self._ids[: self._reached[encode_kernel.OUT]].tolist()

    def _run(
        self,
        block: Block,
        ends: np.ndarray,
        out: np.ndarray,
        id_offsets: np.ndarray,
        state: np.ndarray,
        check: Callable[[], None],
    ) -> np.ndarray:
        """Call the kernel until it is done. Return `out`, or the longer array that replaced it."""
        while True:
            outcome = encode_kernel.encode(
                block.data, block.offsets, out, id_offsets, state, ends, self.batch, CHUNKS_PER_CALL, *self._tables
            )
            if outcome == encode_kernel.DONE:
                return out
            check()
            if outcome == encode_kernel.GROW:
                out = _with_room(out, int(state[encode_kernel.OUT]), int(state[encode_kernel.NEEDED]))
            elif outcome == encode_kernel.LONG:
                first = state[encode_kernel.FIRST]
                end = ends[first]
                start, at = int(state[encode_kernel.START]), int(state[encode_kernel.OUT])
                state[encode_kernel.OUT] = self.tables.encode_long(block.data, start, int(end), out, at, check)
                state[encode_kernel.START] = end
                state[encode_kernel.FIRST] = first + 1
                documents = len(block.offsets) - 1
                while state[1] < documents and block.offsets[state[1] + 1] == end:
                    state[1] += 1
                    id_offsets[state[1]] = state[0]


def compile_encoding() -> None:
    """Compile the encoding kernel by encoding an empty text with empty tables."""
    Encoder(KernelTables(resolve_pattern("gpt2"))).encode(single_block(b""))


class EncoderPool:
    """Encoders lent to one thread at a time; their caches stay warm in between."""

    def __init__(self, make_tables: Callable[[], KernelTables]):
        self._make_tables = make_tables
        self._idle: list[Encoder] = []

    @cached_property
    def tables(self) -> KernelTables:
        if not first_use.is_compiled(encode_kernel.encode):
            first_use.begin("tables")
            compile_encoding()
            first_use.wait("tables")
        return self._make_tables()

    def take(self) -> Encoder:
        try:
            return self._idle.pop()
        except IndexError:
            return Encoder(self.tables)

    def give_back(self, encoder: Encoder) -> None:
        self._idle.append(encoder)

    def warm_up(self, threads: int) -> None:
        """Prepare the kernels, the tables, and an encoder for each thread."""
        encoders = [self.take() for _ in range(threads)]
        for encoder in encoders:
            encoder.encode(single_block(b""))
            self.give_back(encoder)

    def encode_to_list(self, text: bytes) -> list[int]:
        """As `Encoder.encode_to_list`."""
        encoder = self.take()
        try:
            return encoder.encode_to_list(text)
        finally:
            self.give_back(encoder)

    def parts(self, block: Block) -> Iterator[np.ndarray]:
        """As `Encoder.parts`."""
        encoder = self.take()
        try:
            yield from encoder.parts(Block(as_readonly(block.data), block.offsets))
        finally:
            self.give_back(encoder)

    def encode(self, block: Block, threads: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Encoder.encode`, on several threads; the ids do not depend on their number."""
        block = Block(as_readonly(block.data), block.offsets)
        rewrites = self.tables.pattern.rewrites
        target = REWRITTEN_PIECE if rewrites else PIECE
        if block.size <= target or (threads == 1 and not rewrites):
            encoder = self.take()
            try:
                return encoder.encode(block)
            finally:
                self.give_back(encoder)
        divide = cut_within if self.tables.pattern.splits_at_spaces else cut
        pieces = list(divide(block, target))
        encoders = [self.take() for _ in range(min(threads, len(pieces)))]
        results: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        joined = _Joined(block.size // 2)

        def worker(encoder: Encoder) -> Callable[[int, Callable[[], None]], None]:
            def work(index: int, check: Callable[[], None]) -> None:
                results[index] = encoder.encode(pieces[index], check)

            return work

        def done(index: int) -> None:
            while (next_one := len(joined.ends)) in results:
                joined.append(*results.pop(next_one))

        try:
            share_out(range(len(pieces)), [worker(encoder) for encoder in encoders], done)
        finally:
            for encoder in encoders:
                self.give_back(encoder)
        # Ends of the parts of documents, in bytes and in ids; every end of a document is one of them.
        byte_ends = np.concatenate([block.offsets[:1], *(piece.offsets[1:] for piece in pieces)])
        id_ends = np.concatenate([[0], *joined.ends])
        return joined.ids, id_ends[np.searchsorted(byte_ends, block.offsets, side="right") - 1]


class _Joined:
    """Concatenated ids of pieces.

    Each piece is appended as soon as its turn comes, so that its memory, still cached, is reused for the next piece:
    touching new memory takes longer than copying.
    """

    def __init__(self, room: int):
        self._out, self._size = np.empty(room, dtype=np.uint32), 0
        self.ends: list[np.ndarray] = []
        """Ends in `ids` of the documents of each piece."""

    def append(self, ids: np.ndarray, id_offsets: np.ndarray) -> None:
        start, self._size = self._size, self._size + len(ids)
        if self._size > len(self._out):
            self._out = _with_room(self._out, start, len(ids))
        self._out[start : self._size] = ids
        self.ends.append(start + id_offsets[1:])

    @property
    def ids(self) -> np.ndarray:
        return self._out[: self._size]


def _with_room(out: np.ndarray, used: int, more: int) -> np.ndarray:
    """Return a longer array that starts with the first `used` ids of `out`."""
    larger = np.empty(len(out) + max(more, len(out) // 2), dtype=np.uint32)
    larger[:used] = out[:used]  # the rest was never touched
    return larger

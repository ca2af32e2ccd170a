"""Encoding on the bulk paths: shared tables, one encoder with its own caches for each thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from tokenizer.documents import Block, as_readonly, cut, cut_within
from tokenizer.pretokenize import pretoken_ends
from tokenizer.vocabulary import BY_MERGES, BY_RANKS, Vocabulary
from tokenizer.workers import share_out

SMALL_CACHE = 1 << 18  # rows of 32 bytes
LARGE_CACHE = 1 << 16  # rows of 128 bytes
WORK_PER_CALL = 1_000_000  # heap steps on one long pretoken, about 0.2 s, between looks at Ctrl-C
NOTHING = np.uint64(0xFFFFFFFFFFFFFFFF)
LONGEST_RANKED_TOKEN = 4096


def _capacity(entries: int) -> int:
    """A power of two at least twice the entries."""
    return 1 << max(8, (2 * entries).bit_length())


class TokenTable:
    """Tokens found by their bytes."""

    def __init__(self, tokens: list[bytes | None]):
        from tokenizer import apply_kernel as kernel

        self.offsets = np.zeros(len(tokens) + 1, dtype=np.int64)
        np.cumsum([len(token or b"") for token in tokens], out=self.offsets[1:])
        self.blob = np.frombuffer(b"".join(token or b"" for token in tokens), dtype=np.uint8)
        self.slots = np.zeros(_capacity(len(tokens)), dtype=np.uint64)
        repeated = kernel.insert_tokens(self.slots, self.blob, self.offsets)
        if repeated >= 0:
            raise ValueError(f"two tokens have the bytes {tokens[repeated]!r}; the second has the id {repeated}")

    def pairs_by_bytes(self) -> np.ndarray:
        """Every two tokens that together are a token: int32 (n, 3), left, right, whole, by whole."""
        from tokenizer import apply_kernel as kernel

        last = len(self.offsets) - 1
        pairs = np.empty((4 * len(self.blob) // 3 + LONGEST_RANKED_TOKEN, 3), dtype=np.int32)
        done = used = 0
        while done < last:
            done, used = kernel.pairs_by_bytes(self.slots, self.blob, self.offsets, done, last, pairs, used)
            if done < last:
                pairs = np.concatenate([pairs, np.empty_like(pairs)])
        return pairs[:used]

    def merge_tokens(self, pairs: PairTable, below_own_rank: bool) -> np.ndarray:
        """What merging leaves of each token's bytes: int32 (tokens, 3), their number and the first two ids."""
        from tokenizer import apply_kernel as kernel

        last = len(self.offsets) - 1
        parts = np.zeros((last, 3), dtype=np.int32)
        for first in range(0, last, 1 << 16):
            stop = min(first + (1 << 16), last)
            kernel.merge_tokens(
                self.blob,
                self.offsets,
                first,
                stop,
                pairs.byte_ids,
                pairs.of_bytes,
                pairs.slots,
                below_own_rank,
                parts,
            )
        return parts


class PairTable:
    """Merges, int32 (n, 3), found by their pair, with their ranks. ValueError where a pair is repeated."""

    def __init__(self, merges: np.ndarray, ranks: np.ndarray, byte_ids: np.ndarray):
        from tokenizer import apply_kernel as kernel

        self.slots = np.empty((_capacity(len(merges)), 2), dtype=np.uint64)
        self.slots[:, 0] = NOTHING
        repeated = kernel.insert_pairs(self.slots, np.ascontiguousarray(merges), ranks.astype(np.int64))
        if repeated >= 0:
            raise ValueError(f"merge {repeated} joins a pair that an earlier merge joins")
        self.byte_ids = byte_ids
        self.of_bytes = np.empty(65536, dtype=np.uint64)
        kernel.fill_byte_pairs(byte_ids, self.slots, self.of_bytes)


def merges_from_ranks(tokens: list[bytes | None], byte_ids: np.ndarray) -> np.ndarray | None:
    """The merge list of a vocabulary that is given by ranks alone: int32 (n, 3), or None where it has none.

    Merging each token's bytes by the ranks below its own leaves the two parts it was made of. Where that
    holds for every token, merging by this list and by ranks give the same ids for every text.
    """
    longest = max((len(token) for token in tokens if token is not None), default=0)
    if longest > LONGEST_RANKED_TOKEN:
        raise ValueError(f"a token has {longest} bytes; {LONGEST_RANKED_TOKEN} are the most in a vocabulary by ranks")
    table = TokenTable(tokens)
    by_bytes = table.pairs_by_bytes()
    parts = table.merge_tokens(PairTable(by_bytes, by_bytes[:, 2], byte_ids), below_own_rank=True)
    merged = np.flatnonzero(np.diff(table.offsets) > 1)
    if (parts[merged, 0] != 2).any():
        return None
    return np.stack([parts[merged, 1], parts[merged, 2], merged.astype(np.int32)], axis=1)


def all_tokens_reachable(tokens: list[bytes | None], merges: np.ndarray, byte_ids: np.ndarray) -> bool:
    """Whether the merges make every token out of its own bytes, so that looking it up whole changes nothing."""
    pairs = PairTable(merges, np.arange(len(merges)), byte_ids)
    parts = TokenTable(tokens).merge_tokens(pairs, below_own_rank=False)
    return all(parts[i, 0] == 1 and parts[i, 1] == i for i, token in enumerate(tokens) if token is not None)


class EncodingTables:
    """What all threads read and none writes."""

    def __init__(self, vocabulary: Vocabulary):
        tokens = vocabulary.tokens
        self.pattern = vocabulary.pattern
        byte_ids = vocabulary.byte_ids
        if vocabulary.semantics == BY_RANKS:
            self.tokens = TokenTable(tokens)
            by_bytes = self.tokens.pairs_by_bytes()
            self.pairs = PairTable(by_bytes, by_bytes[:, 2], byte_ids)
            return
        self.pairs = PairTable(vocabulary.merges, np.arange(len(vocabulary.merges)), byte_ids)
        self.tokens = TokenTable(tokens)
        if vocabulary.semantics == BY_MERGES:
            # A whole pretoken may be looked up only where merging gives the same; so leave the others out.
            parts = self.tokens.merge_tokens(self.pairs, below_own_rank=False)
            reached = (parts[:, 0] == 1) & (parts[:, 1] == np.arange(len(parts)))
            if not reached[np.diff(self.tokens.offsets) > 0].all():
                self.tokens = TokenTable([t if ok else None for t, ok in zip(tokens, reached, strict=True)])


class Encoder:
    """One thread's encoder: bounded caches of recent pretokens, and scratch memory."""

    def __init__(self, tables: EncodingTables):
        from tokenizer import apply_kernel as kernel
        from tokenizer.encode_kernel import encode

        self.kernel = kernel
        self.encode_pretokens = encode
        self.tables = tables
        self.small = np.zeros((SMALL_CACHE, 4), dtype=np.uint64)
        self.large = np.zeros((LARGE_CACHE, 16), dtype=np.uint64)
        self.scratch = np.empty((3, kernel.SCRATCH), dtype=np.int32)
        self.values = np.empty(kernel.SCRATCH, dtype=np.uint64)
        self.heap = np.empty(2 * kernel.SCRATCH, dtype=np.uint64)
        self.packed = np.zeros(4, dtype=np.uint64)

    def encode(self, block: Block, check: Callable[[], None] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all documents, uint32, and where each document's begin, int64 (documents + 1,)."""
        tables, table, pairs = self.tables, self.tables.tokens, self.tables.pairs
        data = block.data
        state = np.zeros(2, dtype=np.int64)
        id_offsets = np.zeros(len(block.offsets), dtype=np.int64)
        out = np.empty(block.size // 3 + 64, dtype=np.uint32)
        start = int(block.offsets[0])
        while state[1] < len(block.offsets) - 1 and block.offsets[state[1] + 1] == start:
            state[1] += 1  # empty documents at the very beginning
        for ends in pretoken_ends(block, tables.pattern):
            if check is not None:
                check()
            needed = int(state[0]) + int(ends[-1]) - start + 4
            if needed > len(out):
                out = np.concatenate([out[: state[0]], np.empty(needed, dtype=np.uint32)])
            first = 0
            while first < len(ends):
                first = self.encode_pretokens(
                    data,
                    block.offsets,
                    start,
                    ends,
                    first,
                    len(ends),
                    pairs.byte_ids,
                    pairs.of_bytes,
                    pairs.slots,
                    table.slots,
                    table.blob,
                    table.offsets,
                    self.small,
                    self.large,
                    self.scratch,
                    self.values,
                    self.heap,
                    out,
                    id_offsets,
                    state,
                    self.packed,
                )
                if first < len(ends):
                    before = int(ends[first - 1]) if first else start
                    self._encode_long(data, before, int(ends[first]), out, state, check)
                    start = int(ends[first])
                    first += 1
                    while state[1] < len(block.offsets) - 1 and block.offsets[state[1] + 1] == start:
                        state[1] += 1
                        id_offsets[state[1]] = state[0]
            start = int(ends[-1])
        return out[: state[0]], id_offsets

    def _encode_long(self, data, start: int, end: int, out, state, check) -> None:
        """A pretoken too long for the scratch memory, in steps."""
        kernel, table = self.kernel, self.tables.tokens
        at = int(state[0])
        token = kernel.find_token(data, start, end, table.slots, table.blob, table.offsets)
        if token >= 0:
            out[at] = token
            state[0] += 1
            return
        n = end - start
        if n >= 2**31:
            raise ValueError(f"a single pretoken of {n} bytes is longer than the 2 GiB supported; cut the text")
        ids, nexts, previous = np.empty((3, n), dtype=np.int32)
        values = np.empty(n, dtype=np.uint64)
        heap = np.empty(2 * n, dtype=np.uint64)
        pairs = self.tables.pairs
        size = 0
        for first in range(0, n, WORK_PER_CALL):
            if check is not None:
                check()
            last = min(first + WORK_PER_CALL, n)
            size = kernel.heap_begin(
                data,
                start,
                first,
                last,
                n,
                pairs.byte_ids,
                pairs.of_bytes,
                ids,
                nexts,
                previous,
                values,
                heap,
                size,
            )
        while size:
            if check is not None:
                check()
            size = kernel.heap_merge(
                n, pairs.slots, np.uint64(2**32 - 1), ids, nexts, previous, values, heap, size, WORK_PER_CALL
            )
        state[0] = kernel.heap_ids(n, ids, nexts, out, at)


class EncoderPool:
    """Encoders lent to threads one at a time; their caches stay warm in between."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._idle: list[Encoder] = []

    @cached_property
    def tables(self) -> EncodingTables:
        return EncodingTables(self._vocabulary)

    def take(self) -> Encoder:
        try:
            return self._idle.pop()
        except IndexError:
            return Encoder(self.tables)

    def give_back(self, encoder: Encoder) -> None:
        self._idle.append(encoder)

    def encode(self, block: Block, threads: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Encoder.encode`, on several threads; the ids do not depend on how many."""
        block = Block(as_readonly(block.data), block.offsets)
        target = 1 << 20
        if threads == 1 or block.size <= target:
            encoder = self.take()
            try:
                return encoder.encode(block)
            finally:
                self.give_back(encoder)
        divide = cut_within if self.tables.pattern.automaton is not None else cut
        pieces = list(divide(block, target))
        encoders = [self.take() for _ in range(min(threads, len(pieces)))]
        results: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(pieces)

        def worker(encoder: Encoder):
            def work(index: int, check: Callable[[], None]) -> None:
                results[index] = encoder.encode(pieces[index], check)

            return work

        try:
            share_out(range(len(pieces)), [worker(encoder) for encoder in encoders], lambda index: None)
        finally:
            for encoder in encoders:
                self.give_back(encoder)
        return _join(block, pieces, results)


def _join(block: Block, pieces: list[Block], results: list) -> tuple[np.ndarray, np.ndarray]:
    ids = np.concatenate([part for part, _ in results])
    # Where the (parts of) documents end in bytes and in ids; a document's end is one of these places.
    byte_ends = np.concatenate([block.offsets[:1], *(piece.offsets[1:] for piece in pieces)])
    counts = np.concatenate([np.diff(id_offsets) for _, id_offsets in results])
    id_ends = np.concatenate([[0], np.cumsum(counts)])
    return ids, id_ends[np.searchsorted(byte_ends, block.offsets, side="right") - 1]

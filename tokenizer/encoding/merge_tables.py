"""Hash tables of tokens and merges for the kernels, and the merges that follow from ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenizer.kernels import hash_tables as kernel
from tokenizer.kernels import merges as apply_kernel
from tokenizer.kernels.cuts import WIDTH, Cuts, word_and_bits
from tokenizer.kernels.tools import SHORT, align


def table_rows(entries: int) -> int:
    """Return the rows of a hash table for `entries`: a power of two, at least twice as many."""
    return 1 << max(8, (2 * entries).bit_length())


def token_table(tokens: Sequence[bytes | None]) -> kernel.Tokens:
    """Return the hash table from bytes to tokens. ValueError if two tokens have the same bytes."""
    lengths = np.array([len(token or b"") for token in tokens], dtype=np.int64)
    offsets = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    longer = int((lengths >= SHORT).sum())
    table = kernel.Tokens(
        short=align(4 * table_rows(len(tokens) - longer), 0),
        long=np.zeros(table_rows(longer), dtype=np.uint64),
        blob=np.frombuffer(b"".join(token or b"" for token in tokens), dtype=np.uint8),
        offsets=offsets,
    )
    repeated = kernel.insert_tokens(table)
    if repeated >= 0:
        raise ValueError(f"two tokens have the bytes {tokens[repeated]!r}; the second has the id {repeated}")
    return table


def merge_table(listed: np.ndarray, ranks: np.ndarray, byte_ids: np.ndarray, room: int = 0) -> kernel.Merges:
    """Return the hash table from pairs to merges, int32 (n, 3), and their ranks. ValueError for a repeated pair."""
    pairs = align(2 * table_rows(len(listed) + room), int(kernel.NOTHING))
    repeated = kernel.insert_pairs(pairs, np.ascontiguousarray(listed), ranks.astype(np.int64))
    if repeated >= 0:
        raise ValueError(f"merge {repeated} joins a pair that an earlier merge joins")
    table = kernel.Merges(byte_ids, pairs, np.empty(65536, dtype=np.uint64))
    kernel.fill_byte_pairs(table)
    return table


def made_by_rank(listed: np.ndarray, ranks: np.ndarray) -> np.ndarray | None:
    """Return the id that each rank makes, int32, or None if a rank makes several. listed: the merges, int32 (n, 3)."""
    made = np.full(int(ranks.max(initial=-1)) + 1, -1, dtype=np.int32)
    made[ranks] = listed[:, 2]
    return made if (made[ranks] == listed[:, 2]).all() else None


def cut_table(token_bytes: Sequence[bytes], listed: np.ndarray) -> Cuts:
    """Return the contexts of the merges `listed`, int32 (n, 3). The Bloom filter has 16 to 32 bits for each merge."""
    ends = np.array([token[-WIDTH:].rjust(WIDTH, b"\0") for token in token_bytes], dtype=f"S{WIDTH}").view("<u4")
    begins = np.array([token[:WIDTH] for token in token_bytes], dtype=f"S{WIDTH}").view("<u4")
    lengths = np.array([min(len(token), WIDTH) for token in token_bytes])
    left, right = listed[:, 0], listed[:, 1]
    cuts = Cuts(np.zeros(65536, dtype=np.uint16), np.zeros(table_rows(len(listed)) >> 3, dtype=np.uint64))
    context = ends[left] | begins[right].astype(np.uint64) << np.uint64(8 * WIDTH)
    words, bits = word_and_bits.py_func(context, len(cuts.contexts))
    np.bitwise_or.at(cuts.contexts, words, bits)
    shapes = 1 << (WIDTH * (lengths[left] - 1) + lengths[right] - 1)
    np.bitwise_or.at(cuts.shapes, ends[left] >> 24 << 8 | begins[right] & 0xFF, shapes.astype(np.uint16))
    return cuts


def all_merges_of_ranks(tokens: list[bytes | None]) -> np.ndarray:
    """Return every pair of tokens that concatenate to a token: int32 (n, 3), left, right and merged, sorted by
    merged, then left.

    Applied as merges in this order, they give the same ids as joining by rank. While no join crosses the ends of a
    token, its bytes are joined in any text exactly as in isolation. So only one pair ever makes the token, and the
    order of merges that make the same token does not matter.
    """
    table = token_table(tokens)
    last = len(table.offsets) - 1
    longest = int(np.diff(table.offsets).max(initial=0))
    pairs = np.empty((4 * len(table.blob) // 3 + longest, 3), dtype=np.int32)
    done = used = 0
    while done < last:
        done, used = kernel.pairs_by_bytes(table, done, last, pairs, used)
        if done < last:
            pairs = np.concatenate([pairs, np.empty_like(pairs)])
    pairs = pairs[:used]
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0], pairs[:, 2]))]


def merge_tokens(table: kernel.Tokens, merges: kernel.Merges, learn: bool = False) -> np.ndarray:
    """Merge the bytes of each token. Return int32 (tokens, 3): the number of remaining ids, and the first two.

    With `learn`, two remaining ids become a merge for the tokens that follow; see `apply_kernel.merge_tokens`.
    """
    last = len(table.offsets) - 1
    parts = np.zeros((last, 3), dtype=np.int32)
    memory = np.zeros(1, dtype=apply_kernel.MERGE_TOKENS_RECORD)
    for first in range(0, last, 1 << 14):
        stop = min(first + (1 << 14), last)
        if apply_kernel.merge_tokens(table, first, stop, merges, memory, learn, parts) < stop:
            break
    return parts


def merges_from_ranks(tokens: list[bytes | None], byte_ids: np.ndarray) -> np.ndarray | None:
    """Return the merge list of a vocabulary given by ranks: int32 (n, 3), or None if there is none.

    Merging a token's bytes with the merges of all earlier tokens must leave two parts. If this holds for every token,
    this list and the ranks give the same ids for every text: before a pair is joined by rank, its bytes have been
    merged exactly as in the token alone.
    """
    table = token_table(tokens)
    none = np.empty((0, 3), dtype=np.int32)
    merges = merge_table(none, none[:, 2], byte_ids, room=len(tokens))
    parts = merge_tokens(table, merges, learn=True)
    merged = np.flatnonzero(np.diff(table.offsets) > 1)
    if (parts[merged, 0] != 2).any():
        return None
    return np.stack([parts[merged, 1], parts[merged, 2], merged.astype(np.int32)], axis=1)


def all_tokens_reachable(tokens: list[bytes | None], merges: np.ndarray, byte_ids: np.ndarray) -> bool:
    """Return whether merging its own bytes makes every token, so that looking up whole pretokens changes no ids."""
    table = token_table(tokens)
    parts = merge_tokens(table, merge_table(merges, np.arange(len(merges)), byte_ids))
    return all(parts[i, 0] == 1 and parts[i, 1] == i for i, token in enumerate(tokens) if token is not None)

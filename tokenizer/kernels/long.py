"""Merging a very long pretoken, such as a megabyte of one letter, in time proportional to its bytes.

Where every merge ranks behind those that make its two parts, which `monotone` tells, no merge makes a pair of lower
rank than its own. So pairs go into buckets by rank, and one bucket after the other is emptied: all its merges
first, then the pairs that these have made. That needs no heap, and the memory that each step waits for is known
beforehand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tables import find_pair, pair_bucket, pair_key
from tokenizer.kernels.tools import inlined, kernel, prefetch

NONE, FRESH = -1, -2  # instead of a rank: no pair that merges starts here; one that is yet to be looked up
ID, NEXT, PREVIOUS, RANK, NODE = range(5)  # parts of a node, and their number
COUNT, OLDER, FIRST, CHUNK = 0, 1, 2, 16  # parts of a chunk, and its size, which is a cache line's
PLACES = CHUNK - FIRST
BEGUN, CURRENT, CHUNKS, FREE = range(4)  # in `state`
NEW_STATE = 0, 0, 0, NONE
AHEAD = 8


class Long(NamedTuple):
    """Memory for n bytes, which may be used again once all buckets are empty."""

    nodes: np.ndarray  # int32, NODE for each byte: id, neighbours, and the rank of the pair that starts here
    newest: np.ndarray  # int32, for each rank: the chunk of its bucket that has room, or NONE
    chunks: np.ndarray  # int32, CHUNK for each: how many places it holds, the chunk filled before it, and the places
    done: np.ndarray  # int32: where merges of one bucket were made
    state: np.ndarray  # int64 (4,): bytes laid out, the rank at hand, chunks ever used, the first free one


def make_long(n: int, ranks: int) -> Long:
    return Long(
        nodes=np.empty(NODE * n, dtype=np.int32),
        newest=np.full(ranks, NONE, dtype=np.int32),
        # A merge takes one place out of the buckets and puts up to two in.
        chunks=np.empty(CHUNK * (2 * n // PLACES + min(ranks, 2 * n) + 1), dtype=np.int32),
        done=np.empty(n // 2 + 1, dtype=np.int32),
        state=np.array(NEW_STATE, dtype=np.int64),
    )


def monotone(listed: np.ndarray, ranks: np.ndarray, tokens: int) -> bool:
    """Whether every merge, int32 (n, 3), ranks behind those that make its parts."""
    made = np.full(tokens, NONE, dtype=np.int64)
    np.maximum.at(made, listed[:, 2], ranks)
    return bool((np.maximum(made[listed[:, 0]], made[listed[:, 1]]) < ranks).all())


@inlined
def _push(chunks, newest, state, rank, place):
    """Put a place into the bucket of a rank."""
    chunk = np.int64(newest[rank])
    if chunk == NONE or chunks[CHUNK * chunk + COUNT] == PLACES:
        new = state[FREE]
        if new == NONE:
            new = state[CHUNKS]
            state[CHUNKS] += 1
        else:
            state[FREE] = chunks[CHUNK * new + OLDER]
        chunks[CHUNK * new + COUNT] = 0
        chunks[CHUNK * new + OLDER] = chunk
        newest[rank] = new
        chunk = new
    chunks[CHUNK * chunk + FIRST + chunks[CHUNK * chunk + COUNT]] = place
    chunks[CHUNK * chunk + COUNT] += 1


@kernel
def begin(data, start, n, merges, long, work):
    """Lay out up to `work` more bytes of a pretoken of n bytes."""
    nodes = long.nodes
    chunks = long.chunks
    newest = long.newest
    state = long.state
    first = state[BEGUN]
    last = min(first + work, n)
    for i in range(first, last):
        nodes[NODE * i + ID] = merges.byte_ids[data[start + i]]
        nodes[NODE * i + NEXT] = i + 1
        nodes[NODE * i + PREVIOUS] = i - 1
        rank = np.int64(NONE)
        if i < n - 1:
            value = merges.of_bytes[np.int64(data[start + i]) << 8 | np.int64(data[start + i + 1])]
            rank = np.int64(np.int32(value >> np.uint64(32)))
        nodes[NODE * i + RANK] = rank
        if rank != NONE:
            _push(chunks, newest, state, rank, i)
    long.state[BEGUN] = last


@inlined
def _look_up(left, right, nodes, pairs, chunks, newest, state):
    """Find the pair of two neighbours and put it into its bucket."""
    value = find_pair(pairs, pair_key(nodes[NODE * left + ID], nodes[NODE * right + ID]))
    rank = np.int64(np.int32(value >> np.uint64(32)))
    nodes[NODE * left + RANK] = rank
    if rank != NONE:
        _push(chunks, newest, state, rank, left)


@inlined
def _merge_at(place, n, made, nodes):
    """Merge the pair that starts at a place into the id `made`."""
    gone = np.int64(nodes[NODE * place + NEXT])
    after = np.int64(nodes[NODE * gone + NEXT])
    nodes[NODE * place + ID] = made
    nodes[NODE * place + NEXT] = after
    nodes[NODE * place + RANK] = FRESH
    nodes[NODE * gone + RANK] = NONE
    if after < n:
        nodes[NODE * after + PREVIOUS] = place
    return after


@kernel
def merge(n, merges, made_by, long, work):
    """Empty buckets until about `work` places are done; whether any is left. made_by: int32, the id each rank makes."""
    nodes = long.nodes
    chunks = long.chunks
    newest = long.newest
    done = long.done
    state = long.state
    pairs = merges.pairs
    for rank in range(state[CURRENT], len(newest)):
        state[CURRENT] = rank
        if work <= 0:
            return True
        chunk = np.int64(newest[rank])
        merged = 0
        while chunk != NONE:
            count = np.int64(chunks[CHUNK * chunk + COUNT])
            for k in range(count):
                prefetch(nodes, NODE * np.int64(chunks[CHUNK * chunk + FIRST + k]))
            for k in range(count):
                place = np.int64(chunks[CHUNK * chunk + FIRST + k])
                if nodes[NODE * place + RANK] != rank:
                    continue  # the pair that started here is no more
                before = np.int64(nodes[NODE * place + PREVIOUS])
                if before >= 0 and nodes[NODE * before + RANK] == rank:
                    continue  # a run of one symbol, which is merged from its left end
                while True:
                    done[merged] = place
                    merged += 1
                    place = _merge_at(place, n, made_by[rank], nodes)
                    if place == n or nodes[NODE * place + RANK] != rank:
                        break
            work -= count
            older = np.int64(chunks[CHUNK * chunk + OLDER])
            chunks[CHUNK * chunk + OLDER] = state[FREE]
            state[FREE] = chunk
            chunk = older
        newest[rank] = NONE
        # From the right, so that of two neighbours made here the left one looks the pair up, once.
        for k in range(merged - 1, -1, -1):
            if k >= AHEAD:
                place = np.int64(done[k - AHEAD])
                after = np.int64(nodes[NODE * place + NEXT])
                before = np.int64(nodes[NODE * place + PREVIOUS])
                here = nodes[NODE * place + ID]
                if after < n:
                    prefetch(pairs, pair_bucket(pairs, pair_key(here, nodes[NODE * after + ID])))
                if before >= 0:
                    prefetch(pairs, pair_bucket(pairs, pair_key(nodes[NODE * before + ID], here)))
            place = np.int64(done[k])
            after = np.int64(nodes[NODE * place + NEXT])
            nodes[NODE * place + RANK] = NONE
            if after < n:
                _look_up(place, after, nodes, pairs, chunks, newest, state)
            before = np.int64(nodes[NODE * place + PREVIOUS])
            if before >= 0 and nodes[NODE * before + RANK] != FRESH:
                _look_up(before, place, nodes, pairs, chunks, newest, state)
    return False


@kernel
def write(n, long, out, at):
    """Write the ids that are left to `out` from `at` on; where they end."""
    place = np.int64(0)
    while place < n:
        out[at] = long.nodes[NODE * place + ID]
        at += 1
        place = np.int64(long.nodes[NODE * place + NEXT])
    return at

"""Merging a very long pretoken, such as a megabyte of one letter, in time proportional to its bytes.

This needs a vocabulary in which every merge ranks after the merges that make its parts (see `monotone`). Then no merge
makes a pair of lower rank than its own. Pairs go into one bucket per rank, and the buckets are emptied in order: first
all merges of a bucket, then the look-up of the pairs they made. This needs no heap, and all memory accesses can be
prefetched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.hash_tables import find_pair, pair_bucket, pair_key
from tokenizer.kernels.tools import inlined, kernel, prefetch

NONE, FRESH = -1, -2  # in place of a rank: no merge starts here; pair not looked up yet
ID, NEXT, PREVIOUS, RANK, NODE = range(5)  # fields of a node, and their number
COUNT, OLDER, FIRST, CHUNK = 0, 1, 2, 16  # fields of a chunk, and its size: one cache line
PLACES = CHUNK - FIRST
BEGUN, CURRENT, CHUNKS, FREE = range(4)  # in `state`
NEW_STATE = 0, 0, 0, NONE
AHEAD = 8  # prefetch distance in merges


class Long(NamedTuple):
    """Arrays for a pretoken of n bytes; reusable once all buckets are empty."""

    nodes: np.ndarray  # int32, NODE per byte: id, neighbours, and rank of the pair that starts here
    newest: np.ndarray  # int32, per rank: newest chunk of its bucket, or NONE
    chunks: np.ndarray  # int32, CHUNK each: number of places, previous chunk of the bucket, places
    done: np.ndarray  # int32: places of the merges of one bucket
    state: np.ndarray  # int64 (4,): bytes laid out, current rank, chunks ever used, first free chunk


def make_long(n: int, ranks: int) -> Long:
    """Return arrays for a pretoken of up to n bytes and merges of `ranks` ranks, with empty buckets."""
    return Long(
        nodes=np.empty(NODE * n, dtype=np.int32),
        newest=np.full(ranks, NONE, dtype=np.int32),
        # A merge removes one place from the buckets and adds up to two.
        chunks=np.empty(CHUNK * (2 * n // PLACES + min(ranks, 2 * n) + 1), dtype=np.int32),
        done=np.empty(n // 2 + 1, dtype=np.int32),
        state=np.array(NEW_STATE, dtype=np.int64),
    )


def monotone(listed: np.ndarray, ranks: np.ndarray, tokens: int) -> bool:
    """Return whether every merge, int32 (n, 3), ranks after the merges that make its parts."""
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
    """Look up the pair of two neighbours and put it into its bucket."""
    value = find_pair(pairs, pair_key(nodes[NODE * left + ID], nodes[NODE * right + ID]))
    rank = np.int64(np.int32(value >> np.uint64(32)))
    nodes[NODE * left + RANK] = rank
    if rank != NONE:
        _push(chunks, newest, state, rank, left)


@inlined
def _merge_at(place, n, made, nodes):
    """Merge the pair that starts at a place into the id `made`. Return the next place."""
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
    """Empty buckets until about `work` places are done. Return whether any are left. made_by: int32, id per rank."""
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
                    continue  # stale: the pair that started here has gone
                before = np.int64(nodes[NODE * place + PREVIOUS])
                if before >= 0 and nodes[NODE * before + RANK] == rank:
                    continue  # inside a run of one symbol, which merges from its left end
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
        # From right to left, so that for two adjacent new ids only the left one looks up their pair.
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
    """Write the remaining ids to out[at:]. Return the end of the ids."""
    place = np.int64(0)
    while place < n:
        out[at] = long.nodes[NODE * place + ID]
        at += 1
        place = np.int64(long.nodes[NODE * place + NEXT])
    return at

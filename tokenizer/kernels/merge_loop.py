"""The merge loop of training, in time proportional to the number of replacements.

A pair first occurs in the merge that makes the newer of its two symbols. So arrays indexed by symbol find new pairs
without a hash table, and a pair's list of positions is written once. After that merge its count can only fall. A heap
entry may therefore be stale but never too low, and pairs too rare to be merged soon need not be on the heap.

Memory latency dominates, so nodes and records of the next positions are prefetched.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np

from tokenizer.kernels.byte_ties import insert_by_bytes
from tokenizer.kernels.pairs import (
    COUNT,
    FLOOR,
    HEAP,
    KEY,
    LENGTH,
    MERGES,
    NODE,
    NONE,
    PAIR,
    POOL,
    RECORD,
    RECORDS,
    START,
    SYMBOL,
    WORD,
    drop_first,
    free_record,
    leave,
    new_record,
    push,
    sink_first,
)
from tokenizer.kernels.tools import inlined, kernel, prefetch

NODES_AHEAD, RECORDS_AHEAD = 24, 8  # prefetch distances in positions

MORE, GROW, TIDY, REFILL, FINISHED = range(5)  # what `merge` returns


def step(function: Callable):
    """Compile a function into `merge`, its only caller, which takes less time than compiling it separately."""
    return numba.njit(inline="always")(function)


@kernel
def merge(training, merges, min_count, max_length, work):
    """Make merges until `merges` is full, about `work` replacements are done, memory is short, or no pair is left.

    merges: int32 (n, 2), filled from state[MERGES] on with pairs of symbols; merge k makes symbol 256 + k.
    Return MORE after `work` replacements, GROW if the records, the heap or the events must grow, TIDY if the pool is
    full, REFILL if the heap is empty but rarer pairs exist, or FINISHED.
    """
    records = training.records
    heap = training.heap
    lengths = training.lengths
    state = training.state
    while state[MERGES] < len(merges):
        if work <= 0:
            return MORE
        if state[HEAP] == 0:
            return FINISHED if state[FLOOR] <= min_count else REFILL
        record = heap[0, 2]
        if records[RECORD * record + COUNT] != heap[0, 0]:
            _correct_first(heap, records, training.free, training.on_heap, state, record)
            continue
        new = 256 + state[MERGES]
        occurrences = records[RECORD * record + LENGTH]
        # Each symbol, the new one included, makes at most one new pair as left and one as right neighbour.
        most_new_pairs = min(2 * new + 2, 2 * occurrences)
        if (
            state[RECORDS] + most_new_pairs > len(training.on_heap)
            or state[HEAP] + most_new_pairs > len(heap)
            or 2 * occurrences > len(training.events)
        ):
            return GROW
        if state[POOL] + 2 * occurrences > len(training.pool):
            return TIDY
        drop_first(heap, state)
        work -= occurrences
        left = records[RECORD * record + KEY] >> 32
        right = records[RECORD * record + KEY] & 0xFFFFFFFF
        if lengths[left] + lengths[right] > max_length:
            _give_up(training.nodes, training.pool, records, training.free, state, record)
            continue
        merges[state[MERGES], 0] = left
        merges[state[MERGES], 1] = right
        lengths[new] = lengths[left] + lengths[right]
        if len(training.by_bytes):
            insert_by_bytes(training, merges, new)
        state[MERGES] += 1
        made, happened = _replace(training, record, new, lengths[left], lengths[new])
        _list_new_pairs(training, made, happened)
        _offer_new_pairs(training, made, new)
        free_record(records, training.free, state, record)
    return FINISHED


@step
def _correct_first(heap, records, free, on_heap, state, record):
    """Move the heap's first entry, whose count has fallen, to its place."""
    count = records[RECORD * record + COUNT]
    if count >= state[FLOOR]:
        sink_first(heap, state[HEAP], count, heap[0, 1], record)
    else:
        drop_first(heap, state)
        on_heap[record] = 0
        if count == 0:
            free_record(records, free, state, record)


@step
def _give_up(nodes, pool, records, free, state, record):
    """Remove a pair that would make too long a token."""
    start = records[RECORD * record + START]
    for k in range(start, start + records[RECORD * record + LENGTH]):
        node = NODE * np.int64(pool[k])
        if nodes[node + PAIR] == record:
            nodes[node + PAIR] = NONE
    free_record(records, free, state, record)


@step
def _replace(training, record, new, to_second, to_after):
    """Replace the pair by the new symbol at all its positions, from left to right.

    to_second, to_after: bytes from the pair's first symbol to its second, and to the next symbol. Return the number of
    new pairs, listed in `made`, and of their occurrences, listed in `events`.
    """
    nodes = training.nodes
    counts = training.counts
    pool = training.pool
    records = training.records
    lengths = training.lengths
    state = training.state
    free = training.free
    on_heap = training.on_heap
    events = training.events
    made = 0
    happened = 0
    start = records[RECORD * record + START]
    end = start + records[RECORD * record + LENGTH]
    for k in range(start, end):
        _ask_ahead(nodes, pool, counts, records, lengths, k, end, to_second, to_after)
        position = np.int64(pool[k])
        node = NODE * position
        if nodes[node + PAIR] != record:
            continue
        word = nodes[node + WORD]
        weight = counts[word]
        second = node + NODE * to_second
        after = node + NODE * to_after
        following = np.int64(nodes[second + PAIR])
        # This removes an overlapping occurrence of the same pair before it is visited.
        nodes[second + PAIR] = NONE
        if following != record:
            leave(records, free, on_heap, state, following, weight)
        nodes[node + SYMBOL] = new
        nodes[after - NODE + SYMBOL] = new
        nodes[node + PAIR] = NONE
        if nodes[node - NODE + WORD] == word:
            neighbour = np.int64(nodes[node - NODE + SYMBOL])
            before = position - lengths[neighbour]
            preceding = np.int64(nodes[NODE * before + PAIR])
            if preceding != record:
                leave(records, free, on_heap, state, preceding, weight)
            pair = np.int64(training.with_left[neighbour])
            if pair == NONE:
                pair = new_record(records, free, on_heap, state, neighbour, new, 1)
                training.with_left[neighbour] = pair
                training.made[made] = pair
                made += 1
            _enter(nodes, records, events, happened, pair, before, weight)
            happened += 1
        if nodes[after + WORD] == word:
            neighbour = np.int64(nodes[after + SYMBOL])
            pair = np.int64(training.with_right[neighbour])
            if pair == NONE:
                pair = new_record(records, free, on_heap, state, new, neighbour, 1)
                training.with_right[neighbour] = pair
                training.made[made] = pair
                made += 1
            _enter(nodes, records, events, happened, pair, position, weight)
            happened += 1
    return made, happened


@step
def _ask_ahead(nodes, pool, counts, records, lengths, k, end, to_second, to_after):
    """Prefetch the nodes, counts and records that the replacement at the next positions uses."""
    if k + NODES_AHEAD < end:
        position = np.int64(pool[k + NODES_AHEAD])
        prefetch(nodes, NODE * (position - 1))
        prefetch(nodes, NODE * (position + to_after))
    if k + RECORDS_AHEAD < end:
        node = NODE * np.int64(pool[k + RECORDS_AHEAD])
        prefetch(counts, np.int64(nodes[node + WORD]))
        second = np.int64(nodes[node + NODE * to_second + PAIR])
        prefetch(records, RECORD * max(second, 0))
        before = node - NODE * lengths[nodes[node - NODE + SYMBOL]]
        if before > 0:
            prefetch(records, RECORD * max(np.int64(nodes[before + PAIR]), 0))


@inlined
def _enter(nodes, records, events, happened, record, position, weight):
    """Count a new pair at a position, and append it to `events`: the pair has no part of the pool yet."""
    records[RECORD * record + COUNT] += weight
    records[RECORD * record + LENGTH] += 1
    nodes[NODE * position + PAIR] = record
    events[happened, 0] = record
    events[happened, 1] = position


@step
def _list_new_pairs(training, made, happened):
    """Allocate parts of the pool for the new pairs, and write their positions."""
    records = training.records
    state = training.state
    for m in range(made):
        record = np.int64(training.made[m])
        records[RECORD * record + START] = state[POOL]
        state[POOL] += records[RECORD * record + LENGTH]
        records[RECORD * record + LENGTH] = 0
    for k in range(happened):
        record = np.int64(training.events[k, 0])
        position = np.int64(training.events[k, 1])
        if training.nodes[NODE * position + PAIR] == record:
            training.pool[records[RECORD * record + START] + records[RECORD * record + LENGTH]] = position
            records[RECORD * record + LENGTH] += 1


@step
def _offer_new_pairs(training, made, new):
    """Push the new pairs that are frequent enough on the heap, and clear their entries in `with_left`, `with_right`."""
    records = training.records
    on_heap = training.on_heap
    state = training.state
    for m in range(made):
        record = np.int64(training.made[m])
        left = records[RECORD * record + KEY] >> 32
        right = records[RECORD * record + KEY] & 0xFFFFFFFF
        if left == new:
            training.with_right[right] = NONE
        if right == new:
            training.with_left[left] = NONE
        on_heap[record] = 0
        if records[RECORD * record + COUNT] >= state[FLOOR]:
            push(training.heap, records, training.labels, on_heap, state, record)
        elif records[RECORD * record + COUNT] == 0:
            free_record(records, training.free, state, record)

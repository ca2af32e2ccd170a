"""Data of the merge loop of training: positions, records of pairs, and the heap of pairs.

Every byte of every distinct pretoken is a position, with a node of three numbers: the symbol, the record of the pair
that starts there, and the index of the pretoken. A symbol of several bytes is stored at its first and last position, so
that symbol lengths lead to both neighbours. Each pair has a record and a range of the pool with its positions in
ascending order, for replacement from left to right. A pool entry is stale, and skipped, if its node has another record;
so one write removes a position from a pair.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import inlined, kernel

SYMBOL, PAIR, WORD, NODE = range(4)  # fields of a node, and their number
COUNT, KEY, START, LENGTH, RECORD = range(5)  # fields of a record, and their number; KEY is left << 32 | right
# Indices in `state`: used lengths of the arrays; FLOOR is the least count on the heap.
RECORDS, FREE, POOL, HEAP, FLOOR, MERGES = range(6)
NONE = -1


class Training(NamedTuple):
    """All data of the merge loop. `index` is int32, or int64 from 2**31 positions or pretokens on."""

    nodes: np.ndarray  # index, NODE per position; the first and last position belong to no pretoken
    counts: np.ndarray  # int64, per pretoken
    pool: np.ndarray  # index: positions
    records: np.ndarray  # int64, RECORD per pair
    free: np.ndarray  # int32: free records
    on_heap: np.ndarray  # uint8, per record
    heap: np.ndarray  # int64 (n, 3): count, `label_key` and record; a heap with four children per node
    lengths: np.ndarray  # int64: bytes per symbol
    labels: np.ndarray  # int64, below 2**31, per symbol: smaller ones go first among pairs of equal count
    by_bytes: np.ndarray  # int32: symbols from the greatest bytes to the smallest; empty if ids break ties
    with_left: np.ndarray  # int32: record of (symbol, new symbol) during a merge, otherwise NONE
    with_right: np.ndarray  # int32: record of (new symbol, symbol) during a merge, otherwise NONE
    made: np.ndarray  # int32: records made by a merge
    events: np.ndarray  # index (n, 2): records and positions of the new pairs of a merge
    state: np.ndarray  # int64 (6,)


@kernel
def lay_out(data, offsets, symbol_of_byte, first, last, nodes):
    """Lay out the positions of pretokens first..last, one byte each, from 1 on."""
    for word in range(first, last):
        for i in range(offsets[word], offsets[word + 1]):
            node = NODE * (i + 1)
            nodes[node + SYMBOL] = symbol_of_byte[data[i]]
            nodes[node + PAIR] = NONE
            nodes[node + WORD] = word


@kernel
def count_first_pairs(nodes, counts, records, free, on_heap, state, first, last, record_of_pair):
    """Count the pairs of bytes that start at positions first..last. record_of_pair: int64 (65536,), initially NONE."""
    for position in range(first, last):
        node = NODE * position
        word = nodes[node + WORD]
        if nodes[node + NODE + WORD] == word:
            left = np.int64(nodes[node + SYMBOL])
            right = np.int64(nodes[node + NODE + SYMBOL])
            record = record_of_pair[left << 8 | right]
            if record == NONE:
                record = new_record(records, free, on_heap, state, left, right, 0)
                record_of_pair[left << 8 | right] = record
            records[RECORD * record + COUNT] += counts[word]
            records[RECORD * record + LENGTH] += 1
            nodes[node + PAIR] = record


@kernel
def place_first_pairs(records, state):
    """Allocate a range of the pool for every record."""
    for record in range(state[RECORDS]):
        records[RECORD * record + START] = state[POOL]
        state[POOL] += records[RECORD * record + LENGTH]
        records[RECORD * record + LENGTH] = 0


@kernel
def list_first_pairs(nodes, pool, records, first, last):
    """Write positions first..last to the ranges of their pairs."""
    for position in range(first, last):
        record = nodes[NODE * position + PAIR]
        if record != NONE:
            pool[records[RECORD * record + START] + records[RECORD * record + LENGTH]] = position
            records[RECORD * record + LENGTH] += 1


@inlined
def new_record(records, free, on_heap, state, left, right, held):
    """Return a record for a new pair. held: 1 if it must not be freed yet, else 0."""
    if state[FREE]:
        state[FREE] -= 1
        record = np.int64(free[state[FREE]])
    else:
        record = state[RECORDS]
        state[RECORDS] += 1
    records[RECORD * record + COUNT] = 0
    records[RECORD * record + KEY] = np.int64(left) << 32 | np.int64(right)
    records[RECORD * record + LENGTH] = 0
    on_heap[record] = held
    return record


@inlined
def leave(records, free, on_heap, state, record, weight):
    """Subtract `weight` from a pair's count, and free its record at 0 unless the heap has it."""
    if record != NONE:
        count = records[RECORD * record + COUNT] - weight
        records[RECORD * record + COUNT] = count
        if count == 0 and not on_heap[record]:
            free_record(records, free, state, record)


@inlined
def free_record(records, free, state, record):
    """Mark a record as unused, and add it to the free ones."""
    records[RECORD * record + COUNT] = NONE
    free[state[FREE]] = record
    state[FREE] += 1


@inlined
def _precedes(count, key, other_count, other_key):
    """Return whether a pair merges before another: larger count, then smaller left label, then smaller right label."""
    return count > other_count or (count == other_count and key < other_key)


@inlined
def label_key(labels, key):
    """Return the labels of the symbols of a pair as left << 32 | right."""
    return labels[key >> 32] << 32 | labels[key & 0xFFFFFFFF]


@inlined
def push(heap, records, labels, on_heap, state, record):
    """Push the pair of a record onto the heap, with its present count."""
    count = records[RECORD * record + COUNT]
    key = label_key(labels, records[RECORD * record + KEY])
    i = state[HEAP]
    state[HEAP] += 1
    on_heap[record] = 1
    while i > 0:
        parent = (i - 1) >> 2
        if not _precedes(count, key, heap[parent, 0], heap[parent, 1]):
            break
        heap[i, 0] = heap[parent, 0]
        heap[i, 1] = heap[parent, 1]
        heap[i, 2] = heap[parent, 2]
        i = parent
    heap[i, 0] = count
    heap[i, 1] = key
    heap[i, 2] = record


@inlined
def sink_first(heap, size, count, key, record):
    """Replace the heap's first entry, and restore the heap order."""
    i = 0
    while True:
        child = 4 * i + 1
        if child >= size:
            break
        best = child
        for other in range(child + 1, min(child + 4, size)):
            if _precedes(heap[other, 0], heap[other, 1], heap[best, 0], heap[best, 1]):
                best = other
        if not _precedes(heap[best, 0], heap[best, 1], count, key):
            break
        heap[i, 0] = heap[best, 0]
        heap[i, 1] = heap[best, 1]
        heap[i, 2] = heap[best, 2]
        i = best
    heap[i, 0] = count
    heap[i, 1] = key
    heap[i, 2] = record


@inlined
def drop_first(heap, state):
    """Remove the first pair from the heap."""
    state[HEAP] -= 1
    last = state[HEAP]
    sink_first(heap, last, heap[last, 0], heap[last, 1], heap[last, 2])


@kernel
def refill(records, labels, on_heap, heap, state, floor):
    """Push all pairs with a count of at least `floor` that are not on the heap.

    Return 0, or their number if the heap has no room.
    """
    wanted = 0
    for record in range(state[RECORDS]):
        if records[RECORD * record + COUNT] >= floor and not on_heap[record]:
            wanted += 1
    if state[HEAP] + wanted > len(heap):
        return wanted
    state[FLOOR] = floor
    for record in range(state[RECORDS]):
        if records[RECORD * record + COUNT] >= floor and not on_heap[record]:
            push(heap, records, labels, on_heap, state, record)
    return 0


@kernel
def tidy(nodes, pool, records, by_start, first, used):
    """Compact the pool. by_start: int64, the records in the order of their ranges.

    The ranges of by_start[:first] are compacted and fill pool[:used]. Return (first, used) after about a million
    entries.
    """
    work = 1_000_000
    while first < len(by_start) and work > 0:
        record = by_start[first]
        first += 1
        if records[RECORD * record + COUNT] > 0:
            start = records[RECORD * record + START]
            length = records[RECORD * record + LENGTH]
            work -= length
            records[RECORD * record + START] = used
            for k in range(start, start + length):
                if nodes[NODE * pool[k] + PAIR] == record:
                    pool[used] = pool[k]
                    used += 1
            records[RECORD * record + LENGTH] = used - records[RECORD * record + START]
    return first, used

"""What the merge loop of training works on: positions, the records of pairs, and the heap of pairs.

Every byte of every distinct pretoken is a position, a node of three numbers: a symbol, the record of the pair that
starts there, and the pretoken's number. A symbol of several bytes stands at its first and at its last position,
so that both neighbours are found by the lengths of symbols. Each pair has a record, and the positions where it may
start as a stretch of one pool, in ascending order, which is what replacing from left to right asks for. An entry whose
node says another record is stale and passed over; so a position leaves a pair by one write.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import inlined, kernel

SYMBOL, PAIR, WORD, NODE = range(4)  # parts of a node, and their number
COUNT, KEY, START, LENGTH, RECORD = range(5)  # parts of a pair's record, and their number; KEY is left << 32 | right
# In `state`: how much is used of each; FLOOR is the least count on the heap.
RECORDS, FREE, POOL, HEAP, FLOOR, MERGES, RUNS = range(7)
NONE = -1


class Training(NamedTuple):
    """All that the merge loop works on. `index` is int32, or int64 where there are 2**31 positions or pretokens."""

    nodes: np.ndarray  # index, NODE for each position; the first and the last position belong to no pretoken
    counts: np.ndarray  # int64, of each pretoken
    pool: np.ndarray  # index: positions
    records: np.ndarray  # int64, RECORD for each pair
    free: np.ndarray  # int32: records to be used again
    on_heap: np.ndarray  # uint8, for each record
    heap: np.ndarray  # int64 (n, 3): count, key and record, four children a node
    lengths: np.ndarray  # int64, bytes of each symbol
    with_left: np.ndarray  # int32, all NONE: during a merge, the record of (symbol, new one)
    with_right: np.ndarray  # int32, all NONE: the record of (new one, symbol)
    made: np.ndarray  # int32: the records made in a merge
    events: np.ndarray  # index (n, 2): records and positions of pairs that came to be in a merge
    runs: np.ndarray  # int64 (n, RUN): long pretokens that are mostly runs, see `run_kernel`
    old_runs: np.ndarray  # the same shape: the runs before a merge
    state: np.ndarray  # int64 (7,)


@kernel
def lay_out(data, offsets, symbol_of_byte, first, last, skipped, nodes):
    """Lay out the positions of pretokens first..last, one byte each, from 1 on. skipped: bytes not laid out so far."""
    for word in range(first, last):
        for i in range(offsets[word], offsets[word + 1]):
            node = NODE * (i + 1 - skipped)
            nodes[node + SYMBOL] = symbol_of_byte[data[i]]
            nodes[node + PAIR] = NONE
            nodes[node + WORD] = word


@kernel
def count_first_pairs(nodes, counts, records, free, on_heap, state, first, last, record_of_pair):
    """Count the pairs of bytes that start at positions first..last. record_of_pair: int64 (65536,), at first NONE."""
    for position in range(first, last):
        node = NODE * position
        word = nodes[node + WORD]
        if nodes[node + NODE + WORD] == word:
            left = np.int64(nodes[node + SYMBOL])
            right = np.int64(nodes[node + NODE + SYMBOL])
            record = first_record(records, free, on_heap, state, record_of_pair, left, right)
            records[RECORD * record + COUNT] += counts[word]
            records[RECORD * record + LENGTH] += 1
            nodes[node + PAIR] = record


@kernel
def place_first_pairs(records, state):
    """Give every record its stretch of the pool, to be filled."""
    for record in range(state[RECORDS]):
        records[RECORD * record + START] = state[POOL]
        state[POOL] += records[RECORD * record + LENGTH]
        records[RECORD * record + LENGTH] = 0


@kernel
def list_first_pairs(nodes, pool, records, first, last):
    """Put positions first..last into the stretches of their pairs."""
    for position in range(first, last):
        record = nodes[NODE * position + PAIR]
        if record != NONE:
            pool[records[RECORD * record + START] + records[RECORD * record + LENGTH]] = position
            records[RECORD * record + LENGTH] += 1


@inlined
def new_record(records, free, on_heap, state, left, right, held):
    """The number of a record for a pair that did not occur. held: 1 where it must not be freed yet, else 0."""
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
def first_record(records, free, on_heap, state, record_of_pair, left, right):
    """Return the number of the record of a pair of bytes."""
    record = record_of_pair[left << 8 | right]
    if record == NONE:
        record = new_record(records, free, on_heap, state, left, right, 0)
        record_of_pair[left << 8 | right] = record
    return record


@inlined
def leave(records, free, on_heap, state, record, weight):
    """Take `weight` occurrences out of a pair's count."""
    if record != NONE:
        count = records[RECORD * record + COUNT] - weight
        records[RECORD * record + COUNT] = count
        if count == 0 and not on_heap[record]:
            free_record(records, free, state, record)


@inlined
def free_record(records, free, state, record):
    records[RECORD * record + COUNT] = NONE
    free[state[FREE]] = record
    state[FREE] += 1


@inlined
def _precedes(count, key, other_count, other_key):
    """Whether a pair is merged before another: larger count, then smaller left, then smaller right id."""
    return count > other_count or (count == other_count and key < other_key)


@inlined
def push(heap, records, on_heap, state, record):
    count = records[RECORD * record + COUNT]
    key = records[RECORD * record + KEY]
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
    """Put an entry in the place of the heap's first one."""
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
    state[HEAP] -= 1
    last = state[HEAP]
    sink_first(heap, last, heap[last, 0], heap[last, 1], heap[last, 2])


@kernel
def refill(records, on_heap, heap, state, floor):
    """Put all pairs on the heap that occur at least `floor` times and are not on it.

    Returns 0, or how many they are where the heap has no room for them.
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
            push(heap, records, on_heap, state, record)
    return 0


@kernel
def tidy(nodes, pool, records, by_start, first, used):
    """Close the gaps in the pool. by_start: int64, the records in the order of their stretches; those before number
    `first` are done and fill the pool up to `used`. Returns (first, used), after about a million places."""
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

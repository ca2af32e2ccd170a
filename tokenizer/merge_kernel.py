"""The merge loop of training, in time proportional to the replacements made.

Every byte of every distinct pretoken is a position, a node of three numbers: a symbol, the record of the pair that
starts there, and the pretoken's number. A symbol of several bytes stands at its first and at its last position,
so that both neighbours are found by the lengths of symbols. Each pair has a record, and the positions where it may
start as a stretch of one pool, in ascending order, which is what replacing from left to right asks for. An entry whose
node says another record is stale and passed over; so a position leaves a pair by one write.

A pair first occurs in the very merge that makes the newer of its two symbols, so new pairs are found through arrays
indexed by symbol, no hash table is needed, and a stretch is written once. After that merge a pair's count can only
fall: a heap entry may be stale, but never too low; and pairs too rare to be merged soon need not be on the heap.

What takes time is waiting for memory, so the nodes and records of the positions to come are asked for beforehand.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernel_tools import (
    inlined,
    kernel,
    prefetch,
)

SYMBOL, PAIR, WORD, NODE = range(4)  # parts of a node, and their number
COUNT, KEY, START, LENGTH, RECORD = range(5)  # parts of a pair's record, and their number; KEY is left << 32 | right
RECORDS, FREE, POOL, HEAP, FLOOR, MERGES = range(6)  # in `state`: how much is used of each; least count on the heap
NONE = -1
NODES_AHEAD, RECORDS_AHEAD = 24, 8  # how many positions beforehand memory is asked for

MORE, GROW, TIDY, REFILL, FINISHED = range(5)  # what `merge` returns


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
def count_first_pairs(training, first, last, record_of_pair):
    """Count the pairs of bytes that start at positions first..last. record_of_pair: int64 (65536,), at first NONE."""
    nodes = training.nodes
    records = training.records
    for position in range(first, last):
        node = NODE * position
        word = nodes[node + WORD]
        if nodes[node + NODE + WORD] == word:
            left = np.int64(nodes[node + SYMBOL])
            right = np.int64(nodes[node + NODE + SYMBOL])
            record = record_of_pair[left << 8 | right]
            if record == NONE:
                record = _new_record(records, training.free, training.on_heap, training.state, left, right)
                record_of_pair[left << 8 | right] = record
            records[RECORD * record + COUNT] += training.counts[word]
            records[RECORD * record + LENGTH] += 1
            nodes[node + PAIR] = record


@kernel
def place_first_pairs(training):
    """Give every record its stretch of the pool, to be filled."""
    records = training.records
    for record in range(training.state[RECORDS]):
        records[RECORD * record + START] = training.state[POOL]
        training.state[POOL] += records[RECORD * record + LENGTH]
        records[RECORD * record + LENGTH] = 0


@kernel
def list_first_pairs(training, first, last):
    """Put positions first..last into the stretches of their pairs."""
    records = training.records
    for position in range(first, last):
        record = training.nodes[NODE * position + PAIR]
        if record != NONE:
            at = records[RECORD * record + START] + records[RECORD * record + LENGTH]
            training.pool[at] = position
            records[RECORD * record + LENGTH] += 1


@inlined
def _new_record(records, free, on_heap, state, left, right):
    if state[FREE]:
        state[FREE] -= 1
        record = np.int64(free[state[FREE]])
    else:
        record = state[RECORDS]
        state[RECORDS] += 1
    records[RECORD * record + COUNT] = 0
    records[RECORD * record + KEY] = np.int64(left) << 32 | np.int64(right)
    records[RECORD * record + LENGTH] = 0
    on_heap[record] = 0
    return record


@inlined
def _free_record(records, free, state, record):
    records[RECORD * record + COUNT] = NONE
    free[state[FREE]] = record
    state[FREE] += 1


@inlined
def _precedes(count, key, other_count, other_key):
    """Whether a pair is merged before another: larger count, then smaller left, then smaller right id."""
    return count > other_count or (count == other_count and key < other_key)


@inlined
def _push(heap, records, on_heap, state, record):
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
def _sink_first(heap, size, count, key, record):
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


@kernel
def refill(training, floor):
    """Put all pairs on the heap that occur at least `floor` times and are not on it.

    Returns 0, or how many they are where the heap has no room for them.
    """
    records = training.records
    on_heap = training.on_heap
    wanted = 0
    for record in range(training.state[RECORDS]):
        if records[RECORD * record + COUNT] >= floor and not on_heap[record]:
            wanted += 1
    if training.state[HEAP] + wanted > len(training.heap):
        return wanted
    training.state[FLOOR] = floor
    for record in range(training.state[RECORDS]):
        if records[RECORD * record + COUNT] >= floor and not on_heap[record]:
            _push(training.heap, records, on_heap, training.state, record)
    return 0


@kernel
def tidy(training, by_start, first, used):
    """Close the gaps in the pool. by_start: int64, the records in the order of their stretches; those before number
    `first` are done and fill the pool up to `used`. Returns (first, used), after about a million places."""
    nodes = training.nodes
    records = training.records
    pool = training.pool
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


@inlined
def _leave(records, free, on_heap, state, record, weight):
    """Take a position out of its pair."""
    if record != NONE:
        count = records[RECORD * record + COUNT] - weight
        records[RECORD * record + COUNT] = count
        if count == 0 and not on_heap[record]:
            _free_record(records, free, state, record)


@kernel
def merge(training, merges, min_count, max_length, work):
    """Make merges until `merges` is full, about `work` replacements are done, memory is short, or no pair is left.

    merges: int32 (n, 2), filled from state[MERGES] on with pairs of symbols; merge k makes symbol 256 + k.
    Returns MORE when there is more to do, GROW when the records, the heap or the events must grow, TIDY when the pool
    is full, REFILL when nothing is left on the heap but rarer pairs may be put there, or FINISHED.
    """
    nodes = training.nodes
    counts = training.counts
    pool = training.pool
    records = training.records
    heap = training.heap
    lengths = training.lengths
    state = training.state
    free = training.free
    on_heap = training.on_heap
    with_left = training.with_left
    with_right = training.with_right
    made_records = training.made
    events = training.events
    while state[MERGES] < len(merges):
        if work <= 0:
            return MORE
        if state[HEAP] == 0:
            return FINISHED if state[FLOOR] <= min_count else REFILL
        new = 256 + state[MERGES]
        record = heap[0, 2]
        count = records[RECORD * record + COUNT]
        key = records[RECORD * record + KEY]
        if count != heap[0, 0]:
            if count >= state[FLOOR]:
                _sink_first(heap, state[HEAP], count, key, record)
            else:
                state[HEAP] -= 1
                last = state[HEAP]
                _sink_first(heap, last, heap[last, 0], heap[last, 1], heap[last, 2])
                on_heap[record] = 0
                if count == 0:
                    _free_record(records, free, state, record)
            continue
        start = records[RECORD * record + START]
        length = records[RECORD * record + LENGTH]
        # Each symbol can stand once to the left and once to the right of the new one, itself included.
        most_new_pairs = min(2 * new + 2, 2 * length)
        if (
            state[RECORDS] + most_new_pairs > len(on_heap)
            or state[HEAP] + most_new_pairs > len(heap)
            or 2 * length > len(events)
        ):
            return GROW
        if state[POOL] + 2 * length > len(pool):
            return TIDY
        state[HEAP] -= 1
        last = state[HEAP]
        _sink_first(heap, last, heap[last, 0], heap[last, 1], heap[last, 2])
        left = key >> 32
        right = key & 0xFFFFFFFF
        to_second = lengths[left]
        to_after = to_second + lengths[right]
        if to_after > max_length:
            for k in range(start, start + length):
                if nodes[NODE * pool[k] + PAIR] == record:
                    nodes[NODE * pool[k] + PAIR] = NONE
            _free_record(records, free, state, record)
            continue
        merges[state[MERGES], 0] = left
        merges[state[MERGES], 1] = right
        state[MERGES] += 1
        lengths[new] = to_after
        work -= length

        made = 0
        happened = 0
        for k in range(start, start + length):
            ahead = k + NODES_AHEAD
            if ahead < start + length:
                prefetch(nodes, NODE * np.int64(pool[ahead] - 1))
                prefetch(nodes, NODE * np.int64(pool[ahead] + to_after))
            ahead = k + RECORDS_AHEAD
            if ahead < start + length:
                node = NODE * np.int64(pool[ahead])
                prefetch(counts, np.int64(nodes[node + WORD]))
                second = np.int64(nodes[node + NODE * to_second + PAIR])
                prefetch(records, RECORD * max(second, 0))
                before = node - NODE * lengths[nodes[node - NODE + SYMBOL]]
                if before > 0:
                    prefetch(records, RECORD * max(np.int64(nodes[before + PAIR]), 0))
            position = np.int64(pool[k])
            node = NODE * position
            if nodes[node + PAIR] != record:
                continue
            word = nodes[node + WORD]
            weight = counts[word]
            second = node + NODE * to_second
            after = node + NODE * to_after
            following = np.int64(nodes[second + PAIR])
            # An overlapping occurrence of the same pair is gone before it is visited.
            nodes[second + PAIR] = NONE
            if following != record:
                _leave(records, free, on_heap, state, following, weight)
            nodes[node + SYMBOL] = new
            nodes[after - NODE + SYMBOL] = new
            nodes[node + PAIR] = NONE
            if nodes[node - NODE + WORD] == word:
                neighbour = np.int64(nodes[node - NODE + SYMBOL])
                before = position - lengths[neighbour]
                preceding = np.int64(nodes[NODE * before + PAIR])
                if preceding != record:
                    _leave(records, free, on_heap, state, preceding, weight)
                pair = np.int64(with_left[neighbour])
                if pair == NONE:
                    pair = _new_record(records, free, on_heap, state, neighbour, new)
                    on_heap[pair] = 1  # so that it is not freed before the merge is over
                    with_left[neighbour] = pair
                    made_records[made] = pair
                    made += 1
                records[RECORD * pair + COUNT] += weight
                records[RECORD * pair + LENGTH] += 1
                nodes[NODE * before + PAIR] = pair
                events[happened, 0] = pair
                events[happened, 1] = before
                happened += 1
            if nodes[after + WORD] == word:
                neighbour = np.int64(nodes[after + SYMBOL])
                pair = np.int64(with_right[neighbour])
                if pair == NONE:
                    pair = _new_record(records, free, on_heap, state, new, neighbour)
                    on_heap[pair] = 1
                    with_right[neighbour] = pair
                    made_records[made] = pair
                    made += 1
                records[RECORD * pair + COUNT] += weight
                records[RECORD * pair + LENGTH] += 1
                nodes[node + PAIR] = pair
                events[happened, 0] = pair
                events[happened, 1] = position
                happened += 1

        for m in range(made):
            candidate = np.int64(made_records[m])
            records[RECORD * candidate + START] = state[POOL]
            state[POOL] += records[RECORD * candidate + LENGTH]
            records[RECORD * candidate + LENGTH] = 0
        for k in range(happened):
            candidate = np.int64(events[k, 0])
            position = np.int64(events[k, 1])
            if nodes[NODE * position + PAIR] == candidate:
                pool[records[RECORD * candidate + START] + records[RECORD * candidate + LENGTH]] = position
                records[RECORD * candidate + LENGTH] += 1
        for m in range(made):
            candidate = np.int64(made_records[m])
            candidate_key = records[RECORD * candidate + KEY]
            first = candidate_key >> 32
            second = candidate_key & 0xFFFFFFFF
            if first == new:
                with_right[second] = NONE
            if second == new:
                with_left[first] = NONE
            on_heap[candidate] = 0
            if records[RECORD * candidate + COUNT] >= state[FLOOR]:
                _push(heap, records, on_heap, state, candidate)
            elif records[RECORD * candidate + COUNT] == 0:
                _free_record(records, free, state, candidate)
        _free_record(records, free, state, record)
    return FINISHED

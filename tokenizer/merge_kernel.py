"""The merge loop of training, in time proportional to the replacements made.

Every byte of every distinct pretoken is a position, a row of `nodes` (int, (positions, 8)): its symbol, its
neighbours in the pretoken, the pretoken's number, the record of the pair that starts there, and its
neighbours in the list of that pair's occurrences. A position so leaves a pair in constant time. Each pair has
a record in `pairs` (int64, (records, 5)). A pair first occurs in the very merge that makes the newer of its
two symbols, so new pairs are found through arrays indexed by symbol and no hash table is needed; and its
occurrences are listed in the order of the positions, which is what replacing from left to right asks for.
After that merge its count can only fall: a heap entry may be stale, but never too low.
"""

from __future__ import annotations

import numba

SYMBOL, PREVIOUS, NEXT, WORD, PAIR, PREVIOUS_SAME, NEXT_SAME = range(7)  # columns of `nodes`
COUNT, LEFT, RIGHT, HEAD, TAIL = range(5)  # columns of `pairs`
RECORDS, FREE, HEAP, MERGES = range(4)  # in `state`: records ever used, free ones, heap entries, merges made
NONE = -1


@numba.njit(nogil=True, cache=True)
def initialize(data, offsets, symbol_of_byte, nodes):
    """Lay out the positions, one byte each."""
    for word in range(len(offsets) - 1):
        start = offsets[word]
        end = offsets[word + 1]
        for i in range(start, end):
            nodes[i, SYMBOL] = symbol_of_byte[data[i]]
            nodes[i, PREVIOUS] = i - 1 if i > start else NONE
            nodes[i, NEXT] = i + 1 if i + 1 < end else NONE
            nodes[i, WORD] = word
            nodes[i, PAIR] = NONE


@numba.njit(nogil=True, cache=True)
def list_first_pairs(nodes, counts, pairs, record_of_pair, state):
    """List the occurrences of every pair of bytes; `record_of_pair` is int64 (65536,), all NONE."""
    for i in range(len(nodes)):
        following = nodes[i, NEXT]
        if following == NONE:
            continue
        left = nodes[i, SYMBOL]
        right = nodes[following, SYMBOL]
        record = record_of_pair[left * 256 + right]
        if record == NONE:
            record = state[RECORDS]
            state[RECORDS] += 1
            record_of_pair[left * 256 + right] = record
            pairs[record, COUNT] = 0
            pairs[record, LEFT] = left
            pairs[record, RIGHT] = right
            pairs[record, HEAD] = NONE
            pairs[record, TAIL] = NONE
        _append(nodes, pairs, record, i, counts[nodes[i, WORD]])


@numba.njit(inline="always")
def _append(nodes, pairs, record, i, weight):
    tail = pairs[record, TAIL]
    nodes[i, PAIR] = record
    nodes[i, PREVIOUS_SAME] = tail
    nodes[i, NEXT_SAME] = NONE
    if tail == NONE:
        pairs[record, HEAD] = i
    else:
        nodes[tail, NEXT_SAME] = i
    pairs[record, TAIL] = i
    pairs[record, COUNT] += weight


@numba.njit(inline="always")
def _remove(nodes, pairs, i, weight):
    record = nodes[i, PAIR]
    if record != NONE:
        before = nodes[i, PREVIOUS_SAME]
        after = nodes[i, NEXT_SAME]
        if before == NONE:
            pairs[record, HEAD] = after
        else:
            nodes[before, NEXT_SAME] = after
        if after == NONE:
            pairs[record, TAIL] = before
        else:
            nodes[after, PREVIOUS_SAME] = before
        pairs[record, COUNT] -= weight
        nodes[i, PAIR] = NONE


@numba.njit(inline="always")
def _new_record(pairs, free, state, left, right):
    if state[FREE]:
        state[FREE] -= 1
        record = free[state[FREE]]
    else:
        record = state[RECORDS]
        state[RECORDS] += 1
    pairs[record, COUNT] = 0
    pairs[record, LEFT] = left
    pairs[record, RIGHT] = right
    pairs[record, HEAD] = NONE
    pairs[record, TAIL] = NONE
    return record


@numba.njit(nogil=True, cache=True)
def _forget(nodes, pairs, free, state, record):
    """Drop a pair that will never be merged; its positions no longer start a pair."""
    i = pairs[record, HEAD]
    while i != NONE:
        nodes[i, PAIR] = NONE
        i = nodes[i, NEXT_SAME]
    free[state[FREE]] = record
    state[FREE] += 1


@numba.njit(inline="always")
def _precedes(count, record, other_count, other, pairs):
    """Whether a pair is merged before another: larger count, then smaller left, then smaller right id."""
    if count != other_count:
        return count > other_count
    if pairs[record, LEFT] != pairs[other, LEFT]:
        return pairs[record, LEFT] < pairs[other, LEFT]
    return pairs[record, RIGHT] < pairs[other, RIGHT]


@numba.njit(nogil=True, cache=True)
def _push(heap_counts, heap_records, pairs, state, record):
    count = pairs[record, COUNT]
    i = state[HEAP]
    state[HEAP] += 1
    while i > 0:
        parent = (i - 1) >> 2
        if not _precedes(count, record, heap_counts[parent], heap_records[parent], pairs):
            break
        heap_counts[i] = heap_counts[parent]
        heap_records[i] = heap_records[parent]
        i = parent
    heap_counts[i] = count
    heap_records[i] = record


@numba.njit(nogil=True, cache=True)
def _sink_first(heap_counts, heap_records, pairs, size, count, record):
    """Put an entry in the place of the heap's first one."""
    i = 0
    while True:
        child = 4 * i + 1
        if child >= size:
            break
        best = child
        for other in range(child + 1, min(child + 4, size)):
            if _precedes(heap_counts[other], heap_records[other], heap_counts[best], heap_records[best], pairs):
                best = other
        if not _precedes(heap_counts[best], heap_records[best], count, record, pairs):
            break
        heap_counts[i] = heap_counts[best]
        heap_records[i] = heap_records[best]
        i = best
    heap_counts[i] = count
    heap_records[i] = record


@numba.njit(nogil=True, cache=True)
def push_first_pairs(nodes, pairs, free, heap_counts, heap_records, state, min_count, max_length):
    """Put every pair of bytes that may be merged on the heap."""
    for record in range(state[RECORDS]):
        if pairs[record, COUNT] >= min_count and max_length >= 2:
            _push(heap_counts, heap_records, pairs, state, record)
        else:
            _forget(nodes, pairs, free, state, record)


@numba.njit(nogil=True, cache=True)
def merge(
    nodes,
    counts,
    pairs,
    free,
    heap_counts,
    heap_records,
    lengths,
    merges,
    with_left,
    with_right,
    made,
    state,
    min_count,
    max_length,
    work,
):
    """Make merges until `merges` is full, about `work` replacements are done, memory is short, or no pair is left.

    merges: int32 (n, 2), filled from state[MERGES] on with pairs of symbols; merge k makes symbol 256 + k.
    lengths: int64, bytes of each symbol. with_left[x], with_right[x]: int64 scratch, all NONE: the record of the
    pair (x, new symbol) and (new symbol, x) during a merge; made: int64 scratch, the records made in it.
    Returns 0 when there is more to do, 1 when `pairs`, `free` and the heap must grow, 2 when finished.
    """
    while state[MERGES] < len(merges):
        if state[HEAP] == 0:
            return 2
        if work <= 0:
            return 0
        new = 256 + state[MERGES]
        # Each symbol can stand once to the left and once to the right of the new one, itself included.
        most_new_pairs = 2 * new + 2
        if state[RECORDS] - state[FREE] + most_new_pairs > len(pairs) or state[HEAP] + most_new_pairs > len(
            heap_counts
        ):
            return 1
        record = heap_records[0]
        count = pairs[record, COUNT]
        if count != heap_counts[0] or count < min_count:
            if count >= min_count:
                _sink_first(heap_counts, heap_records, pairs, state[HEAP], count, record)
            else:
                _forget(nodes, pairs, free, state, record)
                state[HEAP] -= 1
                last = state[HEAP]
                _sink_first(heap_counts, heap_records, pairs, last, heap_counts[last], heap_records[last])
            continue
        left = pairs[record, LEFT]
        right = pairs[record, RIGHT]
        merges[state[MERGES], 0] = left
        merges[state[MERGES], 1] = right
        state[MERGES] += 1
        state[HEAP] -= 1
        last = state[HEAP]
        _sink_first(heap_counts, heap_records, pairs, last, heap_counts[last], heap_records[last])
        lengths[new] = lengths[left] + lengths[right]

        occurrence = pairs[record, HEAD]
        made_count = 0
        while occurrence != NONE:
            work -= 1
            i = occurrence
            weight = counts[nodes[i, WORD]]
            second = nodes[i, NEXT]
            before = nodes[i, PREVIOUS]
            after = nodes[second, NEXT]
            # An overlapping occurrence of the same pair leaves the list here, before it is visited.
            _remove(nodes, pairs, second, weight)
            occurrence = nodes[i, NEXT_SAME]
            nodes[i, SYMBOL] = new
            nodes[i, NEXT] = after
            nodes[i, PAIR] = NONE
            if before != NONE:
                _remove(nodes, pairs, before, weight)
                neighbour = nodes[before, SYMBOL]
                known = with_left[neighbour]
                if known == NONE:
                    known = _new_record(pairs, free, state, neighbour, new)
                    made[made_count] = known
                    made_count += 1
                    with_left[neighbour] = known
                _append(nodes, pairs, known, before, weight)
            if after != NONE:
                nodes[after, PREVIOUS] = i
                neighbour = nodes[after, SYMBOL]
                known = with_right[neighbour]
                if known == NONE:
                    known = _new_record(pairs, free, state, new, neighbour)
                    made[made_count] = known
                    made_count += 1
                    with_right[neighbour] = known
                _append(nodes, pairs, known, i, weight)

        for k in range(made_count):
            candidate = made[k]
            a = pairs[candidate, LEFT]
            b = pairs[candidate, RIGHT]
            if a == new:
                with_right[b] = NONE
            if b == new:
                with_left[a] = NONE
            if pairs[candidate, COUNT] >= min_count and lengths[a] + lengths[b] <= max_length:
                _push(heap_counts, heap_records, pairs, state, candidate)
            else:
                _forget(nodes, pairs, free, state, candidate)
        free[state[FREE]] = record
        state[FREE] += 1
    return 2

"""The merge loop of WordPiece training.

Two merges can make the same token, such as "a" + "##bc" and "ab" + "##c". Each adds occurrences to the pairs of this
token. So a pair's list of positions can grow at any time, unlike in `kernels.merge_loop`, and a hash table finds it.

Every character of every distinct word is a position, and a merged token keeps the position of its first character. Each
pair has a record: its symbols, its count, and a linked list with a node for every position where the pair starts. Nodes
are not removed when a neighbouring merge destroys the pair; such a node is stale, because `pair_at` of its position
names another record.

The count of a pair that was merged and occurs again includes its merged occurrences, as in `tokenizers`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.tools import HASH_1, inlined, kernel

# Indices in `state`: the number of records and of nodes; the first free node; the lengths of `heap` and `touched`; the
# record of the pair to merge.
RECORDS, NODES, FREE, HEAP, TOUCHED, CURRENT = range(6)
NONE = -1
FOUND, FINISHED, GROW = range(3)  # what `merge_and_find` returns


class Merging(NamedTuple):
    """All data of the loop. A symbol is the index of a token."""

    symbols: np.ndarray  # int32, per position
    words: np.ndarray  # int32, per position: the index of its word
    following: np.ndarray  # int32, per position: the next position of the word, or NONE
    preceding: np.ndarray  # int32, per position: the position before
    pair_at: np.ndarray  # int32, per position: the record of the pair that starts here, or NONE
    word_counts: np.ndarray  # int64, per word
    places: np.ndarray  # int32, per node of a list: a position
    nexts: np.ndarray  # int32, per node: the next node, or NONE
    keys: np.ndarray  # int64, per record: left << 32 | right
    counts: np.ndarray  # int64, per record: occurrences, including merged ones
    heads: np.ndarray  # int32, per record: first node of its list, or NONE
    tails: np.ndarray  # int32, per record: last node of its list
    sizes: np.ndarray  # int32, per record: number of nodes of its list
    marks: np.ndarray  # uint8, per record: bit 0 is whether it is in `touched`; `kernels.likelihood` uses the others
    slots: np.ndarray  # int32, a hash table from keys to records: record + 1, or 0 where empty
    heap: np.ndarray  # int64 (n, 2): counts and records; first the largest count, then the smallest key
    touched: np.ndarray  # int32: records that gained occurrences and are not yet in the heap with their new count
    state: np.ndarray  # int64 (6,)


@kernel
def count_characters(data, offsets, word_counts, characters, continuing):
    """Add the occurrences of each code point to `characters`, int64. Set `continuing` for those within words.

    Return the number of code points in all words.
    """
    total = 0
    for word in range(len(word_counts)):
        position = offsets[word]
        while position < offsets[word + 1]:
            code_point, width = _decode(data, position)
            characters[code_point] += word_counts[word]
            if position > offsets[word]:
                continuing[code_point] = True
            position += width
            total += 1
    return total


@inlined
def _decode(data, position):
    """Return the code point at `position` of valid UTF-8, and its width in bytes."""
    first = np.int64(data[position])
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | np.int64(data[position + 1]) & 0x3F, 2
    if first < 0xF0:
        last = (np.int64(data[position + 1]) & 0x3F) << 6 | np.int64(data[position + 2]) & 0x3F
        return (first & 0x0F) << 12 | last, 3
    last = (np.int64(data[position + 2]) & 0x3F) << 6 | np.int64(data[position + 3]) & 0x3F
    return (first & 0x07) << 18 | (np.int64(data[position + 1]) & 0x3F) << 12 | last, 4


@kernel
def lay_out(data, offsets, first_symbols, later_symbols, merging):
    """Lay out all words, one position per code point. Return the number of positions.

    first_symbols, later_symbols: int32, the symbol of each code point at the start of a word and within a word; NONE
    leaves the code point out. As in `tokenizers`, a character after one that is left out is still within the word.
    """
    used = 0
    for word in range(len(offsets) - 1):
        position = offsets[word]
        before = NONE
        while position < offsets[word + 1]:
            code_point, width = _decode(data, position)
            symbol = first_symbols[code_point] if position == offsets[word] else later_symbols[code_point]
            position += width
            if symbol == NONE:
                continue
            merging.symbols[used] = symbol
            merging.words[used] = word
            merging.preceding[used] = before
            merging.following[used] = NONE
            merging.pair_at[used] = NONE
            if before != NONE:
                merging.following[before] = used
            before = used
            used += 1
    return used


@kernel
def lay_out_symbols(offsets, merging):
    """Lay out words whose symbols are in `merging.symbols`; word w is at offsets[w] to offsets[w + 1]."""
    for word in range(len(offsets) - 1):
        start = offsets[word]
        end = offsets[word + 1]
        for position in range(start, end):
            merging.words[position] = word
            merging.preceding[position] = position - 1 if position > start else NONE
            merging.following[position] = position + 1 if position + 1 < end else NONE
            merging.pair_at[position] = NONE


@inlined
def _record(merging, left, right):
    """Return the record of a pair; add it if it is new."""
    key = np.int64(left) << 32 | np.int64(right)
    mask = np.uint64(len(merging.slots) - 1)
    slot = np.uint64(key) * HASH_1 >> np.uint64(32) & mask
    while merging.slots[slot]:
        record = np.int64(merging.slots[slot]) - 1
        if merging.keys[record] == key:
            return record
        slot = slot + np.uint64(1) & mask
    record = merging.state[RECORDS]
    merging.state[RECORDS] += 1
    merging.slots[slot] = record + 1
    merging.keys[record] = key
    merging.counts[record] = 0
    merging.heads[record] = NONE
    merging.sizes[record] = 0
    merging.marks[record] = 0
    return record


@inlined
def _enter(merging, left, right, position, weight):
    """Count an occurrence of a pair at a position, and append it to the list of the pair."""
    record = _record(merging, left, right)
    state = merging.state
    node = state[FREE]
    if node == NONE:
        node = state[NODES]
        state[NODES] += 1
    else:
        state[FREE] = merging.nexts[node]
    merging.places[node] = position
    merging.nexts[node] = NONE
    if merging.heads[record] == NONE:
        merging.heads[record] = node
    else:
        merging.nexts[merging.tails[record]] = node
    merging.tails[record] = node
    merging.sizes[record] += 1
    merging.counts[record] += weight
    merging.pair_at[position] = record
    if not merging.marks[record] & 1:
        merging.marks[record] |= 1
        merging.touched[state[TOUCHED]] = record
        state[TOUCHED] += 1


@kernel
def list_pairs(merging, first, last):
    """Enter the pairs that start at positions first..last.

    Return the next position. It is less than `last` if the arrays of the records must grow first.
    """
    for position in range(first, last):
        if merging.state[RECORDS] == len(merging.keys):
            return position
        after = merging.following[position]
        if after != NONE:
            weight = merging.word_counts[merging.words[position]]
            _enter(merging, merging.symbols[position], merging.symbols[after], position, weight)
    return last


@kernel
def fill_slots(keys, records, slots):
    """Insert all records into the empty hash table."""
    mask = np.uint64(len(slots) - 1)
    for record in range(records):
        slot = np.uint64(keys[record]) * HASH_1 >> np.uint64(32) & mask
        while slots[slot]:
            slot = slot + np.uint64(1) & mask
        slots[slot] = record + 1


@inlined
def _precedes(count, key, other_count, other_key):
    """Return whether a pair is merged before another."""
    return count > other_count or (count == other_count and key < other_key)


@inlined
def _sink(heap, keys, size, count, record):
    """Replace the first entry of the heap, and restore the order of the heap."""
    i = 0
    key = keys[record]
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _precedes(
            heap[child + 1, 0], keys[heap[child + 1, 1]], heap[child, 0], keys[heap[child, 1]]
        ):
            child += 1
        if not _precedes(heap[child, 0], keys[heap[child, 1]], count, key):
            break
        heap[i, 0] = heap[child, 0]
        heap[i, 1] = heap[child, 1]
        i = child
    heap[i, 0] = count
    heap[i, 1] = record


@inlined
def _offer_touched(merging, min_count):
    """Push the pairs that gained occurrences onto the heap."""
    heap = merging.heap
    keys = merging.keys
    state = merging.state
    for t in range(state[TOUCHED]):
        record = np.int64(merging.touched[t])
        merging.marks[record] = 0
        count = merging.counts[record]
        if count < min_count:
            continue
        key = keys[record]
        i = state[HEAP]
        state[HEAP] += 1
        while i > 0:
            parent = (i - 1) >> 1
            if not _precedes(count, key, heap[parent, 0], keys[heap[parent, 1]]):
                break
            heap[i, 0] = heap[parent, 0]
            heap[i, 1] = heap[parent, 1]
            i = parent
        heap[i, 0] = count
        heap[i, 1] = record
    state[TOUCHED] = 0


@kernel
def list_nodes(merging, record, nodes):
    """Write the nodes of a pair's list to `nodes`, int32, in order."""
    node = np.int64(merging.heads[record])
    for k in range(len(nodes)):
        nodes[k] = node
        node = np.int64(merging.nexts[node])


@inlined
def replace(merging, record, new):
    """Replace a pair by the symbol `new` at all its positions, in the order of its list. Return how often."""
    symbols = merging.symbols
    following = merging.following
    preceding = merging.preceding
    pair_at = merging.pair_at
    counts = merging.counts
    state = merging.state
    replaced = 0
    node = np.int64(merging.heads[record])
    merging.heads[record] = NONE
    merging.sizes[record] = 0
    while node != NONE:
        position = np.int64(merging.places[node])
        after_node = np.int64(merging.nexts[node])
        merging.nexts[node] = state[FREE]
        state[FREE] = node
        node = after_node
        if pair_at[position] != record:
            continue
        weight = merging.word_counts[merging.words[position]]
        replaced += weight
        second = np.int64(following[position])
        after = np.int64(following[second])
        before = np.int64(preceding[position])
        if before != NONE:
            counts[pair_at[before]] -= weight
        if after != NONE:
            counts[pair_at[second]] -= weight
            preceding[after] = position
        symbols[position] = new
        following[position] = after
        pair_at[second] = NONE
        pair_at[position] = NONE
        if before != NONE:
            _enter(merging, symbols[before], new, before, weight)
        if after != NONE:
            _enter(merging, new, symbols[after], position, weight)
    return replaced


@kernel
def merge_and_find(merging, new, min_count):
    """Replace the pair state[CURRENT], unless it is NONE, by the symbol `new`, and find the next pair.

    The next pair is the one with the largest count; on ties, with the smallest left, then right symbol. Return FOUND,
    with the pair's record in state[CURRENT]; FINISHED if no pair has a count of at least `min_count`; GROW, with
    nothing done, if arrays must grow first.
    """
    state = merging.state
    heap = merging.heap
    record = state[CURRENT]
    if record != NONE:
        size = np.int64(merging.sizes[record])
        if (
            state[RECORDS] + 2 * size > len(merging.keys)
            or state[NODES] + 2 * size > len(merging.places)
            or state[HEAP] + 2 * size > len(heap)
        ):
            return GROW
        replace(merging, record, new)
        state[CURRENT] = NONE
    elif state[HEAP] + state[TOUCHED] > len(heap):
        return GROW
    _offer_touched(merging, min_count)
    while state[HEAP]:
        record = heap[0, 1]
        count = merging.counts[record]
        if heap[0, 0] == count and merging.sizes[record]:
            if count < min_count:
                break
            state[CURRENT] = record
            return FOUND
        if heap[0, 0] > count >= min_count and merging.sizes[record]:
            _sink(heap, merging.keys, state[HEAP], count, record)
        else:  # the pair has no occurrences left, or another entry has its present count
            state[HEAP] -= 1
            last = state[HEAP]
            _sink(heap, merging.keys, last, heap[last, 0], heap[last, 1])
    return FINISHED

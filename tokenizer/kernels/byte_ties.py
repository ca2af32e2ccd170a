"""The order of tokens by their bytes, which breaks ties between pairs of equal count.

Each token has a label between those of its two neighbours in this order, so that heap entries compare labels, not
bytes. If no number is left between the neighbours' labels, all labels are spaced out again.
"""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.pairs import HEAP, KEY, RECORD, label_key
from tokenizer.kernels.tools import inlined, internal

LABELS = 1 << 31


@internal
def insert_by_bytes(training, merges, new):
    """Insert symbol `new` into `by_bytes`, which holds all symbols before it, and label it."""
    by_bytes = training.by_bytes
    labels = training.labels
    place, end = 0, new
    while place < end:
        middle = (place + end) // 2
        if _is_greater(merges, training.lengths, labels, new, np.int64(by_bytes[middle])):
            end = middle
        else:
            place = middle + 1
    for i in range(new, place, -1):
        by_bytes[i] = by_bytes[i - 1]
    by_bytes[place] = new
    before = labels[by_bytes[place - 1]] if place > 0 else -1
    after = labels[by_bytes[place + 1]] if place < new else LABELS
    labels[new] = (before + after) >> 1
    if labels[new] == before:
        _space_out(training, new + 1)


@inlined
def _space_out(training, size):
    """Label the first `size` symbols at equal distances, and renew the keys of the heap; their order stays the same."""
    distance = LABELS // (size + 1)
    for i in range(size):
        training.labels[training.by_bytes[i]] = (i + 1) * distance
    heap = training.heap
    for i in range(training.state[HEAP]):
        heap[i, 1] = label_key(training.labels, training.records[RECORD * heap[i, 2] + KEY])


@inlined
def _is_greater(merges, lengths, labels, one, other):
    """Return whether a token's bytes are greater than another's. Parts that both tokens share are skipped."""
    i = 0
    while i < lengths[one] and i < lengths[other]:
        part = _part_from(merges, lengths, one, i)
        other_part = _part_from(merges, lengths, other, i)
        while part != other_part and (part >= 256 or other_part >= 256):
            if lengths[part] >= lengths[other_part]:
                part = np.int64(merges[part - 256, 0])
            else:
                other_part = np.int64(merges[other_part - 256, 0])
        if part != other_part:
            return labels[part] < labels[other_part]
        i += lengths[part]
    return lengths[one] > lengths[other]


@inlined
def _part_from(merges, lengths, symbol, i):
    """Return the largest part of a token that starts at byte i."""
    while i > 0:
        left = np.int64(merges[symbol - 256, 0])
        if i < lengths[left]:
            symbol = left
        else:
            i -= lengths[left]
            symbol = np.int64(merges[symbol - 256, 1])
    return symbol

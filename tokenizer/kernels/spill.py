"""Sorting of pretokens by their bytes, and merging of sorted ones."""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.tools import inlined, kernel, load_8


@inlined
def _swap_bytes(x):
    x = x >> np.uint64(32) | x << np.uint64(32)
    x = (x >> np.uint64(16) & np.uint64(0x0000FFFF0000FFFF)) | (x & np.uint64(0x0000FFFF0000FFFF)) << np.uint64(16)
    return (x >> np.uint64(8) & np.uint64(0x00FF00FF00FF00FF)) | (x & np.uint64(0x00FF00FF00FF00FF)) << np.uint64(8)


@kernel
def first_words(data, offsets, words):
    """Write the first eight bytes of every pretoken, zero padded, as a big-endian number: it sorts like the bytes."""
    for i in range(len(words)):
        start = offsets[i]
        length = offsets[i + 1] - start
        if start + 8 <= len(data) and length > 0:
            word = _swap_bytes(load_8(data, start))
            if length < 8:
                word &= ~(np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(8 * length))
        else:
            word = np.uint64(0)
            for k in range(min(length, 8)):
                word |= np.uint64(data[start + k]) << np.uint64(56 - 8 * k)
        words[i] = word


@kernel
def compare(data, start, end, other_data, other_start, other_end):
    """Return a negative number, 0 or a positive number as data[start:end] is less, equal or greater than the other."""
    common = min(end - start, other_end - other_start)
    k = 0
    while k + 8 <= common and load_8(data, start + k) == load_8(other_data, other_start + k):
        k += 8
    while k < common:
        difference = np.int64(data[start + k]) - np.int64(other_data[other_start + k])
        if difference:
            return difference
        k += 1
    return (end - start) - (other_end - other_start)


@kernel
def _sink(data, offsets, order, first, size, i, item):
    """Sink `item` from place i of the heap order[first:first + size]."""
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        a = order[first + child]
        if child + 1 < size:
            b = order[first + child + 1]
            if compare(data, offsets[a], offsets[a + 1], data, offsets[b], offsets[b + 1]) < 0:
                child += 1
                a = b
        if compare(data, offsets[a], offsets[a + 1], data, offsets[item], offsets[item + 1]) <= 0:
            break
        order[first + i] = a
        i = child
    order[first + i] = item


@kernel
def order_ties(data, offsets, words, order):
    """Complete an `order` by first words: sort the pretokens with equal first words."""
    first = 0
    n = len(order)
    while first < n:
        word = words[order[first]]
        last = first + 1
        while last < n and words[order[last]] == word:
            last += 1
        if last - first <= 16:
            for i in range(first + 1, last):
                item = order[i]
                k = i
                while k > first:
                    a = order[k - 1]
                    if compare(data, offsets[a], offsets[a + 1], data, offsets[item], offsets[item + 1]) <= 0:
                        break
                    order[k] = a
                    k -= 1
                order[k] = item
        else:
            size = last - first
            for i in range(size // 2 - 1, -1, -1):
                _sink(data, offsets, order, first, size, i, order[first + i])
            for end in range(size - 1, 0, -1):
                item = order[first + end]
                order[first + end] = order[first]
                _sink(data, offsets, order, first, end, 0, item)
        first = last


@kernel
def gather(data, offsets, counts, order, out_data, out_offsets, out_counts):
    """Write the pretokens in `order`, with equal neighbours added up. Return their number."""
    n = 0
    at = 0
    for i in order:
        start = offsets[i]
        end = offsets[i + 1]
        if n and compare(data, start, end, out_data, out_offsets[n - 1], at) == 0:
            out_counts[n - 1] += counts[i]
            continue
        for k in range(start, end):
            out_data[at] = data[k]
            at += 1
        out_counts[n] = counts[i]
        n += 1
        out_offsets[n] = at
    return n


@kernel
def ascending(data, offsets, first, last):
    """Return whether every pretoken of first:last sorts after its predecessor."""
    for i in range(max(first, 1), last):
        if compare(data, offsets[i - 1], offsets[i], data, offsets[i], offsets[i + 1]) >= 0:
            return False
    return True


@kernel
def up_to(data, offsets, first, last, bound):
    """Return the index after the last of the ascending pretokens first:last that is at most `bound`."""
    while first < last:
        middle = (first + last) >> 1
        if compare(data, offsets[middle], offsets[middle + 1], bound, 0, len(bound)) <= 0:
            first = middle + 1
        else:
            last = middle
    return first

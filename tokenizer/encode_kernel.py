"""From pretokens to ids, batch by batch: caches of recent pretokens in front of the merging in `apply_kernel`.

What takes time is waiting for memory. So a batch goes through in steps, each of which asks for the
cache lines that the next one reads: pack and hash; look up in the caches, writing the ids and leaving gaps for what
they do not have; merge that; close the gaps.
"""

from __future__ import annotations

import numpy as np

from tokenizer.apply_kernel import (
    SCAN_LIMIT,
    SCRATCH,
    SCRATCH_RECORD,
    heap_begin,
    heap_ids,
    heap_merge,
    merge_short,
)
from tokenizer.cache_kernel import (
    COUNT_BITS,
    LARGE_ROW,
    SMALL_ROW,
    Caches,
    find_large,
    find_small_in_large,
    row_in_large,
    row_in_small,
)
from tokenizer.kernel_tools import (
    ALL,
    HASH_2,
    ONE,
    SHORT,
    inlined,
    internal,
    kernel,
    load_8,
    mix,
    pack,
    pack_slowly,
    prefetch,
    store_8,
)
from tokenizer.scan_kernel import scan
from tokenizer.table_kernel import Merges, Tokens, find_long, find_short, short_slot

# In `state`: ids written and documents done; documents scanned and where to go on; where the first pretoken not
# encoded starts, its number in `ends` and that of the last; room needed in `out`.
OUT, DOCUMENT, SCANNED, POSITION, START, FIRST, LAST, NEEDED = range(8)
DONE, MORE, GROW, LONG = range(4)  # what `encode` returns
BATCH = 512
BATCHES = 64  # in a turn; a pretoken may be of any number of pieces
CUT = 5  # pretokens of this many bytes and more are taken apart; if they are ASCII, only from SHORT on
LARGE = 64  # pretokens of this many bytes and more are not cached


# Scratch memory for a batch of pretokens on their way, one record, which is one argument of a kernel where as many
# arrays would take longer to hand over than a short text to encode.
BATCH_RECORD = np.dtype(
    [
        ("ends", np.int64, BATCH),  # of pieces
        ("low", np.uint64, BATCH),  # the two words of a pretoken as `pack` gives them; of a large one the last word,
        ("high", np.uint64, BATCH),  # 0,
        ("lengths", np.int64, BATCH),  # and its length in bytes
        ("rows", np.uint64, BATCH),  # the first row of its key in its cache
        ("written", np.int64, BATCH),  # where in `out` its ids begin, or a gap of as many places as it has bytes
        ("missing", np.int64, BATCH),  # which ones no cache has
        ("counts", np.int64, BATCH),  # of these, how many ids are in `found`
        ("places", np.int64, BATCH),  # and where they begin
        ("merging", np.int64, BATCH),  # which ones of these are merged
        ("items", np.int64, (BATCH, 2)),  # their starts and lengths
        ("spans", np.int64, (BATCH, 2)),  # and where in `found` the ids of these are, and how many
        ("found", np.uint32, BATCH * SCAN_LIMIT + SCRATCH),
        ("scratch", SCRATCH_RECORD),
    ]
)


@inlined
def _piece_end(data, start, end, joined):
    """Where the first piece of data[start:end] ends: between two bytes that no token has side by side, where no merge
    ever reaches across. The pieces are merged as the whole is, and return more often."""
    limit = min(end, start + SCRATCH + 1)
    i = start + 1
    while i < limit and joined[np.int64(data[i - 1]) << 8 | np.int64(data[i])]:
        i += 1
    return end if i == limit else i


@internal
def _pack(data, start, ends, joined, caches, batch):
    """Fill a batch with pretokens, long ones in pieces, packed and hashed.

    Returns how many there are, and the number of the pretoken that the next belongs to. It stops at one that is too
    long, or too near the end of the data to load, whose end and length it leaves in the batch.
    """
    small = caches.small
    small_mask = np.uint64(len(small) - 2 * SMALL_ROW)
    safe = len(data) - 16
    pretoken = np.uint64(0)
    pretokens = np.uint64(len(ends))
    k = np.uint64(0)
    while k < BATCH and pretoken < pretokens:
        end = ends[pretoken]
        length = end - start
        # Joined by `&` and `|` because that is one branch, hardly ever taken in English.
        if (length >= CUT) & (data[np.uint64(end - 1)] >= 0x80) | (length >= SHORT) | (start > safe):
            whole_end = end
            end = _piece_end(data, start, end, joined) if length >= CUT else end
            length = end - start
            if length >= SHORT:
                batch.ends[k] = end
                batch.high[k] = 0
                batch.lengths[k] = length
                if length >= LARGE or start + (length + 7 & ~7) > len(data):
                    break
                batch.low[k], batch.rows[k] = _pack_large(data, start, length, caches.large)
            else:
                low, high = pack(data, start, length) if start <= safe else pack_slowly(data, start, length)
                row = row_in_small(low, high, small_mask)
                prefetch(small, row)
                batch.ends[k] = end
                batch.low[k] = low
                batch.high[k] = high
                batch.rows[k] = row
            pretoken += np.uint64(end == whole_end)
        else:
            low, high = pack(data, start, length)
            row = row_in_small(low, high, small_mask)
            prefetch(small, row)
            batch.ends[k] = end
            batch.low[k] = low
            batch.high[k] = high
            batch.rows[k] = row
            pretoken += ONE
        start = end
        k += ONE
    return np.int64(k), np.int64(pretoken)


@inlined
def _pack_large(data, start, length, large):
    """The last word of a large pretoken, and the first of its two rows, for which it asks."""
    words = (length + 7) >> 3
    h = np.uint64(length)
    for w in range(words - 1):
        h = (h ^ load_8(data, start + 8 * w)) * HASH_2
        h ^= h >> np.uint64(29)
    last_word = load_8(data, start + 8 * (words - 1)) & ALL >> np.uint64(64 * words - 8 * length)
    row = mix(h, last_word) >> np.uint64(20) & np.uint64(len(large) - 2 * LARGE_ROW)
    prefetch(large, row)
    prefetch(large, row + np.uint64(8))
    if words == 8:
        last_word |= np.uint64(length) << np.uint64(56)
    return last_word, row


@inlined
def _length(batch, k):
    high = batch.high[k]
    return np.int64(high >> np.uint64(56)) if high else batch.lengths[k]


@internal
def _look_up(data, n, caches, tokens, batch, out, at):
    """Write the ids of pretokens that the caches have to out[at:], each of the others leaving a gap of as many places
    as it has bytes. Those are listed in `missing`.

    Returns how many they are, and where in `out` it all ends.
    """
    small = caches.small
    large = caches.large
    misses = np.uint64(0)
    for k in range(n):
        row = batch.rows[k]
        high = batch.high[k]
        batch.written[k] = at
        if high:
            low = batch.low[k]
            # Which of the two rows it is cannot be predicted, so no branch depends on it; nor on the number of ids.
            first = (small[row] ^ low) | (small[row + ONE] ^ high) << np.uint64(COUNT_BITS)
            second = (small[row + np.uint64(4)] ^ low) | (small[row + np.uint64(5)] ^ high) << np.uint64(COUNT_BITS)
            if min(first, second) == 0:
                row += np.uint64(SMALL_ROW) * np.uint64(first != 0)
                store_8(out, at, small[row + np.uint64(2)])
                store_8(out, at + 2, small[row + np.uint64(3)])
                at += np.int64(small[row + ONE] >> np.uint64(64 - COUNT_BITS))
                continue
            prefetch(tokens.short, short_slot(low, high, tokens))
        else:
            length = batch.lengths[k]
            count = find_large(data, batch.ends[k] - length, length, batch.low[k], row, large, out, at)
            if count:
                at += count
                continue
        batch.missing[misses] = k
        misses += ONE
        at += _length(batch, k)
    return np.int64(misses), at


@internal
def _find_or_merge(data, misses, used, merges, tokens, large, batch):
    """Find the missing pretokens among the tokens, and merge the others, to `found` from `used` on."""
    n = 0
    for m in range(misses):
        k = batch.missing[m]
        length = _length(batch, k)
        count = 0
        if length < SHORT:
            token = find_short(batch.low[k], batch.high[k], tokens)
            if token < 0:
                count = find_small_in_large(batch.low[k], batch.high[k], large, batch.found, used)
        else:
            token = find_long(data, batch.ends[k] - length, batch.ends[k], tokens)
        if token >= 0:
            batch.found[used] = token
            count = 1
        if count:
            batch.places[k] = used
            batch.counts[k] = count
            used += count
        else:
            batch.merging[n] = k
            batch.items[n, 0] = batch.ends[k] - length
            batch.items[n, 1] = length
            n += 1
    merge_short(data, batch.items, n, merges, batch.scratch.lanes, batch.found, used, batch.spans)
    for m in range(n):
        k = batch.merging[m]
        batch.places[k] = batch.spans[m, 0]
        batch.counts[k] = batch.spans[m, 1]


@internal
def _find_or_merge_one(data, start, length, merges, tokens, batch):
    """Find or merge a pretoken of more than SCAN_LIMIT bytes, to the beginning of `found`; how many ids it has."""
    token = find_long(data, start, start + length, tokens)
    if token >= 0:
        batch.found[0] = token
        return np.int64(1)
    size = heap_begin(data, start, 0, length, length, merges, batch.scratch.heap, 0)
    heap_merge(length, merges, batch.scratch.heap, size, np.int64(1) << 62)
    return heap_ids(length, batch.scratch.heap, batch.found, 0)


@internal
def _close_gaps(misses, end, batch, out):
    """Put the ids of the missing in their places, and move what is written between them to its own.

    end: where in `out` it all ends, gaps included; returns where it ends without.
    """
    at = batch.written[batch.missing[0]]
    for m in range(misses):
        k = batch.missing[m]
        for i in range(batch.counts[k]):
            out[at + i] = batch.found[batch.places[k] + i]
        at += batch.counts[k]
        segment = batch.written[k] + _length(batch, k)
        segment_end = batch.written[batch.missing[m + 1]] if m + 1 < misses else end
        # Two at a time; the one beyond the end has been moved already, or is nothing.
        for i in range(0, segment_end - segment, 2):
            store_8(out, at + i, load_8(out, segment + i))
        at += segment_end - segment
    return at


@internal
def _end_documents(n, misses, at, batch, offsets, id_offsets, document):
    """Write where the ids of the documents begin that follow one of the n pretokens; `at`: where the ids of the last
    one end. Returns the number of the document that the next pretoken belongs to."""
    documents = len(offsets) - 1
    gaps = 0  # how far the ids have moved
    m = 0
    k = 0
    while document < documents and offsets[document + 1] <= batch.ends[n - 1]:
        while batch.ends[k] < offsets[document + 1]:
            if m < misses and batch.missing[m] == k:
                gaps += _length(batch, k) - batch.counts[k]
                m += 1
            k += 1
        last_gap = 0
        if m < misses and batch.missing[m] == k:
            last_gap = _length(batch, k) - batch.counts[k]
        document += 1
        id_offsets[document] = batch.written[k + 1] - gaps - last_gap if k + 1 < n else at
    return document


@internal
def _remember(data, misses, packed, caches, batch):
    """Put what was missing of the first `packed` into the caches, where its ids fit."""
    small = caches.small
    large = caches.large
    found = batch.found
    for m in range(misses):
        k = batch.missing[m]
        if k >= packed:
            continue
        row = batch.rows[k]
        at = batch.places[k]
        n = batch.counts[k]
        length = _length(batch, k)
        if length < SHORT and n <= 4:
            high = batch.high[k] | np.uint64(n) << np.uint64(64 - COUNT_BITS)
            if small[row] == batch.low[k] and small[row + np.uint64(1)] == high:
                continue  # the second of two in one batch is there already
            for w in range(SMALL_ROW):
                small[row + np.uint64(SMALL_ROW + w)] = small[row + np.uint64(w)]
            small[row] = batch.low[k]
            small[row + np.uint64(1)] = high
            for w in range(2):
                first = np.uint64(found[at + 2 * w]) if n > 2 * w else np.uint64(0)
                second = np.uint64(found[at + 2 * w + 1]) if n > 2 * w + 1 else np.uint64(0)
                small[row + np.uint64(2 + w)] = first | second << np.uint64(32)
        elif n <= 15:
            if length < SHORT:
                row = row_in_large(batch.low[k], batch.high[k], large)
                if large[row] == batch.low[k] and large[row + np.uint64(1)] == batch.high[k]:
                    continue
            for w in range(LARGE_ROW):
                large[row + np.uint64(LARGE_ROW + w)] = large[row + np.uint64(w)]
                large[row + np.uint64(w)] = 0
            if length < SHORT:
                large[row] = batch.low[k]
                large[row + np.uint64(1)] = batch.high[k]
            else:
                last = ((length + 7) >> 3) - 1
                for w in range(last):
                    large[row + np.uint64(w)] = load_8(data, batch.ends[k] - length + 8 * w)
                large[row + np.uint64(last)] = batch.low[k]
                large[row + np.uint64(7)] |= np.uint64(length) << np.uint64(56)
            for w in range(n):
                large[row + np.uint64(8 + (w >> 1))] |= np.uint64(found[at + w]) << np.uint64(32 * (w & 1))
            large[row + np.uint64(15)] |= np.uint64(n) << np.uint64(32)


@internal
def _encode(data, offsets, start, ends, first, merges, tokens, caches, batch, out, id_offsets, state):
    """Encode the pretokens ends[first:], the first of which starts at data[start].

    Whole pretokens are looked up in `tokens` before they are merged. Ids go to `out` (uint32, room for one a
    byte and three more) from state[OUT] on; id_offsets[d] is where those of document d begin. Returns the index of the
    first pretoken not encoded, and whether that is because a piece of it is longer than SCRATCH.
    """
    stopped = False
    for _ in range(BATCHES):
        if first == len(ends):
            break
        n, pretokens = _pack(data, start, ends[first:], merges.joined, caches, batch)
        misses, at = _look_up(data, n, caches, tokens, batch, out, state[OUT])
        merging = misses
        used = 0
        first += pretokens
        ready = n
        stopped = n < BATCH and first < len(ends)
        if stopped and batch.lengths[n] <= SCRATCH:
            # One that the caches do not take; the next batch begins behind it.
            ready += 1
            stopped = False
            end = batch.ends[n]
            length = batch.lengths[n]
            first += np.int64(end == ends[first])
            batch.written[n] = at
            batch.missing[misses] = n
            misses += 1
            at += length
            if length <= SCAN_LIMIT:
                merging = misses
            else:
                used = batch.counts[n] = _find_or_merge_one(data, end - length, length, merges, tokens, batch)
                batch.places[n] = 0
        if misses:
            _find_or_merge(data, merging, used, merges, tokens, caches.large, batch)
            at = _close_gaps(misses, at, batch, out)
            _remember(data, misses, n, caches, batch)
        state[OUT] = at
        if ready:
            state[DOCUMENT] = _end_documents(ready, misses, at, batch, offsets, id_offsets, state[DOCUMENT])
            start = state[START] = batch.ends[ready - 1]
        if stopped:
            break
    return first, stopped


@kernel
def encode(
    data, offsets, out, id_offsets, state, ends, scratch, chunks,
    actions, loops, byte_classes, code_point_classes, fold, ascii_rules,
    byte_ids, pairs, of_bytes, joined, short, long, blob, token_offsets, small, large,
):  # fmt: skip
    """Split and encode documents, data[offsets[d]:offsets[d + 1]], in up to `chunks` times len(ends) pretokens.

    Ids go to `out` (uint32) from state[OUT] on; id_offsets[d] is where those of document d begin. ends: int64 scratch
    memory; what it holds from state[FIRST] to state[LAST] is encoded before anything is scanned. scratch: one
    BATCH_RECORD. Then come what `scan` takes of a pattern, `Merges`, `Tokens` and `Caches`, all array by array, because
    numba takes longer to take tuples apart than a short text takes to be encoded.

    Returns DONE; MORE when there is more to do; GROW when `out` must have state[NEEDED] places more; LONG when of the
    pretoken that ends at ends[state[FIRST]] a piece of more bytes than SCRATCH begins at state[START].
    """
    merges = Merges(byte_ids, pairs, of_bytes, joined)
    tokens = Tokens(short, long, blob, token_offsets)
    caches = Caches(small, large)
    for _ in range(chunks):
        if state[FIRST] == state[LAST]:
            if state[SCANNED] == len(offsets) - 1:
                return DONE
            state[FIRST] = 0
            state[LAST], state[SCANNED], state[POSITION] = scan(
                data, offsets, state[SCANNED], state[POSITION], ends,
                actions, loops, byte_classes, code_point_classes, fold, ascii_rules,
            )  # fmt: skip
            if state[LAST] == 0:
                continue
        state[NEEDED] = ends[state[LAST] - 1] - state[START] + 4  # an id a byte, and what is written beyond
        if state[OUT] + state[NEEDED] > len(out):
            return GROW
        state[FIRST], stopped = _encode(
            data,
            offsets,
            state[START],
            ends[: state[LAST]],
            state[FIRST],
            merges,
            tokens,
            caches,
            scratch[0],
            out,
            id_offsets,
            state,
        )
        if stopped:
            return LONG
    return MORE

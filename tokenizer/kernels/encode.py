"""From pretokens to ids, batch by batch: caches of recent pretokens in front of the merging in `apply_kernel`.

What takes time is waiting for memory. So a batch goes through in steps, each of which asks for the
cache lines that the next one reads: pack and hash; look up in the caches, writing the ids and leaving gaps for what
they do not have. When some of these wait, they are merged, by turns, and the gaps are closed.
"""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.caches import (
    COUNT_BITS,
    LARGE_ROW,
    SMALL_ROW,
    Caches,
    find_large,
    find_small_in_large,
    row_in_large,
    row_in_small,
)
from tokenizer.kernels.merges import SCAN_LIMIT, SCRATCH, SCRATCH_RECORD, heap_begin, heap_ids, heap_merge, merge_short
from tokenizer.kernels.scan import scan
from tokenizer.kernels.tables import Merges, Tokens, find_long, find_short, short_slot
from tokenizer.kernels.tools import (
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

# In `state`: ids written and documents done; documents scanned and where to go on; where the first pretoken not
# encoded starts, its number in `ends` and that of the last; room needed in `out`.
OUT, DOCUMENT, SCANNED, POSITION, START, FIRST, LAST, NEEDED = range(8)
DONE, MORE, GROW, LONG = range(4)  # what `encode` returns
BATCH = 512
BATCHES = 64  # in a turn; a pretoken may be of any number of pieces
WAITING = 128  # as many pretokens that no cache has are worth merging together
CUT = 5  # pretokens of this many bytes and more are taken apart; if they are ASCII, only from SHORT on
LARGE = 64  # pretokens of this many bytes and more are not cached


# Pretokens that no cache has, in the order of the text, for which there are gaps in `out`.
MISSES = WAITING + BATCH + 1
MISSES_RECORD = np.dtype(
    [
        ("starts", np.int64, MISSES),
        ("lengths", np.int64, MISSES),
        ("low", np.uint64, MISSES),  # as in a batch
        ("high", np.uint64, MISSES),
        ("rows", np.uint64, MISSES),
        ("written", np.int64, MISSES),  # where in `out` the gap begins, of as many places as there are bytes
        ("counts", np.int64, MISSES),  # how many ids are in `found`
        ("places", np.int64, MISSES),  # and where they begin
        ("merging", np.int64, MISSES),  # which ones are merged
        ("items", np.int64, (MISSES, 2)),  # their starts and lengths
        ("spans", np.int64, (MISSES, 2)),  # and where in `found` their ids are, and how many
        ("found", np.uint32, MISSES * SCAN_LIMIT + SCRATCH),
    ]
)

# Scratch memory for pretokens on their way, one record, which is one argument of a kernel where as many arrays would
# take longer to hand over than a short text to encode.
BATCH_RECORD = np.dtype(
    [
        ("ends", np.int64, BATCH),  # of pieces
        ("low", np.uint64, BATCH),  # the two words of a pretoken as `pack` gives them; of a large one the last word,
        ("high", np.uint64, BATCH),  # 0,
        ("lengths", np.int64, BATCH),  # and its length in bytes
        ("rows", np.uint64, BATCH),  # the first row of its key in its cache
        ("written", np.int64, BATCH),  # where in `out` its ids or its gap begin
        ("misses", MISSES_RECORD),
        ("scratch", SCRATCH_RECORD),
    ]
)
NO_ROW = ALL  # of a pretoken that no cache takes


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


@internal
def _look_up(data, n, caches, tokens, batch, misses, out, at):
    """Write the ids of the n pretokens of a batch to out[at:] where the caches have them. The others leave gaps of as
    many places as they have bytes, and are appended to the `misses` that there are.

    Returns how many there are now, and where in `out` it all ends.
    """
    small = caches.small
    large = caches.large
    missed = batch.misses
    m = np.uint64(misses)
    for k in range(n):
        row = batch.rows[k]
        high = batch.high[k]
        low = batch.low[k]
        batch.written[k] = at
        if high:
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
            length = np.int64(high >> np.uint64(56))
        else:
            length = batch.lengths[k]
            count = find_large(data, batch.ends[k] - length, length, low, row, large, out, at)
            if count:
                at += count
                continue
        missed.starts[m] = batch.ends[k] - length
        missed.lengths[m] = length
        missed.low[m] = low
        missed.high[m] = high
        missed.rows[m] = row
        missed.written[m] = at
        m += ONE
        at += length
    return np.int64(m), at


@internal
def _find_or_merge(data, misses, used, merges, tokens, large, missed, scratch):
    """Find the first `misses` among the tokens, and merge the others, to `found` from `used` on."""
    n = 0
    found = missed.found[:]  # sliced, so as to have no length in its type, for each of which would be compiled
    for m in range(misses):
        start = missed.starts[m]
        length = missed.lengths[m]
        count = 0
        if length < SHORT:
            token = find_short(missed.low[m], missed.high[m], tokens)
            if token < 0:
                count = find_small_in_large(missed.low[m], missed.high[m], large, found, used)
        else:
            token = find_long(data, start, start + length, tokens)
        if token >= 0:
            found[used] = token
            count = 1
        if count:
            missed.places[m] = used
            missed.counts[m] = count
            used += count
        else:
            missed.merging[n] = m
            missed.items[n, 0] = start
            missed.items[n, 1] = length
            n += 1
    merge_short(data, missed.items[:], n, merges, scratch.lanes, found, used, missed.spans[:])
    for i in range(n):
        m = missed.merging[i]
        missed.places[m] = missed.spans[i, 0]
        missed.counts[m] = missed.spans[i, 1]


@internal
def _find_or_merge_one(data, start, length, merges, tokens, found, heap):
    """Find or merge a pretoken of more than SCAN_LIMIT bytes, to the beginning of `found`; how many ids it has."""
    token = find_long(data, start, start + length, tokens)
    if token >= 0:
        found[0] = token
        return np.int64(1)
    size = heap_begin(data, start, 0, length, length, merges, heap, 0)
    heap_merge(length, merges, heap, size, np.int64(1) << 62)
    return heap_ids(length, heap, found, 0)


@internal
def _close_gaps(misses, end, missed, out, id_offsets, document, documents):
    """Put the ids of the missing in their places, and move what is written between them to its own, and with it where
    documents document + 1 to `documents` begin.

    end: where in `out` it all ends, gaps included; returns where it ends without.
    """
    at = missed.written[0]
    moved = 0
    for m in range(misses):
        while document < documents and id_offsets[document + 1] <= missed.written[m]:
            document += 1
            id_offsets[document] -= moved
        count = missed.counts[m]
        for i in range(count):
            out[at + i] = missed.found[missed.places[m] + i]
        at += count
        moved += missed.lengths[m] - count
        segment = missed.written[m] + missed.lengths[m]
        segment_end = missed.written[m + 1] if m + 1 < misses else end
        # Two at a time; the one beyond the end has been moved already, or is nothing.
        for i in range(0, segment_end - segment, 2):
            store_8(out, at + i, load_8(out, segment + i))
        at += segment_end - segment
    for d in range(document + 1, documents + 1):
        id_offsets[d] -= moved
    return at


@internal
def _end_documents(n, at, batch, offsets, id_offsets, document):
    """Write where the documents begin that follow one of the n pretokens, gaps included; `at`: where the last of these
    ends. Returns the number of the document that the next pretoken belongs to."""
    documents = len(offsets) - 1
    k = 0
    while document < documents and offsets[document + 1] <= batch.ends[n - 1]:
        while batch.ends[k] < offsets[document + 1]:
            k += 1
        document += 1
        id_offsets[document] = batch.written[k + 1] if k + 1 < n else at
    return document


@internal
def _remember(data, misses, missed, caches):
    """Put what was missing into the caches, where its ids fit."""
    small = caches.small
    large = caches.large
    found = missed.found
    for m in range(misses):
        row = missed.rows[m]
        if row == NO_ROW:
            continue
        low = missed.low[m]
        at = missed.places[m]
        n = missed.counts[m]
        length = missed.lengths[m]
        if length < SHORT and n <= 4:
            high = missed.high[m] | np.uint64(n) << np.uint64(64 - COUNT_BITS)
            if small[row] == low and small[row + np.uint64(1)] == high:
                continue  # the second of two that waited is there already
            for w in range(SMALL_ROW):
                small[row + np.uint64(SMALL_ROW + w)] = small[row + np.uint64(w)]
            small[row] = low
            small[row + np.uint64(1)] = high
            for w in range(2):
                first = np.uint64(found[at + 2 * w]) if n > 2 * w else np.uint64(0)
                second = np.uint64(found[at + 2 * w + 1]) if n > 2 * w + 1 else np.uint64(0)
                small[row + np.uint64(2 + w)] = first | second << np.uint64(32)
        elif n <= 15:
            if length < SHORT:
                row = row_in_large(low, missed.high[m], large)
                if large[row] == low and large[row + np.uint64(1)] == missed.high[m]:
                    continue
            for w in range(LARGE_ROW):
                large[row + np.uint64(LARGE_ROW + w)] = large[row + np.uint64(w)]
                large[row + np.uint64(w)] = 0
            if length < SHORT:
                large[row] = low
                large[row + np.uint64(1)] = missed.high[m]
            else:
                last = ((length + 7) >> 3) - 1
                for w in range(last):
                    large[row + np.uint64(w)] = load_8(data, missed.starts[m] + 8 * w)
                large[row + np.uint64(last)] = low
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
    missed = batch.misses
    misses = 0
    at = state[OUT]
    document = state[DOCUMENT]
    stopped = False
    for turn in range(BATCHES):
        if first == len(ends):
            break
        n, pretokens = _pack(data, start, ends[first:], merges.joined, caches, batch)
        misses, at = _look_up(data, n, caches, tokens, batch, misses, out, at)
        merging = misses
        used = 0
        first += pretokens
        stopped = n < BATCH and first < len(ends)
        if stopped and batch.lengths[n] <= SCRATCH:
            # One that the caches do not take; the next batch begins behind it.
            stopped = False
            end = batch.ends[n]
            length = batch.lengths[n]
            first += np.int64(end == ends[first])
            batch.written[n] = missed.written[misses] = at
            missed.starts[misses] = end - length
            missed.lengths[misses] = length
            missed.rows[misses] = NO_ROW
            misses += 1
            n += 1
            at += length
            if length <= SCAN_LIMIT:
                merging = misses
            else:
                found, heap = missed.found[:], batch.scratch.heap
                used = _find_or_merge_one(data, end - length, length, merges, tokens, found, heap)
                missed.counts[misses - 1] = used
                missed.places[misses - 1] = 0
        if n:
            document = _end_documents(n, at, batch, offsets, id_offsets, document)
            start = batch.ends[n - 1]
        last = stopped or first == len(ends) or turn == BATCHES - 1
        if misses and (last or used or misses >= WAITING):
            _find_or_merge(data, merging, used, merges, tokens, caches.large, missed, batch.scratch)
            at = _close_gaps(misses, at, missed, out, id_offsets, state[DOCUMENT], document)
            _remember(data, misses, missed, caches)
            misses = 0
            state[DOCUMENT] = document
        if last:
            break
    state[OUT] = at
    state[DOCUMENT] = document
    state[START] = start
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

"""Encoding of pretokens, batch by batch: caches of recent pretokens in front of the merging in `kernels.misses`, or of
the tokens of words in `kernels.trie_words`.

Memory latency dominates. So a batch is processed in steps, and each step prefetches the cache lines of the next. First
pack and hash the pretokens, then look them up in the caches: hits write their ids, misses leave gaps. When enough
misses have accumulated, their merges run interleaved, and the gaps are closed.
"""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.caches import (
    COUNT_BITS,
    LARGE_ROW,
    SMALL_ROW,
    Caches,
    find_large,
    row_in_small,
)
from tokenizer.kernels.cuts import Cuts, next_cut, next_fine_cut
from tokenizer.kernels.hash_tables import Merges, Tokens, short_slot
from tokenizer.kernels.merges import SCAN_LIMIT, SCRATCH, SCRATCH_RECORD
from tokenizer.kernels.misses import (
    BATCH,
    MISSES_RECORD,
    NO_ROW,
    WAITING,
    close_gaps,
    find_or_merge,
    find_or_merge_one,
    remember,
)
from tokenizer.kernels.scan import scan
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
from tokenizer.kernels.trie_words import Pieces, encode_word, find_pieces

# Indices in `state`: ids written, documents encoded; documents scanned, position of the scanner; start of the first
# pretoken not encoded, its index in `ends`, and the end of the used part of `ends`; room needed in `out`.
OUT, DOCUMENT, SCANNED, POSITION, START, FIRST, LAST, NEEDED = range(8)
DONE, MORE, GROW, LONG = range(4)  # what `encode` returns
BATCHES = 64  # most batches per call of `_encode`; a pretoken may have any number of pieces
CUT = 5  # pretokens of at least this many bytes are split into pieces; those that end in ASCII only from SHORT bytes
LARGE = 64  # pretokens of at least this many bytes are not cached


# Scratch memory of `encode`: one record, because passing as many arrays takes longer than encoding a short text.
BATCH_RECORD = np.dtype(
    [
        ("ends", np.int64, BATCH),  # of pieces
        ("low", np.uint64, BATCH),  # first word of the packed pretoken; last word of a large pretoken
        ("high", np.uint64, BATCH),  # second word of the packed pretoken; 0 for a large one
        ("lengths", np.int64, BATCH),  # bytes of a large pretoken
        ("rows", np.uint64, BATCH),  # first row of its key in its cache
        ("written", np.int64, BATCH),  # start of its ids or its gap in `out`
        ("misses", MISSES_RECORD),
        ("scratch", SCRATCH_RECORD),
    ]
)


@inlined
def _piece_end(data, start, end, coarse_end, cuts):
    """Return the end of the first piece of data[start:end], and the new `coarse_end`.

    Merging the pieces gives the ids of the whole, and pieces recur more often. Coarse pieces that are too long for the
    caches are cut further. `coarse_end`: end of the last such coarse piece.
    """
    limit = min(end, start + SCRATCH + 1)
    place = start
    if start >= coarse_end:
        place = next_cut(data, start, limit, cuts)
        if place - start >= LARGE:
            coarse_end = place
    if start < coarse_end:
        place = next_fine_cut(data, start, limit, cuts)
    return end if place == limit else place, coarse_end


@internal
def _pack(data, start, ends, cuts, caches, batch):
    """Fill a batch with packed and hashed pretokens, long ones in pieces.

    Return the size of the batch, and the index of the next pretoken. The batch ends before a pretoken that is too long,
    or too near the end of the data to load, but holds its end and length.
    """
    small = caches.small
    small_mask = np.uint64(len(small) - 2 * SMALL_ROW)
    safe = len(data) - 16
    pretoken = np.uint64(0)
    pretokens = np.uint64(len(ends))
    k = np.uint64(0)
    coarse_end = start
    while k < BATCH and pretoken < pretokens:
        end = ends[pretoken]
        length = end - start
        # `&` and `|` make this one branch, rarely taken in English.
        if (length >= CUT) & (data[np.uint64(end - 1)] >= 0x80) | (length >= SHORT) | (start > safe):
            pretoken_end = end
            if length >= CUT and len(cuts.shapes):
                end, coarse_end = _piece_end(data, start, end, coarse_end, cuts)
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
            pretoken += np.uint64(end == pretoken_end)
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
    """Return the last word of a large pretoken, and the first of its two rows, which are prefetched."""
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
    """Look up the n pretokens of a batch in the caches, and write their ids to out[at:].

    A miss leaves a gap of one place per byte, and is appended to the `misses` earlier ones. Return the new number of
    misses, and the end of ids and gaps in `out`.
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
            # No branch depends on which of the two rows matches or on the number of ids, which are unpredictable.
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
def _end_documents(n, at, batch, offsets, id_offsets, document):
    """Write the starts of the documents that begin within or after this batch to `id_offsets`, gaps included.

    at: end of the batch in `out`. Return the document of the next pretoken.
    """
    documents = len(offsets) - 1
    k = 0
    while document < documents and offsets[document + 1] <= batch.ends[n - 1]:
        while batch.ends[k] < offsets[document + 1]:
            k += 1
        document += 1
        id_offsets[document] = batch.written[k + 1] if k + 1 < n else at
    return document


@internal
def _encode(data, offsets, start, ends, first, merges, cuts, tokens, pieces, caches, batch, out, id_offsets, state):
    """Encode the pretokens ends[first:], the first of which starts at data[start].

    Whole pretokens are looked up in `tokens` before they are merged. If `pieces` has units, they become its tokens
    instead. Ids go to out[state[OUT]:], uint32, with room for one id per byte and three more; id_offsets[d] is the
    start of document d. Return the index of the first pretoken not encoded, and whether a piece of it is longer than
    SCRATCH.
    """
    missed = batch.misses
    misses = 0
    at = state[OUT]
    document = state[DOCUMENT]
    stopped = False
    for turn in range(BATCHES):
        if first == len(ends):
            break
        n, pretokens = _pack(data, start, ends[first:], cuts, caches, batch)
        misses, at = _look_up(data, n, caches, tokens, batch, misses, out, at)
        merging = misses
        used = 0
        first += pretokens
        stopped = n < BATCH and first < len(ends)
        if stopped and batch.lengths[n] <= SCRATCH:
            # This piece is not cached; the next batch starts after it.
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
                if len(pieces.units):
                    used = encode_word(data, end - length, end, pieces, missed.sums[:], missed.path[:], found, 0)
                else:
                    used = find_or_merge_one(data, end - length, length, merges, tokens, found, heap)
                missed.counts[misses - 1] = used
                missed.places[misses - 1] = 0
        if n:
            document = _end_documents(n, at, batch, offsets, id_offsets, document)
            start = batch.ends[n - 1]
        last = stopped or first == len(ends) or turn == BATCHES - 1
        if misses and (last or used or misses >= WAITING):
            if len(pieces.units):
                find_pieces(data, merging, used, pieces, missed)
            else:
                find_or_merge(data, merging, used, merges, tokens, caches.large, missed, batch.scratch)
            at = close_gaps(misses, at, missed, out, id_offsets, state[DOCUMENT], document)
            remember(data, misses, missed, caches)
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
    actions, byte_classes, code_point_classes, ascii_rules,
    byte_ids, pairs, of_bytes, shapes, contexts, short, long, blob, token_offsets, units, rules, scores, small, large,
):  # fmt: skip
    """Split and encode documents, data[offsets[d]:offsets[d + 1]], in up to `chunks` times len(ends) pretokens.

    Ids go to out[state[OUT]:], uint32; id_offsets[d] is the start of document d. ends: int64 scratch memory;
    ends[state[FIRST]:state[LAST]] is encoded before more text is scanned. scratch: one BATCH_RECORD. The rest are the
    pattern's arguments of `scan`, then the arrays of `Merges`, `Cuts`, `Tokens`, `Pieces` and `Caches`. They are not
    in tuples, because numba takes longer to unpack tuples than to encode a short text.

    Return DONE; MORE after `chunks` chunks; GROW if `out` needs state[NEEDED] more places; LONG if a piece of more than
    SCRATCH bytes starts at state[START], in the pretoken that ends at ends[state[FIRST]].
    """
    merges = Merges(byte_ids, pairs, of_bytes)
    cuts = Cuts(shapes, contexts)
    tokens = Tokens(short, long, blob, token_offsets)
    pieces = Pieces(units, rules, scores)
    caches = Caches(small, large)
    for _ in range(chunks):
        if state[FIRST] == state[LAST]:
            if state[SCANNED] == len(offsets) - 1:
                return DONE
            state[FIRST] = 0
            state[LAST], state[SCANNED], state[POSITION] = scan(
                data, offsets, state[SCANNED], state[POSITION], ends,
                actions, byte_classes, code_point_classes, ascii_rules,
            )  # fmt: skip
            if state[LAST] == 0:
                continue
        state[NEEDED] = ends[state[LAST] - 1] - state[START] + 4  # one id per byte, and the excess of wide stores
        if state[OUT] + state[NEEDED] > len(out):
            return GROW
        state[FIRST], stopped = _encode(
            data,
            offsets,
            state[START],
            ends[: state[LAST]],
            state[FIRST],
            merges,
            cuts,
            tokens,
            pieces,
            caches,
            scratch[0],
            out,
            id_offsets,
            state,
        )
        if stopped:
            return LONG
    return MORE

"""SentencePiece's words: normalize UTF-8 text, and write its words with a space in place of each `▁`.

ASCII text is split 64 bytes at a time with vector instructions. Other code points go one by one through the automaton
of grapheme clusters. `splitting.metaspace_splitter` is the reference.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tokenizer.kernels.bert_words import decode_utf8, write_utf8
from tokenizer.kernels.character_map import shortest_key
from tokenizer.kernels.tools import ONE, inlined, internal, kernel, load_8, store_8, trailing_zeros
from tokenizer.splitting.graphemes import BOUNDARY, CLASSES, OTHER, START
from tokenizer.splitting.precompiled_map import LONGEST_REPLACEMENT, SHORT_CLUSTER

WINDOW = 64
RUN = 512  # most bytes of unchanged characters that one step writes
ROOM = LONGEST_REPLACEMENT + RUN + WINDOW + 8  # bytes that one step may write to `out`
# Indices in `state`: the next document and byte to read; the end of the written text, the start of its last word, and
# the number of words; whether a mark must go before the next character, whether the last character was a space, the end
# of the text without trailing white space; the state of the automaton, and whether the cluster is replaced code point
# by code point.
DOCUMENT, POSITION, AT, WORD_START, WORDS, PENDING, AFTER_SPACE, SOLID, CLUSTER, PARTED = range(10)
DONE, MORE, GROW = range(3)  # what `split_metaspace` returns
# What a code point becomes. Other white space is a character unless words are split at it.
PLAIN, SPACE, WHITE, MARK, DELETED, REPLACED = range(6)
# In `Rules.stays`: unchanged code points. Between two that STAY a cluster always ends. A code point that STAYS_AFTER
# joins the cluster before it. If all code points of such a cluster have three bytes, it is too long to be replaced as a
# whole.
STAYS, STAYS_AFTER = 1, 2
WIDTH = len(CLASSES)
_MARK, _REPLACEMENT = 0x2581, 0xFFFD


class Rules(NamedTuple):
    """What happens to each code point and word."""

    kinds: np.ndarray  # uint8 (0x110000,)
    stays: np.ndarray  # uint8 (0x110000,): STAYS, STAYS_AFTER or 0
    places: np.ndarray  # int32 (0x110000,): index in `texts` of what replaces a code point of kind REPLACED
    classes: np.ndarray  # uint8 (0x110000,): the class in the automaton of clusters
    steps: np.ndarray  # uint8: `graphemes.transitions`; only boundaries if there is no map
    units: np.ndarray  # uint32: the trie of a `CharacterMap`
    texts: np.ndarray  # uint8: its texts
    options: np.ndarray  # bool (7,): WHITESPACE_SPLIT to TABS_ARE_SPACES below


# In `Rules.options`: split at white space; put a mark before each part; cut before each mark; drop white space at the
# end of a document; replace runs of spaces by one space; whether visible ASCII and spaces are unchanged; whether tabs
# and line feeds become spaces.
WHITESPACE_SPLIT, PREPENDS, CUTS, STRIPS, SQUEEZES, ASCII_STAYS, TABS_ARE_SPACES = range(7)


@intrinsic
def _classify(typing_context, array, index, tabs):
    """Return masks of array[index:index + 64], uint8: visible ASCII, and spaces, with tabs and line feeds if `tabs`.

    Not bounds-checked.
    """

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        vector = ir.VectorType(ir.IntType(8), WINDOW)
        window = builder.load(builder.bitcast(builder.gep(view.data, [arguments[1]]), vector.as_pointer()))
        window.align = 1

        def splat(value: int):
            return ir.Constant(vector, [ir.Constant(ir.IntType(8), value)] * WINDOW)

        def within(first: int, last: int):
            return builder.icmp_unsigned("<=", builder.sub(window, splat(first)), splat(last - first))

        tab = builder.bitcast(within(0x09, 0x0A), ir.IntType(WINDOW))
        space = builder.bitcast(builder.icmp_unsigned("==", window, splat(0x20)), ir.IntType(WINDOW))
        space = builder.or_(space, builder.select(arguments[2], tab, ir.Constant(ir.IntType(WINDOW), 0)))
        visible = builder.bitcast(within(0x21, 0x7E), ir.IntType(WINDOW))
        return context.make_tuple(builder, signature.return_type, [visible, space])

    return types.UniTuple(types.uint64, 2)(array, types.int64, types.boolean), codegen


@inlined
def _end_word(ends, n, word_start, at):
    """Complete the word that starts at `word_start`, unless it is empty. Return the number of complete words."""
    if at > word_start:
        ends[n] = at
        n += 1
    return n


@inlined
def _raw_kind(c):
    """Return the kind of a code point without a map."""
    if c == 0x20:
        return SPACE
    if c == _MARK:
        return MARK
    white = 0x09 <= c <= 0x0D or c == 0x85 or c == 0xA0 or c == 0x1680 or 0x2000 <= c <= 0x200A
    return WHITE if white or c == 0x2028 or c == 0x2029 or c == 0x202F or c == 0x205F or c == 0x3000 else PLAIN


@kernel
def fill_kinds(units, texts, kinds, places, copy):
    """Fill `Rules.kinds` and `Rules.places`. units: empty if there is no map. copy: uint8 (16,), scratch memory."""
    for c in range(len(kinds)):
        kinds[c] = _raw_kind(c)
        if len(units) == 0 or 0xD800 <= c < 0xE000:
            continue
        size = write_utf8(np.int64(c), copy, 0)
        place = shortest_key(copy, size, units)
        if place < 0:
            continue
        places[c] = place
        if texts[place] == 0:
            kinds[c] = DELETED
        elif texts[place] == 0x20 and texts[place + 1] == 0:
            kinds[c] = SPACE
        else:
            kinds[c] = REPLACED


@inlined
def _put(c, kind, options, out, at, word_start, ends, n, pending, after_space, solid):
    """Write a normalized code point.

    Return the end of the text, the start of its last word, the number of words, whether a mark must go before the next
    character, whether this was a space, and the end of the text without trailing white space.
    """
    if options[WHITESPACE_SPLIT] and (kind == SPACE or kind == WHITE):  # noqa: SIM109 - numba
        n = _end_word(ends, n, word_start, at)
        return at, at, n, options[PREPENDS], False, solid
    if kind == SPACE or kind == MARK:  # noqa: SIM109 - numba
        if kind == SPACE and after_space and options[SQUEEZES]:
            return at, word_start, n, pending, after_space, solid
        if options[CUTS]:
            n = _end_word(ends, n, word_start, at)
            word_start = at
        out[at] = 0x20
        at += 1
        return at, word_start, n, False, kind == SPACE, at if kind == MARK else solid
    if pending:
        out[at] = 0x20
        at += 1
    at = write_utf8(c, out, at)
    return at, word_start, n, False, False, solid if kind == WHITE else at


@internal
def _put_text(place, texts, options, out, ends, state):
    """Write the normalized text texts[place:], which ends with NUL."""
    at, word_start, n, solid = state[AT], state[WORD_START], state[WORDS], state[SOLID]
    pending, after_space = state[PENDING] != 0, state[AFTER_SPACE] != 0
    while texts[place]:
        c, width = decode_utf8(texts, place, len(texts))
        place += width
        at, word_start, n, pending, after_space, solid = _put(
            c, _raw_kind(c), options, out, at, word_start, ends, n, pending, after_space, solid
        )
    state[AT], state[WORD_START], state[WORDS], state[SOLID] = at, word_start, n, solid
    state[PENDING], state[AFTER_SPACE] = pending, after_space


@inlined
def _put_window(data, position, end, options, out, at, word_start, ends, n, pending, after_space, solid):
    """Write up to 64 bytes of visible ASCII and spaces, but not a character that a combining mark may follow.

    Return the position after them, and what `_put` returns.
    """
    visible, white = _classify(data, position, options[TABS_ARE_SPACES])
    length = min(np.int64(trailing_zeros(~(visible | white))), end - position)
    if position + length < end and data[position + length] >= 0x80 and length:
        length -= 1
    if length < WINDOW:
        visible &= (ONE << np.uint64(length)) - ONE
    starts = visible & ~(visible << ONE)
    stops = visible & ~(visible >> ONE)
    done = 0
    while True:
        start = np.int64(trailing_zeros(starts)) if starts else length
        if start > done:  # spaces
            if options[WHITESPACE_SPLIT]:
                n = _end_word(ends, n, word_start, at)
                word_start = at
                pending = options[PREPENDS]
            else:
                for _ in range(start - done):
                    at, word_start, n, pending, after_space, solid = _put(
                        0x20, SPACE, options, out, at, word_start, ends, n, pending, after_space, solid
                    )
        if starts == 0:
            break
        stop = np.int64(trailing_zeros(stops)) + 1
        starts &= starts - ONE
        stops &= stops - ONE
        out[at] = 0x20
        at += np.int64(pending)
        pending = False
        for k in range(start, stop, 8):
            store_8(out, at + k - start, load_8(data, position + k))
        at += stop - start
        solid = at
        after_space = False
        done = stop
    return position + length, at, word_start, n, pending, after_space, solid


@inlined
def _two_bytes(word):
    """Return the code point at the start of 8 bytes of UTF-8 if it has two bytes, else 0."""
    if word & np.uint64(0xC0E0) != np.uint64(0x80C0):
        return np.int64(0)
    c = (word & np.uint64(0x1F)) << np.uint64(6) | word >> np.uint64(8) & np.uint64(0x3F)
    return np.int64(c) if c >= 0x80 else np.int64(0)


@inlined
def _three_bytes(word):
    """Return the code point at the start of 8 bytes of UTF-8 if it has three bytes, else 0."""
    if word & np.uint64(0xC0C0F0) != np.uint64(0x8080E0):
        return np.int64(0)
    c = (word & np.uint64(0x0F)) << np.uint64(12) | word >> np.uint64(2) & np.uint64(0xFC0)
    c |= word >> np.uint64(16) & np.uint64(0x3F)
    return np.int64(c) if c >= 0x800 else np.int64(0)


@inlined
def _put_run(data, position, c, width, end, rules, pending, out, at, word_start, ends, n):
    """Write the unchanged characters from `position` on, up to the last one that STAYS: its cluster may continue.

    Words may have one space between them if characters beyond ASCII surround it. Return the position, code point and
    width of the last character, then the end of the text, the start of its last word, the number of words, and whether
    a mark goes before the last character. c, width: the code point at `position`, and its bytes.
    """
    stays = rules.stays
    splits = rules.options[WHITESPACE_SPLIT] and rules.options[ASCII_STAYS]
    last = position
    while True:
        out[at] = 0x20
        shift = at + np.int64(pending) - position  # from `data` to `out`
        store_8(out, last + shift, load_8(data, last))
        place, before, done = last + width, width, 0
        while place != done:
            done = place
            # One loop for each width, so that the processor need not wait for the width of a character.
            while place + 3 <= end:
                store_8(out, place + shift, load_8(data, place))
                following = _three_bytes(load_8(data, place))
                if stays[following] == STAYS:
                    last, c, width = place, following, 3
                elif stays[following] != STAYS_AFTER or before != 3:
                    break
                place += 3
                before = 3
            while place + 2 <= end:
                store_8(out, place + shift, load_8(data, place))
                following = _two_bytes(load_8(data, place))
                if stays[following] != STAYS:
                    break
                last, c, width = place, following, 2
                place += 2
                before = 2
        if splits and place + 4 <= end and data[place] == 0x20:
            word = load_8(data, place + 1)
            following, following_width = _three_bytes(word), 3
            if following == 0:
                following, following_width = _two_bytes(word), 2
            if stays[following] == STAYS:
                at = place + shift
                n = _end_word(ends, n, word_start, at)
                word_start = at
                pending = rules.options[PREPENDS]
                position = last = place + 1
                c, width = following, following_width
                continue
        if last > position:
            return last, c, width, last + shift, word_start, n, False
        return position, c, width, at, word_start, n, pending


@internal
def _cluster_text(data, position, end, rules, copy, step):
    """Return the end of the cluster at `position`, the index in `texts` of its replacement, and the state after it.

    The index is -1 if the cluster is replaced code point by code point. step: the state after the first code point.
    """
    c, width = decode_utf8(data, position, end)
    size = write_utf8(c, copy, 0)
    after = position + width
    while after < end and size < SHORT_CLUSTER:
        c, width = decode_utf8(data, after, end)
        following = rules.steps[step * WIDTH + rules.classes[c]]
        if following & BOUNDARY:
            break
        size = write_utf8(c, copy, size)
        step = np.int64(following)
        after += width
    return after, shortest_key(copy, size, rules.units) if size < SHORT_CLUSTER else np.int64(-1), step


@kernel
def split_metaspace(data, offsets, limit, kinds, stays, places, classes, steps, units, texts, options, copy, out,
                    out_offsets, ends, state):  # fmt: skip
    """Write the words of documents to `out`, uint8, and the end of each word to `ends`, int64.

    data: uint8; document d is data[offsets[d]:offsets[d + 1]], and out[out_offsets[d]:out_offsets[d + 1]] its words.
    The arrays after `limit` are `Rules`; copy: uint8 (16,), scratch memory. `ends` is as long as `out`. state[PENDING]
    must be set at the beginning if a mark goes before a text. Return DONE; MORE after about `limit` bytes; GROW if
    `out` has less than ROOM bytes left.
    """
    rules = Rules(kinds, stays, places, classes, steps, units, texts, options)
    position = state[POSITION]
    stop = position + limit
    safe = len(data) - WINDOW
    at, word_start, n, solid = state[AT], state[WORD_START], state[WORDS], state[SOLID]
    pending, after_space = state[PENDING] != 0, state[AFTER_SPACE] != 0
    cluster, parted = state[CLUSTER], state[PARTED] != 0
    after_other = np.int64(steps[START * WIDTH + OTHER] & 0x7F)
    outcome = DONE
    ahead, c, width = np.int64(-1), np.int64(0), 0  # the position of a code point that is already decoded
    while state[DOCUMENT] < len(offsets) - 1:
        end = offsets[state[DOCUMENT] + 1]
        while position < end:
            if position >= stop:
                outcome = MORE
                break
            if at + ROOM > len(out):
                outcome = GROW
                break
            if (
                position <= safe
                and data[position] < 0x80
                and data[position + 1] < 0x80
                and options[ASCII_STAYS]
                and steps[cluster * WIDTH + OTHER] & BOUNDARY
            ):
                before = position
                position, at, word_start, n, pending, after_space, solid = _put_window(
                    data, position, end, options, out, at, word_start, ends, n, pending, after_space, solid
                )
                if position > before:
                    cluster = after_other
                    parted = False
                    continue
            if ahead != position:
                c, width = decode_utf8(data, position, end)
            step = np.int64(steps[cluster * WIDTH + classes[c]])
            if stays[c] == STAYS and step & BOUNDARY and position < safe:
                before = position
                limited = min(end, safe, position + RUN)
                position, c, width, at, word_start, n, pending = _put_run(
                    data, position, c, width, limited, rules, pending, out, at, word_start, ends, n
                )
                if position > before:
                    step = np.int64(steps[START * WIDTH + classes[c]])
                    after_space = False
            cluster = step & ~BOUNDARY
            this, kind = c, kinds[c]
            after = position + width
            is_copy = position <= safe and c != _REPLACEMENT  # else a byte that is not UTF-8 may be replaced
            place = np.int64(-1)
            if (not parted or step & BOUNDARY) and after < end:
                parted = False
                c, width = decode_utf8(data, after, end)
                ahead = after
                if not steps[cluster * WIDTH + classes[c]] & BOUNDARY:
                    after_cluster, place, last = _cluster_text(data, position, end, rules, copy, cluster)
                    parted = place < 0
                    if place >= 0:
                        after, cluster = after_cluster, last
            if place < 0 and kind == REPLACED:
                place = np.int64(places[this])
            if place >= 0:
                state[AT], state[WORD_START], state[WORDS], state[SOLID] = at, word_start, n, solid
                state[PENDING], state[AFTER_SPACE] = pending, after_space
                _put_text(place, texts, options, out, ends, state)
                at, word_start, n, solid = state[AT], state[WORD_START], state[WORDS], state[SOLID]
                pending, after_space = state[PENDING] != 0, state[AFTER_SPACE] != 0
            elif kind == PLAIN and is_copy:
                out[at] = 0x20
                at += np.int64(pending)
                store_8(out, at, load_8(data, position))
                at += after - position
                solid = at
                pending = after_space = False
            elif kind != DELETED:
                at, word_start, n, pending, after_space, solid = _put(
                    this, kind, options, out, at, word_start, ends, n, pending, after_space, solid
                )
            position = after
        if outcome != DONE:
            break
        if options[STRIPS]:
            at = solid
            start = out_offsets[state[DOCUMENT]]
            while n > 0 and ends[n - 1] > max(at, start):
                n -= 1
            word_start = max(start, ends[n - 1]) if n > 0 else start
        n = _end_word(ends, n, word_start, at)
        state[DOCUMENT] += 1
        out_offsets[state[DOCUMENT]] = at
        word_start = solid = at
        pending = options[PREPENDS]
        after_space = parted = False
        cluster = START
    state[POSITION] = position
    state[AT], state[WORD_START], state[WORDS], state[SOLID] = at, word_start, n, solid
    state[PENDING], state[AFTER_SPACE] = pending, after_space
    state[CLUSTER], state[PARTED] = cluster, parted
    return outcome

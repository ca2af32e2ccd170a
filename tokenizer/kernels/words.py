"""BERT's words: one loop that normalizes UTF-8, and writes the words without the white space between them.

ASCII text goes 64 bytes at a time, through vector instructions as in `kernels.ascii`. Other code points go one by one
through the class table of `splitting.bert_characters`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from tokenizer.kernels.tools import ONE, inlined, internal, kernel, load_8, store_8, trailing_zeros
from tokenizer.splitting.bert_characters import ALONE, DELETED, DIVIDER, MARK, REPLACED, SPACE, WORD

WINDOW = 64
# Indices in `state`: the next document and byte to read; the end of the written text, the start of its last word, and
# the number of words; start of the last run of combining marks, its last class, and whether its order is wrong.
DOCUMENT, POSITION, AT, WORD_START, WORDS, RUN_START, LAST_CLASS, UNSORTED = range(8)
DONE, MORE, SORT = range(3)  # what `split_words` returns
REPLACEMENT = 0xFFFD


class Table(NamedTuple):
    """What happens to each code point."""

    classes: np.ndarray  # uint8 (0x110000,)
    places: np.ndarray  # int32 (0x110000,): index in `replacements` of the first code point that replaces it
    replacements: np.ndarray  # int32: code points, each replacement ends with -1
    # uint64 (0x110000,): the bytes of a replacement of up to 7 bytes within a word, and their number in the top byte
    packed: np.ndarray
    combining_classes: np.ndarray  # uint8 (0x110000,)
    lowercase: bool


@intrinsic
def _classify(typing_context, array, index, lower, copy):
    """Return masks of array[index:index + 64], uint8: letters and digits, white space, punctuation. Copy these bytes to
    `copy`, uint8, upper case as lower case if `lower`. Not bounds-checked."""

    def codegen(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        vector = ir.VectorType(ir.IntType(8), WINDOW)
        window = builder.load(builder.bitcast(builder.gep(view.data, [arguments[1]]), vector.as_pointer()))
        window.align = 1

        def splat(value: int):
            return ir.Constant(vector, [ir.Constant(ir.IntType(8), value)] * WINDOW)

        def within(vector, first: int, last: int):
            return builder.icmp_unsigned("<=", builder.sub(vector, splat(first)), splat(last - first))

        upper = within(window, ord("A"), ord("Z"))
        folded = builder.or_(window, builder.select(upper, splat(0x20), splat(0)))
        lowered = builder.select(arguments[2], folded, window)
        target = context.make_array(signature.args[3])(context, builder, arguments[3])
        builder.store(lowered, builder.bitcast(target.data, vector.as_pointer()), align=1)
        words = builder.or_(within(folded, ord("a"), ord("z")), within(window, ord("0"), ord("9")))
        white = builder.or_(builder.icmp_unsigned("==", window, splat(ord(" "))), within(window, 0x09, 0x0A))
        white = builder.or_(white, builder.icmp_unsigned("==", window, splat(0x0D)))
        punctuation = builder.and_(within(window, 0x21, 0x7E), builder.not_(words))
        masks = [builder.bitcast(mask, ir.IntType(WINDOW)) for mask in (words, white, punctuation)]
        return context.make_tuple(builder, signature.return_type, masks)

    return types.UniTuple(types.uint64, 3)(array, types.int64, types.boolean, copy), codegen


@inlined
def decode_utf8(data, position, end):
    """Return the code point at `position` and its width in bytes; U+FFFD and 1 for a byte that is not UTF-8."""
    first = np.int64(data[position])
    if first < 0x80:
        return first, 1
    if 0xC2 <= first < 0xE0:
        if position + 1 < end and data[position + 1] & 0xC0 == 0x80:
            return (first & 0x1F) << 6 | np.int64(data[position + 1]) & 0x3F, 2
    elif 0xE0 <= first < 0xF0:
        if position + 2 < end and data[position + 1] & 0xC0 == 0x80 and data[position + 2] & 0xC0 == 0x80:
            code_point = (
                (first & 0x0F) << 12 | (np.int64(data[position + 1]) & 0x3F) << 6 | np.int64(data[position + 2]) & 0x3F
            )
            if code_point >= 0x800 and not 0xD800 <= code_point < 0xE000:
                return code_point, 3
    elif (
        0xF0 <= first < 0xF5
        and position + 3 < end
        and data[position + 1] & 0xC0 == 0x80
        and data[position + 2] & 0xC0 == 0x80
        and data[position + 3] & 0xC0 == 0x80
    ):
        code_point = (first & 0x07) << 18 | (np.int64(data[position + 1]) & 0x3F) << 12
        code_point |= (np.int64(data[position + 2]) & 0x3F) << 6 | np.int64(data[position + 3]) & 0x3F
        if 0x10000 <= code_point < 0x110000:
            return code_point, 4
    return np.int64(REPLACEMENT), 1


@inlined
def write_utf8(code_point, out, at):
    """Write a code point in UTF-8 to out[at:]. Return the end of its bytes."""
    if code_point < 0x80:
        out[at] = code_point
        return at + 1
    if code_point < 0x800:
        out[at] = 0xC0 | code_point >> 6
        out[at + 1] = 0x80 | code_point & 0x3F
        return at + 2
    if code_point < 0x10000:
        out[at] = 0xE0 | code_point >> 12
        out[at + 1] = 0x80 | code_point >> 6 & 0x3F
        out[at + 2] = 0x80 | code_point & 0x3F
        return at + 3
    out[at] = 0xF0 | code_point >> 18
    out[at + 1] = 0x80 | code_point >> 12 & 0x3F
    out[at + 2] = 0x80 | code_point >> 6 & 0x3F
    out[at + 3] = 0x80 | code_point & 0x3F
    return at + 4


@inlined
def end_word(ends, n, word_start, at):
    """End the word that starts at `word_start`, if it has a byte. Return the number of words."""
    if at > word_start:
        ends[n] = at
        n += 1
    return n


@inlined
def _split_window(data, position, end, lowercase, copy, out, at, word_start, ends, n):
    """Split the ASCII letters, digits, white space and punctuation from `position` on, up to 64 bytes.

    Return the position after them, the end of the written text, the start of its last word, and the number of words.
    """
    word, white, punctuation = _classify(data, position, lowercase, copy)
    known = word | white | punctuation
    length = np.int64(trailing_zeros(~known))
    length = min(length, end - position)
    if length < WINDOW:
        known = (ONE << np.uint64(length)) - ONE
        word &= known
        punctuation &= known
    if length and not word & ONE:  # the last word does not continue
        n = end_word(ends, n, word_start, at)
        word_start = at
    starts = punctuation | word & ~(word << ONE)
    stops = punctuation | word & ~(word >> ONE)  # last byte of every word
    while starts:
        start = np.int64(trailing_zeros(starts))
        stop = np.int64(trailing_zeros(stops)) + 1
        starts &= starts - ONE
        stops &= stops - ONE
        for k in range(start, stop, 8):
            store_8(out, at + k - start, load_8(copy, k))
        at += stop - start
        if stop < length or punctuation >> np.uint64(stop - 1) & ONE:
            ends[n] = at
            n += 1
            word_start = at
    return position + length, at, word_start, n


@internal
def _split_one(code_point, table, out, at, ends, state):
    """Write what the table makes of a code point to out[at:], and end words. Return the end of the text."""
    kind = table.classes[code_point]
    place = np.int64(table.places[code_point])
    n = state[WORDS]
    word_start = state[WORD_START]
    last_class = state[LAST_CLASS]
    while True:
        part = code_point
        if kind == REPLACED:
            part = np.int64(table.replacements[place])
            if part < 0:
                break
            place += 1
        part_kind = table.classes[part]
        if part_kind == MARK:
            combining = np.int64(table.combining_classes[part])
            if last_class == 0:
                state[RUN_START] = at
            elif combining < last_class:
                state[UNSORTED] = 1
            last_class = combining
            at = write_utf8(part, out, at)
        elif part_kind != DELETED:
            last_class = 0
            if part_kind == SPACE or part_kind == ALONE:  # noqa: SIM109 - numba
                n = end_word(ends, n, word_start, at)
                word_start = at
            if part_kind != SPACE and part_kind != DIVIDER:
                at = write_utf8(part, out, at)
            if part_kind == ALONE:
                n = end_word(ends, n, word_start, at)
                word_start = at
        if kind != REPLACED:
            break
    state[WORDS] = n
    state[WORD_START] = word_start
    state[LAST_CLASS] = last_class
    return at


@internal
def _split_text(data, position, end, stop, table, copy, out, at, ends, state):
    """Write the words of data[position:end] up to about `stop`, while no combining mark stays: the order of marks needs
    `_split_one`. Return the next position, and the end of the text."""
    classes = table.classes
    n = state[WORDS]
    word_start = state[WORD_START]
    safe = len(data) - WINDOW
    while position < min(end, stop):
        if position <= safe and data[position] < 0x80 and data[position + 1] < 0x80:
            before = position
            position, at, word_start, n = _split_window(
                data, position, end, table.lowercase, copy, out, at, word_start, ends, n
            )
            if position > before:
                continue
        code_point, width = decode_utf8(data, position, end)
        kind = classes[code_point]
        if kind == WORD and code_point != REPLACEMENT and position <= safe:
            store_8(out, at, load_8(data, position))
            at += width
        elif kind == WORD:
            at = write_utf8(code_point, out, at)
        elif kind == REPLACED and table.packed[code_point]:
            store_8(out, at, table.packed[code_point])
            at += np.int64(table.packed[code_point] >> np.uint64(56))
        elif kind == SPACE:
            n = end_word(ends, n, word_start, at)
            word_start = at
        elif kind == ALONE:
            n = end_word(ends, n, word_start, at)
            at = write_utf8(code_point, out, at)
            ends[n] = at
            n += 1
            word_start = at
        elif kind != DELETED:
            break
        position += width
    state[WORDS] = n
    state[WORD_START] = word_start
    return position, at


@kernel
def split_words(data, offsets, limit, classes, places, replacements, packed, combining_classes, lowercase, copy, out,
                out_offsets, ends, state):  # fmt: skip
    """Write the words of documents to `out`, uint8, without white space, and the end of each word to `ends`, int64.

    data: uint8; document d is data[offsets[d]:offsets[d + 1]], and out[out_offsets[d]:out_offsets[d + 1]] its words.
    The arrays after `limit` are a `Table`; copy: uint8 (64 + 8,), scratch memory. `out` has room for three times the
    data and 64 bytes, `ends` for a word per byte and 64. Return DONE; MORE after about `limit` bytes; SORT if the marks
    from state[RUN_START] on must be sorted by class before the next call.
    """
    table = Table(classes, places, replacements, packed, combining_classes, lowercase)
    position = state[POSITION]
    at = state[AT]
    stop = position + limit
    while state[DOCUMENT] < len(offsets) - 1:
        end = offsets[state[DOCUMENT] + 1]
        while position < min(end, stop):
            if state[LAST_CLASS] == 0:
                position, at = _split_text(data, position, end, stop, table, copy, out, at, ends, state)
                if position >= min(end, stop):
                    break
            code_point, width = decode_utf8(data, position, end)
            kind = classes[code_point]
            if state[UNSORTED] and kind != MARK and kind != DELETED:
                break
            at = _split_one(code_point, table, out, at, ends, state)
            position += width
        state[POSITION] = position
        state[AT] = at
        if state[UNSORTED]:
            return SORT
        if position < end:
            return MORE
        state[WORDS] = end_word(ends, state[WORDS], state[WORD_START], at)
        state[WORD_START] = at
        state[LAST_CLASS] = 0
        state[DOCUMENT] += 1
        out_offsets[state[DOCUMENT]] = at
    return DONE

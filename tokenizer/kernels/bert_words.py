"""BERT's words: normalize UTF-8 text, and write its words one directly after the other.

ASCII text is split 64 bytes at a time with vector instructions, as in `kernels.ascii`. Any other code point is looked
up in the class table of `splitting.bert_characters`.
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
# Indices in `state`: the next document and byte to read; the end of `out` and the number of complete words; of the
# combining marks written last: their start, the class of the last one, and whether they are out of order.
DOCUMENT, POSITION, AT, WORDS, RUN_START, LAST_CLASS, UNSORTED = range(7)
DONE, MORE, SORT = range(3)  # what `split_words` returns
REPLACEMENT = 0xFFFD


class Table(NamedTuple):
    """What happens to each code point."""

    classes: np.ndarray  # uint8 (0x110000,)
    places: np.ndarray  # int32 (0x110000,): index in `replacements` of the first code point that replaces it
    replacements: np.ndarray  # int32: code points, each replacement ends with -1
    # uint64 (0x110000,): a replacement of up to 7 bytes that stays within a word, with its length in the top byte, or 0
    packed: np.ndarray
    combining_classes: np.ndarray  # uint8 (0x110000,)
    lowercase: bool


@intrinsic
def _classify(typing_context, array, index, lower, copy):
    """Return three masks of array[index:index + 64], uint8: letters and digits, white space, punctuation.

    Copies these bytes to `copy`, uint8, in lower case if `lower`. Not bounds-checked.
    """

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
    """Write a code point to out[at:] in UTF-8. Return the end of the text."""
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
def _end_word(ends, n, at):
    """Complete the word that ends at `at`, unless it is empty. Return the number of complete words."""
    if at > ends[n]:
        n += 1
        ends[n] = at
    return n


@inlined
def _split_window(data, position, end, lowercase, copy, out, at, ends, n):
    """Write the words of up to 64 bytes, up to the first byte that is not an ASCII letter, digit, space or punctuation.

    Return the position of this byte, the end of the text, and the number of complete words.
    """
    word, white, punctuation = _classify(data, position, lowercase, copy)
    known = word | white | punctuation
    length = np.int64(trailing_zeros(~known))
    length = min(length, end - position)
    if length < WINDOW:
        known = (ONE << np.uint64(length)) - ONE
        word &= known
        punctuation &= known
    if length and not word & ONE:  # the word before this window does not continue
        n = _end_word(ends, n, at)
    starts = punctuation | word & ~(word << ONE)
    stops = punctuation | word & ~(word >> ONE)  # last byte of every word
    while starts:
        start = np.int64(trailing_zeros(starts))
        stop = np.int64(trailing_zeros(stops)) + 1
        starts &= starts - ONE
        stops &= stops - ONE
        # Most words have up to 16 bytes, so the loop rarely runs, and the processor predicts that.
        store_8(out, at, load_8(copy, start))
        store_8(out, at + 8, load_8(copy, start + 8))
        for k in range(start + 16, stop, 8):
            store_8(out, at + k - start, load_8(copy, k))
        at += stop - start
        n += 1
        ends[n] = at
    if length and word >> np.uint64(length - 1) & ONE:  # the last word may continue
        n -= 1
    return position + length, at, n


@internal
def _split_one(code_point, table, out, at, ends, state):
    """Write a code point or its replacement to out[at:], and note the order of combining marks.

    Return the end of the text.
    """
    kind = table.classes[code_point]
    place = np.int64(table.places[code_point])
    n = state[WORDS]
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
                n = _end_word(ends, n, at)
            if part_kind != SPACE and part_kind != DIVIDER:
                at = write_utf8(part, out, at)
            if part_kind == ALONE:
                n = _end_word(ends, n, at)
        if kind != REPLACED:
            break
    state[WORDS] = n
    state[LAST_CLASS] = last_class
    return at


@internal
def _split_text(data, position, end, stop, table, copy, out, at, ends, state):
    """Write the words of data[position:end] up to the first code point that may write a combining mark, or to about
    `stop`. Return the next position, and the end of the text."""
    classes = table.classes
    n = state[WORDS]
    safe = len(data) - WINDOW
    while position < min(end, stop):
        if position <= safe and data[position] < 0x80 and data[position + 1] < 0x80:
            before = position
            position, at, n = _split_window(data, position, end, table.lowercase, copy, out, at, ends, n)
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
            n = _end_word(ends, n, at)
        elif kind == ALONE:
            n = _end_word(ends, n, at)
            at = write_utf8(code_point, out, at)
            n = _end_word(ends, n, at)
        elif kind != DELETED:
            break
        position += width
    state[WORDS] = n
    return position, at


@kernel
def split_words(data, offsets, limit, classes, places, replacements, packed, combining_classes, lowercase, copy, out,
                out_offsets, ends, state):  # fmt: skip
    """Write the words of documents to `out`, uint8, and their ends to `ends`, int64.

    Document d is data[offsets[d]:offsets[d + 1]], uint8; its words are out[out_offsets[d]:out_offsets[d + 1]]. Word w
    is out[ends[w]:ends[w + 1]]; the caller sets ends[0] to 0. `out` needs room for three times the data and 64 bytes,
    `ends` for a word per byte and 64. The arrays after `limit` are a `Table`; copy is scratch memory, uint8 (80,).

    Return DONE; MORE after about `limit` bytes; SORT if the caller must sort out[state[RUN_START]:state[AT]], combining
    marks, by class before the next call.
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
        state[WORDS] = _end_word(ends, state[WORDS], at)
        state[LAST_CLASS] = 0
        state[DOCUMENT] += 1
        out_offsets[state[DOCUMENT]] = at
    return DONE

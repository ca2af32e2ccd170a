"""The scanner: one loop that runs a pattern's automaton over UTF-8 and writes where each pretoken ends."""

from __future__ import annotations

import numba
import numpy as np

from tokenizer.patterns import (
    APOSTROPHE,
    EMIT,
    EMIT_AT_MARK,
    END,
    MARK_AFTER,
    MARK_BEFORE,
    MULTIBYTE,
    START,
)


@numba.njit(nogil=True, cache=True)
def scan(data, offsets, document, position, ends, actions, loops, byte_classes, code_point_classes, fold):
    """Split documents until `ends` is full or the documents are done.

    data: uint8 bytes of all documents; offsets: int64, document d is data[offsets[d]:offsets[d + 1]], and
    documents follow one another without gaps. `document`, `position`: where to go on (the start of a
    pretoken). Writes the end of each pretoken to `ends` (int64); a pretoken starts where the last one ended.
    Bytes that are no UTF-8 are pretokens of one byte each, and text is split as if it ended before them.
    Returns (pretokens written, document, position).
    """
    n = 0
    documents = len(offsets) - 1
    while document < documents:
        end = offsets[document + 1]
        state = START
        start = position
        mark = position
        while n < len(ends):
            # The class and width of the code point at `position`; END past the text.
            width = 1
            bad = False
            if position >= end:
                if start >= end:
                    break
                scanner_class = END
            else:
                first = np.int64(data[position])
                scanner_class = byte_classes[first]
                if scanner_class == MULTIBYTE:
                    code_point = np.int64(-1)
                    if first >= 0xC2:
                        if first < 0xE0:
                            if position + 1 < end:
                                second = np.int64(data[position + 1])
                                if second & 0xC0 == 0x80:
                                    code_point = (first & 0x1F) << 6 | second & 0x3F
                                    width = 2
                        elif first < 0xF0:
                            if position + 2 < end:
                                second = np.int64(data[position + 1])
                                third = np.int64(data[position + 2])
                                if second & 0xC0 == 0x80 and third & 0xC0 == 0x80:
                                    code_point = (first & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
                                    width = 3
                                    if code_point < 0x800 or 0xD800 <= code_point < 0xE000:
                                        code_point = np.int64(-1)
                        elif first < 0xF5 and position + 3 < end:
                            second = np.int64(data[position + 1])
                            third = np.int64(data[position + 2])
                            fourth = np.int64(data[position + 3])
                            if second & 0xC0 == 0x80 and third & 0xC0 == 0x80 and fourth & 0xC0 == 0x80:
                                code_point = (
                                    (first & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6
                                ) | fourth & 0x3F
                                width = 4
                                if code_point < 0x10000 or code_point > 0x10FFFF:
                                    code_point = np.int64(-1)
                    if code_point >= 0:
                        scanner_class = code_point_classes[code_point]
                    else:
                        scanner_class = END
                        bad = True
                        width = 1

            if state == START:
                if bad:
                    position += 1
                    ends[n] = position
                    n += 1
                    start = position
                    continue
                if scanner_class == APOSTROPHE and position + 1 < end:
                    length = 0
                    one = data[position + 1]
                    if fold and 65 <= one <= 90:
                        one += 32
                    if one == 115 or one == 100 or one == 109 or one == 116:  # 's 'd 'm 't
                        length = 2
                    elif position + 2 < end:
                        two = data[position + 2]
                        if fold and 65 <= two <= 90:
                            two += 32
                        if (
                            (one == 108 and two == 108)  # 'll
                            or (one == 118 and two == 101)  # 've
                            or (one == 114 and two == 101)  # 're
                            or (fold and one == 0xC5 and two == 0xBF)  # the long s, which folds to s
                        ):
                            length = 3
                    if length:
                        position += length
                        ends[n] = position
                        n += 1
                        start = position
                        continue

            action = actions[state << 3 | scanner_class]
            if action < EMIT:
                if action & MARK_BEFORE:
                    mark = position
                position += width
                if action & MARK_AFTER:
                    mark = position
                state = action & 15
                loop = loops[state]
                if loop != 255:
                    while position < end and byte_classes[data[position]] == loop:
                        position += 1
            else:
                if action == EMIT_AT_MARK:
                    position = mark
                ends[n] = position
                n += 1
                start = position
                state = START
        if position < end or start < end:
            # `ends` is full; the next call goes on at the start of the pretoken in progress.
            return n, document, start
        document += 1
        position = end
        if n == len(ends):
            break
    return n, document, position

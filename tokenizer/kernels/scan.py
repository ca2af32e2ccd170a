"""The scanner: one loop that runs a pattern's automaton over UTF-8 and writes the end of each pretoken."""

from __future__ import annotations

import numpy as np

from tokenizer.kernels.ascii import split_ascii
from tokenizer.kernels.tools import inlined, kernel
from tokenizer.splitting.automata import EMIT, EMIT_AT_MARK, EMIT_BYTE, END, MARK, MULTIBYTE, NO_ASCII_RULES, START


@inlined
def _class_and_width(data, position, end, byte_classes, code_point_classes):
    """Return the class and the width in bytes of the code point at `position`.

    The class is END after the text and at a byte that is not UTF-8, which has width 1.
    """
    scanner_class = END
    width = 1
    if position < end:
        first = np.int64(data[position])
        scanner_class = byte_classes[first]
        if scanner_class == MULTIBYTE:
            scanner_class = END
            if 0xC2 <= first < 0xE0:
                if position + 1 < end:
                    second = np.int64(data[position + 1])
                    if second & 0xC0 == 0x80:
                        scanner_class = code_point_classes[(first & 0x1F) << 6 | second & 0x3F]
                        width = 2
            elif 0xE0 <= first < 0xF0:
                if position + 2 < end:
                    second = np.int64(data[position + 1])
                    third = np.int64(data[position + 2])
                    if second & 0xC0 == 0x80 and third & 0xC0 == 0x80:
                        code_point = (first & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
                        if code_point >= 0x800:
                            scanner_class = code_point_classes[code_point]
                            width = 3
            elif 0xF0 <= first < 0xF5 and position + 3 < end:
                second = np.int64(data[position + 1])
                third = np.int64(data[position + 2])
                fourth = np.int64(data[position + 3])
                if second & 0xC0 == 0x80 and third & 0xC0 == 0x80 and fourth & 0xC0 == 0x80:
                    code_point = ((first & 0x07) << 18 | (second & 0x3F) << 12 | (third & 0x3F) << 6) | fourth & 0x3F
                    if 0x10000 <= code_point < 0x110000:
                        scanner_class = code_point_classes[code_point]
                        width = 4
    return scanner_class, width


@kernel
def scan(data, offsets, document, position, ends, actions, byte_classes, code_point_classes, ascii_rules):
    """Split documents until `ends` is full or the documents are done.

    data: uint8, all documents without gaps; document d is data[offsets[d]:offsets[d + 1]], offsets int64. document,
    position: where to continue, at the start of a pretoken. Writes the end of each pretoken to `ends`, int64; the next
    pretoken starts there. Each byte that is not UTF-8 is a pretoken, and text is split as if it ended before it. Return
    (pretokens written, document, position).
    """
    n = 0
    documents = len(offsets) - 1
    while document < documents:
        end = offsets[document + 1]
        while position < end and n < len(ends):
            # A pretoken starts at `position`.
            if (
                ascii_rules != NO_ASCII_RULES
                and data[position] < 0x80
                and (position + 1 == end or data[position + 1] < 0x80)
            ):
                n, position = split_ascii(data, position, end, ascii_rules, ends, n)
                if position == end or n == len(ends):
                    break
            row = START
            mark = position
            while True:
                scanner_class, width = _class_and_width(data, position, end, byte_classes, code_point_classes)
                action = np.int64(actions[row + scanner_class])
                if action >= EMIT:
                    break
                if action & MARK:
                    mark = position
                    action -= MARK
                position += width
                row = action
                if width == 1:  # a run of ASCII
                    while position < end and actions[row + byte_classes[data[position]]] == row:
                        position += 1
            if action == EMIT_AT_MARK:
                position = mark
            elif action == EMIT_BYTE:
                position += 1
            ends[n] = position
            n += 1
        if position < end:
            break  # `ends` is full
        document += 1
    return n, document, position

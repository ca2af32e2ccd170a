"""The symbols with which BPE over characters begins, as bytes that the kernels of byte-level BPE merge.

A known character stays UTF-8. Bytes that UTF-8 never uses begin everything else:

- UNKNOWN is the unknown token.
- LEAD | b >> 6, then 0x80 | b & 63, is the token of byte b.
- FROZEN, then four times 0x80 | 6 bits of the id, is a piece that never merges.
- MARKER + k follows a character of class k: 1 after the first character of a word, 2 at its end, 3 both.

`encoding.character_tables` has the merges that join these bytes to one symbol.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.bert_words import decode_utf8, write_utf8
from tokenizer.kernels.tools import inlined, internal, kernel, load_8, store_8
from tokenizer.kernels.trie import ROOT, base_of, child, id_of

UNKNOWN, FROZEN, LEAD, MARKER = 0xF5, 0xF6, 0xF8, 0xFC
SPACE, MARK = 0x20, 0x2581
ROOM = 32  # bytes of `out` that one step may write beyond its end
# Indices in `options`: whether tokens spell a space as a mark; unknown characters become bytes, one token, one token
# for a run; words have classes of characters; visible ASCII and spaces are known, and in no frozen piece; a pretoken
# that spells the token of a byte becomes this token; a space goes before every pretoken, or before a pretoken
# without one at its start.
MARKS, FALLS_BACK, HAS_UNKNOWN, FUSES, CONTINUES, ENDS, PLAIN_ASCII, READS_BYTES, PREPENDS, COMPLETES = range(10)
HAS_BYTE = 16  # in `Symbols.known`: the byte of this value has a token
_HIGH, _ONES, _SPACES = (np.uint64(0x0101010101010101 * byte) for byte in (0x80, 0x01, SPACE))


class Symbols(NamedTuple):
    """How characters become symbols."""

    known: np.ndarray  # uint8 (0x110000,): bit k is set if a token is the character in class k
    frozen: np.ndarray  # uint64: a trie of the pieces that never merge; empty if there are none
    options: np.ndarray  # bool (10,)


@inlined
def _write_byte(byte, out, at):
    out[at] = LEAD | byte >> 6
    out[at + 1] = 0x80 | byte & 63
    return at + 2


@inlined
def _write_character(character, options, out, at):
    """Write the symbols of the bytes of an unknown character. Return the end."""
    if options[MARKS] and character == SPACE:
        character = np.int64(MARK)
    scratch = at + ROOM - 4
    last = write_utf8(character, out, scratch)
    for k in range(last - scratch):
        at = _write_byte(np.int64(out[scratch + k]), out, at)
    return at


@inlined
def _longest_frozen(data, position, end, frozen):
    """Return the id of the longest frozen piece at a position, -1 for none, and its end."""
    found, after, base = np.int64(-1), position, np.uint64(ROOT)
    while position < end:
        unit = child(frozen, base, data[position])
        if unit == 0:
            break
        position += 1
        base = base_of(unit)
        if id_of(unit) >= 0:
            found, after = id_of(unit), position
    return found, after


@inlined
def _digit(byte):
    """Return the value of an upper-case hexadecimal digit, 256 for another character."""
    if 0x30 <= byte <= 0x39:
        return np.int64(byte) - 0x30
    return np.int64(byte) - 0x37 if 0x41 <= byte <= 0x46 else np.int64(256)


@inlined
def _spelled_byte(data, start, known):
    """Return the byte whose token, such as <0x41>, is spelled at data[start:start + 6]; 256 for none."""
    if data[start] != 0x3C or data[start + 1] != 0x30 or data[start + 2] != 0x78 or data[start + 5] != 0x3E:
        return np.int64(256)
    byte = min(16 * _digit(data[start + 3]) + _digit(data[start + 4]), 256)
    return byte if byte < 256 and known[byte] & HAS_BYTE else np.int64(256)


@inlined
def _begins_with_space(data, start, end):
    mark = end - start >= 3 and data[start] == 0xE2 and data[start + 1] == 0x96 and data[start + 2] == 0x81
    return mark or data[start] == SPACE


@internal
def _write_pretoken(data, start, end, symbols, out, at):
    """Write the symbols of a pretoken. Return the end."""
    known, frozen, options = symbols.known, symbols.frozen, symbols.options
    if start == end:
        return at
    lacks_space = options[PREPENDS] or (options[COMPLETES] and not _begins_with_space(data, start, end))
    if options[READS_BYTES] and not lacks_space and end - start == 6 and _spelled_byte(data, start, known) < 256:
        return _write_byte(_spelled_byte(data, start, known), out, at)
    position = start
    after_unknown = False
    while position < end:
        if options[PLAIN_ASCII] and not lacks_space:
            while position + 8 <= end:
                word = load_8(data, position)
                # Some byte is not ASCII, below a space, or DEL. A borrow only sends plain text to the slow path.
                if (word | word - _SPACES | word + _ONES) & _HIGH:
                    break
                store_8(out, at, word)
                at += 8
                position += 8
                after_unknown = False
            if position == end:
                break
        if len(frozen) and not lacks_space:
            piece, after = _longest_frozen(data, position, end, frozen)
            if piece >= 0:
                out[at] = FROZEN
                for k in range(4):
                    out[at + 1 + k] = 0x80 | piece >> 6 * k & 63
                at += 5
                position = after
                after_unknown = False
                continue
        character, width = np.int64(SPACE), 0
        if not lacks_space:
            character, width = decode_utf8(data, position, end)
        lacks_space = False
        kind = np.int64(options[CONTINUES] and position > start)
        position += width
        kind |= np.int64(options[ENDS] and position == end) << 1
        if options[MARKS] and character == MARK:
            character = np.int64(SPACE)
        if known[character] >> kind & 1:
            at = write_utf8(character, out, at)
            if kind:
                out[at] = MARKER + kind
                at += 1
            after_unknown = False
        elif options[FALLS_BACK]:
            at = _write_character(character, options, out, at)
        elif options[HAS_UNKNOWN]:
            if not (after_unknown and options[FUSES]):
                out[at] = UNKNOWN
                at += 1
            after_unknown = True
    return at


@kernel
def write_symbols(data, offsets, ends, known, frozen, options, out, out_offsets, out_ends):
    """Write the symbols of all pretokens to `out`, uint8, and the ends of the non-empty ones to `out_ends`.

    data: uint8; document d is data[offsets[d]:offsets[d + 1]], and out[out_offsets[d]:out_offsets[d + 1]] afterwards.
    ends: int64, the end of each pretoken in `data`. Return the number of pretokens written.
    """
    symbols = Symbols(known, frozen, options)
    at, written, document = np.int64(0), 0, 0
    start = offsets[0]
    for pretoken in range(len(ends)):
        while document < len(offsets) - 1 and offsets[document + 1] <= start:
            document += 1
            out_offsets[document] = at
        before = at
        at = _write_pretoken(data, start, ends[pretoken], symbols, out, at)
        start = ends[pretoken]
        if at > before:
            out_ends[written] = at
            written += 1
    while document < len(offsets) - 1:
        document += 1
        out_offsets[document] = at
    return written

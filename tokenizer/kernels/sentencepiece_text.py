"""SentencePiece's normalization of whole texts. `splitting.whole_text` is the reference."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.bert_words import decode_utf8, write_utf8
from tokenizer.kernels.character_map import longest_key
from tokenizer.kernels.tools import inlined, internal, kernel
from tokenizer.splitting.normalizers import MARK
from tokenizer.splitting.precompiled_map import LONGEST_REPLACEMENT

ROOM = 3 * LONGEST_REPLACEMENT + 8  # bytes that one step may write to `out`, with a mark for every space
_SPACE, _MARK = 0x20, ord(MARK)


class Rules(NamedTuple):
    """The rules of a `SentencePieceText`, as arrays."""

    units: np.ndarray  # uint32: the trie of a `CharacterMap`; empty if there is none
    own_units: np.ndarray  # uint32: a trie of the user-defined pieces, each replaced by itself; empty if there are none
    texts: np.ndarray  # uint8: the replacements of both, each ended by NUL
    own_texts: int  # where those of `own_units` start
    options: np.ndarray  # bool (5,): PREFIXES to ASCII_STAYS below


# In `Rules.options`: put a mark before a text; put one after it; drop spaces at both ends and all but one of a run;
# write spaces as marks; whether visible ASCII is unchanged unless a byte that is not ASCII follows.
PREFIXES, SUFFIXES, SQUEEZES, ESCAPES, ASCII_STAYS = range(5)


@internal
def _next(data, position, end, rules):
    """Return how to rewrite the text at a position: (index of the replacement in `texts`, character, next position).

    The index is -1 for an unchanged character; the character is 0 if there is a replacement.
    """
    place, after = longest_key(data, position, end, rules.own_units)
    if place >= 0:
        return place + rules.own_texts, np.int64(0), after
    place, after = longest_key(data, position, end, rules.units)
    if place >= 0:
        return place, np.int64(0), after
    character, width = decode_utf8(data, position, end)
    return place, character, position + width


@inlined
def _put(character, options, out, at):
    """Write a character, or a mark for a space. Return the end of the text."""
    return write_utf8(np.int64(_MARK) if character == _SPACE and options[ESCAPES] else character, out, at)


@internal
def _put_text(place, texts, after_space, options, out, at):
    """Write texts[place:], which ends with NUL. Return the end of the text, and whether spaces after it are dropped."""
    while after_space and texts[place] == _SPACE:
        place += 1
    while texts[place]:
        after_space = options[SQUEEZES] and texts[place] == _SPACE
        if texts[place] == _SPACE:
            at = _put(np.int64(_SPACE), options, out, at)
        else:
            out[at] = texts[place]
            at += 1
        place += 1
    return at, after_space


@internal
def _skip_spaces(data, position, end, rules):
    """Return the position after everything that becomes a single space."""
    while position < end:
        place, character, after = _next(data, position, end, rules)
        if place >= 0 and (rules.texts[place] != _SPACE or rules.texts[place + 1]):
            break
        if place < 0 and character != _SPACE:
            break
        position = after
    return position


@inlined
def _without_spaces(out, start, at, marks):
    """Return the end of out[start:at] without trailing spaces, or without trailing marks if `marks`."""
    if marks:
        while at - start >= 3 and out[at - 3] == 0xE2 and out[at - 2] == 0x96 and out[at - 1] == 0x81:
            at -= 3
    else:
        while at > start and out[at - 1] == _SPACE:
            at -= 1
    return at


@kernel
def normalize_texts(data, offsets, document, units, own_units, texts, own_texts, options, out, out_offsets):
    """Write the normalized documents from number `document` on to `out`, uint8.

    data: uint8; document d is data[offsets[d]:offsets[d + 1]], and normalized out[out_offsets[d]:out_offsets[d + 1]].
    The arguments from `units` to `options` are `Rules`. Return the number of the first document that may not fit in
    `out`, or the number of documents if all are written.
    """
    rules = Rules(units, own_units, texts, own_texts, options)
    while document < len(offsets) - 1:
        position, end = offsets[document], offsets[document + 1]
        at = out_offsets[document]
        if options[SQUEEZES]:
            position = _skip_spaces(data, position, end, rules)
        is_empty = position == end
        if options[PREFIXES] and not is_empty:
            if at + ROOM > len(out):
                return document
            at = _put(np.int64(_SPACE), options, out, at)
        after_space = options[SQUEEZES]
        while position < end:
            if at + ROOM > len(out):
                return document
            following = data[position + 1] if position + 1 < end else np.uint8(0)
            if options[ASCII_STAYS] and 0x20 < data[position] < 0x7F and following < 0x80:
                out[at] = data[position]
                at += 1
                position += 1
                after_space = False
                continue
            place, character, position = _next(data, position, end, rules)
            if place >= 0:
                at, after_space = _put_text(place, texts, after_space, options, out, at)
            elif not (after_space and character == _SPACE):
                at = _put(character, options, out, at)
                after_space = options[SQUEEZES] and character == _SPACE
        if options[SQUEEZES]:
            at = _without_spaces(out, out_offsets[document], at, options[ESCAPES])
        if options[SUFFIXES] and not is_empty:
            at = _put(np.int64(_SPACE), options, out, at)
        document += 1
        out_offsets[document] = at
    return document

"""Words as tokens of a trie: the longest from left to right (WordPiece), or the path of largest score (Unigram).

One trie holds all tokens. WordPiece's first token of a word is a path from the root. The tokens after it are paths from
the node of the prefix "##", with which they begin in the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenizer.kernels.misses import NO_ROW
from tokenizer.kernels.tools import ONE, SHORT, inlined, internal, kernel
from tokenizer.kernels.trie import ROOT, base_of, child, id_of

# Indices in `rules`: the base of the children of "##", the id of unknown words, the most code points of a known word.
CONTINUATION, UNKNOWN, LONGEST_WORD = range(3)
# Indices in the `rules` of Unigram: the id of unknown characters, whether to encode as sentencepiece does (with float32
# sums, and without looking up joined unknown pieces), and the first of the ids of the 256 bytes.
UNKNOWN_CHARACTER, IS_MODEL, BYTE_IDS = range(3)
LARGEST_SUM = 100_000.0  # in float32; larger sums are subtracted from all later ones
NOTHING = -1  # no id
THREE = np.uint64(3)
_ID = (1 << 32) - 1  # the lower bits of an entry of a path


class Pieces(NamedTuple):
    """All tokens; all arrays are empty for other kinds of vocabularies."""

    units: np.ndarray  # uint64, the double array of `kernels.trie`
    rules: np.ndarray  # int64 (3,) for WordPiece, (258,) for Unigram; the id of a byte without a piece is NOTHING
    scores: np.ndarray  # float64, the score of each id, then that of unknown characters; empty for WordPiece


@inlined
def _too_long(data, start, end, longest):
    """Return whether a word has more than `longest` code points."""
    code_points = end - start
    if code_points > longest:
        for k in range(start, end):
            code_points -= data[k] & 0xC0 == 0x80
    return code_points > longest


@internal
def cut_word(data, start, end, pieces, out, at):
    """Write the ids of the word data[start:end] to out[at:], uint32. Return their number.

    A word with too many code points, or with a part that no token spells, has only the id of unknown words.
    """
    units = pieces.units
    base = np.uint64(ROOT)
    n = at
    place = start
    known = not _too_long(data, start, end, pieces.rules[LONGEST_WORD])
    while known and place < end:
        known = False
        for k in range(place, end):
            unit = child(units, base, data[k])
            if unit == 0:
                break
            base = base_of(unit)
            token = id_of(unit)
            if token >= 0:
                known = True
                out[n] = token
                place = k + 1
        n += 1
        base = np.uint64(pieces.rules[CONTINUATION])
    if not known:
        out[at] = pieces.rules[UNKNOWN]
        n = at + 1
    return n - at


@internal
def best_path(data, start, end, pieces, sums, path):
    """Find the segmentation of data[start:end], UTF-8, with the largest sum of scores (Viterbi).

    sums: float64; path: int64; at least end - start + 1 long. path[k] is the last piece of the best segmentation of
    data[start:start + k], as its start << 32 | its id. A run of unknown characters that no piece crosses is one piece.
    `encoding.lattice` is the reference. Indices are unsigned because numba checks the sign of others.
    """
    units, scores = pieces.units, pieces.scores
    length, origin = np.uint64(end - start), np.uint64(start)
    for k in range(ONE, length + ONE):
        sums[k] = np.nan  # not reached yet; no sum is at most NaN
    sums[0] = 0.0
    unknown = pieces.rules[UNKNOWN_CHARACTER]
    unknown_score = scores[len(scores) - 1]
    narrow = pieces.rules[IS_MODEL] != 0
    furthest = np.uint64(0)
    place = np.uint64(0)
    while place < length:
        before = sums[place]
        if narrow and abs(before) > LARGEST_SUM:
            for k in range(place + ONE, furthest + ONE):
                sums[k] = np.float64(np.float32(sums[k] - before))
            before = 0.0
        unit, after = _first_character(data, origin, place, length, units)
        if unit == 0 and furthest <= place:
            entry = np.int64(place) << 32 | unknown
            while unit == 0:
                place = after
                before = _after_unknown(before, unknown_score, narrow)
                # A loop for one width, so that the processor need not wait for the width of a character.
                while place + THREE <= length and _begins_no_piece(data[origin + place], units):
                    place += THREE
                    before = _after_unknown(before, unknown_score, narrow)
                if place >= length:
                    break
                unit, after = _first_character(data, origin, place, length, units)
            sums[place], path[place], furthest = before, entry, place
            continue
        token = id_of(unit)
        candidate = _sum(before, unknown_score if token < 0 else scores[np.uint64(token)], narrow)
        if not candidate <= sums[after]:
            sums[after] = candidate
            path[after] = np.int64(place) << 32 | (unknown if token < 0 else token)
        last = k = after
        while unit and k < length:
            unit = child(units, base_of(unit), data[origin + k])
            k += ONE
            token = id_of(unit)
            if token >= 0:
                candidate = _sum(before, scores[np.uint64(token)], narrow)
                if not candidate <= sums[k]:
                    sums[k] = candidate
                    path[k] = np.int64(place) << 32 | token
                last = k
        furthest = max(furthest, last)
        place = after


@inlined
def _sum(before, score, narrow):
    """Return a sum of scores, rounded to float32 if `narrow`."""
    return np.float64(np.float32(before + score)) if narrow else before + score


@inlined
def _after_unknown(before, score, narrow):
    """Return the sum of scores after one more unknown character that no piece crosses."""
    total = _sum(before, score, narrow)
    return 0.0 if narrow and abs(total) > LARGEST_SUM else total


@inlined
def _begins_no_piece(first, units):
    """Return whether the character that begins with this byte has three bytes, and no piece begins with the byte."""
    return first & 0xF0 == 0xE0 and child(units, np.uint64(ROOT), first) == 0


@inlined
def _first_character(data, origin, place, length, units):
    """Return the unit of the character at data[origin + place], 0 if no piece begins with it, and its end."""
    first = data[origin + place]
    unit = child(units, np.uint64(ROOT), first)
    after = place + ONE
    if first >= 0xC0:
        end = after + ONE + np.uint64(first >= 0xE0) + np.uint64(first >= 0xF0)
        while unit and after < end:
            unit = child(units, base_of(unit), data[origin + after])
            after += ONE
        after = end
    return unit, after


@internal
def write_path(data, start, end, pieces, path, out, at):
    """Write the ids of the best path to out[at:]. Return their number. Overwrites `path`.

    Neighbouring unknown pieces become the piece that they spell together, else their bytes if all have ids, else one
    unknown id.
    """
    first = at
    unknown = pieces.rules[UNKNOWN_CHARACTER]
    length = np.int64(end - start)
    place = length
    entry = path[place]
    while place > 0:  # path[k] becomes the piece that starts at k, as its end << 32 | its id
        before = entry >> 32
        following = path[before]
        path[before] = place << 32 | entry & _ID
        place, entry = before, following
    while place < length:
        token, after = path[place] & _ID, path[place] >> 32
        if token == unknown:
            while after < length and path[after] & _ID == unknown:
                after = path[after] >> 32
            at = _write_unknown(data, start + place, start + after, pieces, out, at)
        else:
            out[at] = token
            at += 1
        place = after
    return at - first


@internal
def _write_unknown(data, start, end, pieces, out, at):
    out[at] = pieces.rules[UNKNOWN_CHARACTER]
    if not pieces.rules[IS_MODEL]:
        base, token = np.uint64(ROOT), np.int64(NOTHING)
        for k in range(start, end):
            unit = child(pieces.units, base, data[k])
            base, token = base_of(unit), id_of(unit)
            if unit == 0:
                break
        if token >= 0:
            out[at] = token
            return at + 1
    for k in range(start, end):
        if pieces.rules[BYTE_IDS + np.int64(data[k])] < 0:
            return at + 1
    for k in range(start, end):
        out[at] = pieces.rules[BYTE_IDS + np.int64(data[k])]
        at += 1
    return at


@internal
def encode_word(data, start, end, pieces, sums, path, out, at):
    """Write the ids of the word data[start:end] to out[at:]. Return their number. For sums and path see `best_path`."""
    if len(pieces.scores):
        best_path(data, start, end, pieces, sums, path)
        return write_path(data, start, end, pieces, path, out, at)
    return cut_word(data, start, end, pieces, out, at)


@kernel
def encode_long_word(data, start, end, units, rules, scores, sums, path, out, at):
    """As `encode_word`, for calls from Python."""
    return encode_word(data, start, end, Pieces(units, rules, scores), sums, path, out, at)


@internal
def find_pieces(data, misses, used, pieces, missed):
    """Cut the first `misses` words into tokens. Write the ids to `found` from `used` on."""
    found, sums, path = missed.found[:], missed.sums[:], missed.path[:]
    for m in range(misses):
        start = missed.starts[m]
        length = missed.lengths[m]
        count = encode_word(data, start, start + length, pieces, sums, path, found, used)
        if length < SHORT and count > 4:
            missed.rows[m] = NO_ROW  # `Caches.small` has no room for the ids, and `Caches.large` would save no time
        missed.places[m] = used
        missed.counts[m] = count
        used += count

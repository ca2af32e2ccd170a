"""Chains over whole blocks: steps with regexes by the kernel of the scanner, words of character classes by numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokenizer.byte_level import BYTE_TO_CHARACTER
from tokenizer.document_blocks import Block, as_readonly
from tokenizer.splitting import bert_characters, step_characters
from tokenizer.splitting.automata import END, MULTIBYTE, NO_ASCII_RULES
from tokenizer.splitting.patterns import SUPERWORD_STEPS, pattern_of
from tokenizer.splitting.pretokenize import NO_AUTOMATON, AutomatonArrays, arrays_of, automaton_arrays, scanned_ends
from tokenizer.splitting.regex_differences import with_line_anchors
from tokenizer.splitting.unicode_classes import CODE_POINTS
from tokenizer.splitting.unicode_properties import ranges_of
from tokenizer.text import WHITE_SPACE

if TYPE_CHECKING:
    from tokenizer.splitting.chains import Chain
    from tokenizer.splitting.regex_compilation import Gaps

    Rewrite = Callable[[Block], tuple[Block, np.ndarray]]
    Split = Callable[[str], list[str]]

_SPACE, _WORD, _OTHER, _ALONE = range(4)


class Scan(NamedTuple):
    """A Split that the scanner runs.

    gaps: None if every pretoken is a match. split: the Split in plain Python, if its regex has no automaton.
    """

    arrays: AutomatonArrays
    gaps: Gaps | None
    behavior: str = "Isolated"
    invert: bool = False
    split: Split | None = None


def scans_of(steps: Iterable[tuple[dict[str, Any], Split]]) -> list[Scan] | None:
    """Return the scans of Splits by regexes, each given with the function that runs it in plain Python.

    None if no regex has an automaton, or if a Split that has none drops text.
    """
    scans = []
    for step, split in steps:
        if found := _automaton_with_gaps(step["pattern"]["Regex"]):
            scans.append(Scan(*found, step["behavior"], step["invert"]))
        elif step["behavior"] == "Removed":
            return None
        else:
            scans.append(Scan(NO_AUTOMATON, None, split=split))
    return scans if any(scan.split is None for scan in scans) or not scans else None


@lru_cache(maxsize=64)
def _automaton_with_gaps(regex: str) -> tuple[AutomatonArrays, Gaps | None] | None:
    from tokenizer.splitting.regex_compilation import compile_with_gaps

    pattern = pattern_of(with_line_anchors(regex))
    if arrays := automaton_arrays(pattern):
        return arrays, None
    compiled = compile_with_gaps(pattern.regex)
    return (arrays_of(compiled[0], NO_ASCII_RULES), compiled[1]) if compiled else None


def rewriter_of(chain: Chain) -> Rewrite | None:
    """Return the function that splits blocks of valid UTF-8 as the chain does; None if there is none."""
    if chain.scans is not None:
        return partial(_kept_pieces, chain=chain, scans=chain.scans)
    match chain.steps:
        case ({"type": "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer" as kind},) if not chain.as_bytes:
            return partial(_words_by_class, kind=kind)
    return None


def ends_of(block: Block, chain: Chain) -> np.ndarray | None:
    """Return the ends of the pretokens of a block, int64; None for invalid UTF-8 or steps without scans."""
    if chain.scans is None or not is_valid(block):
        return None
    if chain.steps == SUPERWORD_STEPS:
        return _ends_of_superwords(block, chain, chain.scans)
    bounds, _ = _cut(block, chain.scans)
    return bounds[1:]


def _ends_of_superwords(block: Block, chain: Chain, scans: list[Scan]) -> np.ndarray:
    """Return the ends of numbers and of the text between them. Long numbers are rare, so plain Python cuts them."""
    bounds, _ = _cut(block, scans[:1])
    starts, ends = bounds[:-1], bounds[1:]
    first = block.data[starts]
    numbers = np.flatnonzero((ends - starts > 3) & (((first >= 0x30) & (first <= 0x39)) | (first >= 0x80)))
    further = [ends]
    for place in numbers.tolist():
        start, end = int(starts[place]), int(ends[place])
        lengths = [len(pretoken) for pretoken in chain.pretokens(block.data[start:end].tobytes())]
        further.append(start + np.cumsum(lengths[:-1], dtype=np.int64))
    return np.unique(np.concatenate(further))


def _cut(block: Block, scans: list[Scan]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pieces of a block after all steps, as bounds, int64 (pieces + 1,), and which are kept, bool."""
    bounds = np.unique(block.offsets)  # no pieces of empty documents, which kernels do not expect
    kept = np.ones(len(bounds) - 1, dtype=np.bool_)
    for scan in scans:
        before = bounds
        bounds = _cut_once(Block(block.data, before), scan)
        kept = kept[np.searchsorted(before, bounds[:-1], side="right") - 1]
        if scan.gaps is None and scan.behavior == "Isolated":
            continue
        begins = np.zeros(len(bounds), dtype=np.bool_)  # whether a piece begins a piece of the step before
        begins[np.searchsorted(bounds, before)] = True
        gaps = _gaps(block.data, bounds, begins, scan)
        first = begins[:-1] | ~_joins(gaps, scan)
        if scan.behavior == "Removed":
            kept &= np.logical_xor(gaps, scan.invert)
        kept = kept[first]
        bounds = np.append(bounds[:-1][first], bounds[-1])
    return bounds, kept


def _cut_once(pieces: Block, scan: Scan) -> np.ndarray:
    """Return the bounds of the parts of pieces, int64. In plain Python, each distinct piece is split once."""
    if scan.split is None:
        chunks = (chunk.copy() for chunk in scanned_ends(pieces, scan.arrays))
        return np.concatenate([pieces.offsets[:1], *chunks])
    first = int(pieces.offsets[0])
    data = pieces.data[first : int(pieces.offsets[-1])].tobytes()
    known: dict[bytes, list[int]] = {}
    lengths = [first]
    for start, end in pairwise((pieces.offsets - first).tolist()):
        piece = data[start:end]
        if piece not in known:
            known[piece] = [len(part.encode()) for part in scan.split(piece.decode()) if part]
        lengths += known[piece]
    return np.cumsum(lengths, dtype=np.int64)


def _gaps(data: np.ndarray, bounds: np.ndarray, begins: np.ndarray, scan: Scan) -> np.ndarray:
    """Return which pieces are text between matches, bool."""
    starts = bounds[:-1]
    if scan.gaps is None:
        return np.zeros(len(starts), dtype=np.bool_)
    classes = np.append(_classes_at(data, starts, scan.arrays), END)
    following = np.where(begins[1:], END, classes[1:])
    lead = data[starts]
    widths = 1 + (lead >= 0xC0).astype(np.int64) + (lead >= 0xE0) + (lead >= 0xF0)
    alone = (np.diff(bounds) == widths) & np.array(scan.gaps.alone)[classes[:-1], following]
    gaps: np.ndarray = alone | np.array(scan.gaps.runs)[classes[:-1]]
    return gaps


def _joins(gaps: np.ndarray, scan: Scan) -> np.ndarray:
    """Return which pieces are joined to the piece before, bool. Gaps join, and `behavior` may join more."""
    matches = np.logical_xor(~gaps, scan.invert)
    joins = np.zeros(len(gaps), dtype=np.bool_)
    joins[1:] = gaps[1:] & gaps[:-1]
    if scan.behavior == "Contiguous":
        joins[1:] = gaps[1:] == gaps[:-1]
    elif scan.behavior == "MergedWithPrevious":
        joins[1:] |= matches[1:] & ~matches[:-1]
    elif scan.behavior == "MergedWithNext":
        joins[1:] |= matches[:-1] & ~matches[1:]
    return joins


def _classes_at(data: np.ndarray, places: np.ndarray, arrays: AutomatonArrays) -> np.ndarray:
    """Return the scanner's class of the code point at each place of valid UTF-8, uint8."""
    _, byte_classes, code_point_classes, _ = arrays
    classes: np.ndarray = byte_classes[data[places]]
    longer = np.flatnonzero(classes == MULTIBYTE)
    starts = places[longer]
    lead = data[starts].astype(np.int64)
    widths = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    points = lead & (0x7F >> widths)
    for k in range(1, 4):
        more = widths > k
        points[more] = points[more] << 6 | data[starts[more] + k] & 0x3F
    classes[longer] = code_point_classes[points]
    return classes


def is_valid(block: Block) -> bool:
    """Return whether every document is valid UTF-8."""
    try:
        for start, end in pairwise(block.offsets.tolist()):
            str(block.data[start:end].data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _kept_pieces(block: Block, chain: Chain, scans: list[Scan]) -> tuple[Block, np.ndarray]:
    """Return the block of joined pieces, in ByteLevel's alphabet if the chain spells, and the end of each, int64."""
    bounds, kept = _cut(block, scans)
    first = int(block.offsets[0])
    data = block.data[first : int(block.offsets[-1])]
    keeps = np.repeat(kept, np.diff(bounds))
    if not chain.spells:
        places = np.concatenate([[0], np.cumsum(keeps)])
        return Block(as_readonly(data[keeps]), places[block.offsets - first]), places[bounds[1:][kept] - first]
    # Each byte becomes one or two bytes, or none if it is dropped.
    spelled, sizes = _spellings()
    lengths = sizes[data] * keeps
    places = np.concatenate([[0], np.cumsum(lengths)])
    out = np.empty(int(places[-1]), dtype=np.uint8)
    for k in range(2):
        longer = lengths > k
        out[places[:-1][longer] + k] = spelled[data[longer], k]
    return Block(as_readonly(out), places[block.offsets - first]), places[bounds[1:][kept] - first]


def _words_by_class(block: Block, kind: str) -> tuple[Block, np.ndarray]:
    """Return the block of joined words, and the end of each word: runs of characters of one class, without spaces."""
    first, last = int(block.offsets[0]), int(block.offsets[-1])
    data = block.data[first:last]
    points = np.frombuffer(str(data.data, "utf-8").encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    places = np.concatenate([[0], np.cumsum(sizes)])  # of characters, in bytes
    classes = _classes(kind)[points]
    begins = np.ones(len(points), dtype=np.bool_)
    begins[1:] = (classes[1:] != classes[:-1]) | (classes[1:] == _ALONE)
    documents = np.searchsorted(places, block.offsets[:-1] - first)
    begins[documents[documents < len(points)]] = True
    starts = np.flatnonzero(begins)
    lengths = np.diff(places[np.append(starts, len(points))])
    kept = classes[starts] != _SPACE
    keeps = np.repeat(kept, lengths)
    before = np.concatenate([[0], np.cumsum(keeps)])  # bytes of words before each byte
    return Block(as_readonly(data[keeps]), before[block.offsets - first]), np.cumsum(lengths[kept])


@cache
def _classes(kind: str) -> np.ndarray:
    """Return the class of each code point for a pre-tokenizer: _SPACE, _WORD, _OTHER or _ALONE; uint8."""
    table = np.full(CODE_POINTS, _OTHER if kind == "Whitespace" else _WORD, dtype=np.uint8)
    bert = bert_characters.stored_tables()
    groups = {
        "Whitespace": [(step_characters.tables().words, _WORD)],
        "BertPreTokenizer": [(bert.punctuation, _ALONE), (bert.white_space, _SPACE)],
    }
    for gaps, number in groups.get(kind, []):
        for start, end in ranges_of(gaps):
            table[start : end + 1] = number
    if kind != "BertPreTokenizer":
        table[[ord(character) for character in WHITE_SPACE]] = _SPACE
    return table


@cache
def _spellings() -> tuple[np.ndarray, np.ndarray]:
    """Return the UTF-8 of each byte's character in ByteLevel's alphabet, uint8 (256, 2), and its length, int64."""
    encoded = [BYTE_TO_CHARACTER[byte].encode() for byte in range(256)]
    table = np.array([[*spelled.ljust(2, b"\0")] for spelled in encoded], dtype=np.uint8)
    return table, np.array([len(spelled) for spelled in encoded], dtype=np.int64)

"""Chains over whole blocks: CLIP's words by the kernel of the scanner, and words of character classes by numpy."""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.byte_level import BYTE_TO_CHARACTER
from tokenizer.document_blocks import Block, as_readonly
from tokenizer.splitting import bert_characters, step_characters
from tokenizer.splitting.patterns import (
    CLIP_REGEX,
    CLIP_STEPS,
    DEEPSEEK_REGEXES,
    DEEPSEEK_STEPS,
    SUPERWORD_STEPS,
    Pattern,
    pattern_of,
)
from tokenizer.splitting.pretokenize import pretoken_ends
from tokenizer.splitting.unicode_classes import CODE_POINTS, SPACE, code_point_classes
from tokenizer.splitting.unicode_properties import find_property, ranges_of
from tokenizer.text import WHITE_SPACE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenizer.splitting.chains import Chain

    Rewrite = Callable[[Block], tuple[Block, np.ndarray]]

# The kernel needs regexes that match the whole text, so each of DeepSeek's also matches the remaining text.
_REST = (r"[^\p{N}]+", "[^\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", r"[\s\S]")
# Numbers: those of `unicode_classes`, and those that only Rust's newer table has, which Digits uses.
DIGITS = r"\p{N}\U00011DE0-\U00011DE9\U00016FF4-\U00016FF6"
_SPACE, _WORD, _OTHER, _ALONE = range(4)


def rewriter_of(chain: Chain) -> Rewrite | None:
    """Return the function that splits blocks of valid UTF-8 as the chain does; None if there is none."""
    if chain.as_bytes:
        return None
    if chain.steps == CLIP_STEPS:
        return _words_of_clip
    match chain.steps:
        case ({"type": "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer" as kind},):
            return partial(_words_by_class, kind=kind)
    return None


def ends_of(block: Block, chain: Chain) -> np.ndarray | None:
    """Return the ends of the pretokens of a block, int64; None if the scanner cannot run these steps.

    It runs the steps of DeepSeek-V3, and digits before GPT-2's regex, as in Command R and StarCoder.
    """
    match chain.steps:
        case ({"type": "Digits", "individual_digits": alone}, {"type": "ByteLevel", "use_regex": True}) if (
            not chain.rewrites
        ):
            digits = Pattern(f"[{DIGITS}]|[^{DIGITS}]+" if alone else f"[{DIGITS}]+|[^{DIGITS}]+")
            return _ends_of_patterns(block, (digits, pattern_of("gpt2"))) if is_valid(block) else None
    if chain.steps == SUPERWORD_STEPS and is_valid(block):
        return _ends_of_superwords(block, chain)
    return _ends_of_deepseek(block) if chain.steps == DEEPSEEK_STEPS and is_valid(block) else None


def _ends_of_patterns(block: Block, patterns: Sequence[Pattern]) -> np.ndarray:
    """Return the ends of the pretokens that each pattern cuts from those of the one before."""
    pieces = block
    for pattern in patterns:
        chunks = (chunk.copy() for chunk in pretoken_ends(pieces, pattern))
        pieces = Block(block.data, np.concatenate([block.offsets[:1], *chunks]))
    ends: np.ndarray = pieces.offsets[1:]
    return ends


def _ends_of_superwords(block: Block, chain: Chain) -> np.ndarray:
    """Return the ends of numbers and of the text between them. Long numbers are rare, so plain Python cuts them."""
    ends = _ends_of_patterns(block, (Pattern(r"\p{N}+|[^\p{N}]+"),))
    starts = np.concatenate([block.offsets[:1], ends[:-1]])
    first = block.data[np.minimum(starts, len(block.data) - 1)]
    numbers = np.flatnonzero((ends - starts > 3) & (((first >= 0x30) & (first <= 0x39)) | (first >= 0x80)))
    further = [ends]
    for place in numbers.tolist():
        start, end = int(starts[place]), int(ends[place])
        lengths = [len(pretoken) for pretoken in chain.pretokens(block.data[start:end].tobytes())]
        further.append(start + np.cumsum(lengths[:-1], dtype=np.int64))
    return np.unique(np.concatenate(further))


def _ends_of_deepseek(block: Block) -> np.ndarray:
    pieces = block
    for regex, rest in zip(DEEPSEEK_REGEXES, _REST, strict=True):
        before = pieces.offsets
        chunks = (chunk.copy() for chunk in pretoken_ends(pieces, Pattern(f"{regex}|{rest}")))
        pieces = Block(block.data, np.concatenate([block.offsets[:1], *chunks]))
    # The last regex matches nothing at these characters, and a run of them is one pretoken.
    starts = pieces.offsets[:-1]
    alone = _single_others(block.data, starts, np.diff(pieces.offsets))
    joins = alone[1:] & alone[:-1] & ~np.isin(starts[1:], before)
    kept = np.ones(len(starts), dtype=np.bool_)
    kept[:-1] = ~joins
    ends: np.ndarray = pieces.offsets[1:][kept]
    return ends


def _single_others(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return which pretokens are one character that is no letter, mark, punctuation, symbol or white space, bool."""
    table, found = _others(), np.zeros(len(starts), dtype=np.bool_)
    single = np.flatnonzero(lengths == 1)
    found[single] = table[data[starts[single]]]
    for place in np.flatnonzero((lengths > 1) & (lengths <= 4) & (data[starts] >= 0x80)).tolist():
        text = data[starts[place] : starts[place] + lengths[place]].tobytes().decode()
        found[place] = len(text) == 1 and table[ord(text)]
    return found


@cache
def _others() -> np.ndarray:
    table = np.ones(CODE_POINTS, dtype=np.bool_)
    for name in ("l", "m", "p", "s", r"\s"):
        for first, last in find_property(name) or ():
            table[first : last + 1] = False
    return table


def is_valid(block: Block) -> bool:
    """Return whether every document is valid UTF-8."""
    try:
        for start, end in pairwise(block.offsets.tolist()):
            str(block.data[start:end].data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _words_of_clip(block: Block) -> tuple[Block, np.ndarray]:
    """Return the block of joined words in ByteLevel's alphabet, and the end of each word, int64."""
    pattern = Pattern(rf"{CLIP_REGEX}|\s+")
    first = int(block.offsets[0])
    ends = np.concatenate([np.zeros(0, dtype=np.int64), *(chunk.copy() for chunk in pretoken_ends(block, pattern))])
    starts = np.concatenate([[first], ends[:-1]]) if len(ends) else ends
    kept = ~_is_space(block.data, starts)
    # Each byte becomes one or two bytes, or none if it is dropped.
    data = block.data[first : int(block.offsets[-1])]
    spelled, sizes = _spellings()
    lengths = sizes[data] * np.repeat(kept, ends - starts)
    places = np.concatenate([[0], np.cumsum(lengths)])
    out = np.empty(int(places[-1]), dtype=np.uint8)
    for k in range(2):
        longer = lengths > k
        out[places[:-1][longer] + k] = spelled[data[longer], k]
    return Block(as_readonly(out), places[block.offsets - first]), places[ends[kept] - first]


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


def _is_space(data: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return whether white space starts at each place of a text, bool."""
    if not len(starts):
        return np.zeros(0, dtype=np.bool_)
    lead = data[starts]
    space = np.isin(lead, np.frombuffer(b"\t\n\x0b\x0c\r ", dtype=np.uint8))
    classes = code_point_classes()
    for place in np.flatnonzero(lead >= 0x80).tolist():
        start = int(starts[place])
        character = data[start : start + 4].tobytes().decode(errors="replace")[:1]
        space[place] = classes[ord(character)] == SPACE
    return space


@cache
def _spellings() -> tuple[np.ndarray, np.ndarray]:
    """Return the UTF-8 of each byte's character in ByteLevel's alphabet, uint8 (256, 2), and its length, int64."""
    encoded = [BYTE_TO_CHARACTER[byte].encode() for byte in range(256)]
    table = np.array([[*spelled.ljust(2, b"\0")] for spelled in encoded], dtype=np.uint8)
    return table, np.array([len(spelled) for spelled in encoded], dtype=np.int64)

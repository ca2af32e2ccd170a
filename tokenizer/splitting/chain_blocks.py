"""Chains over whole blocks by the kernel of the scanner: CLIP's words, which are all text but white space."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.byte_level import BYTE_TO_CHARACTER
from tokenizer.document_blocks import Block, as_readonly
from tokenizer.splitting.patterns import Pattern
from tokenizer.splitting.pretokenize import pretoken_ends
from tokenizer.splitting.unicode_classes import SPACE, code_point_classes

if TYPE_CHECKING:
    from tokenizer.splitting.chains import Chain

_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}


def has_kernel(chain: Chain) -> bool:
    """Return whether the steps are those of CLIP. ByteLevel's own regex cuts none of the words of the first step."""
    match chain.steps:
        case ({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": True}, byte_level):
            return bool(regex == _WORDS and byte_level == _BYTE_LEVEL) and not chain.as_bytes
    return False


def is_valid(block: Block) -> bool:
    """Return whether every document is valid UTF-8."""
    try:
        for start, end in pairwise(block.offsets.tolist()):
            str(block.data[start:end].data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def words_of_block(block: Block) -> tuple[Block, np.ndarray]:
    """Return the block of joined words in ByteLevel's alphabet, and the end of each word, int64."""
    pattern = Pattern(rf"{_WORDS}|\s+")
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

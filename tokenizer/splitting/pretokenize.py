"""Find the ends of pretokens in blocks of documents: by the scanner for named patterns, by `regex` for others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tokenizer.documents import Block, block_of, single_block
from tokenizer.splitting.automata import Automaton
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.patterns import Pattern
from tokenizer.splitting.scanner import pretokens_of
from tokenizer.text import text_bytes

# Pretokens per kernel call. Their ends stay in the L2 cache, and Python handles Ctrl-C between calls.
CHUNK = 16384

Bytes = npt.NDArray[np.uint8]
# actions, loops, byte_classes, code_point_classes, fold_contractions, ascii_rules
AutomatonArrays = tuple[Bytes, Bytes, Bytes, Bytes, bool, int]


def pretoken_ends(block: Block, pattern: Pattern | Chain) -> Iterator[np.ndarray]:
    """Yield the ends of all documents' pretokens in chunks: int64, absolute positions in block.data.

    The first pretoken starts at block.offsets[0], every other where the one before it ends. The next chunk overwrites
    the array. As in Hugging Face, text between two matches of a regex is a pretoken, and an empty match ends it.
    """
    if pattern.automaton is None:
        yield from _regex_ends(block, pattern)
        return
    from tokenizer.kernels.scan import scan

    tables = automaton_arrays(pattern.automaton)
    ends = np.empty(CHUNK, dtype=np.int64)
    document, position = 0, int(block.offsets[0])
    while document < len(block.offsets) - 1:
        n, document, position = scan(block.data, block.offsets, document, position, ends, *tables)
        if n:
            yield ends[:n]


def pretokenized(block: Block, pattern: Pattern | Chain) -> tuple[Block, Iterator[np.ndarray]]:
    """Return a block and its `pretoken_ends`. The block is a new one if the pattern adds spaces to the text."""
    if isinstance(pattern, Pattern) or not pattern.adds_spaces:
        return block, pretoken_ends(block, pattern)
    documents: list[bytes] = []
    lengths: list[int] = []
    for start, end in pairwise(block.offsets.tolist()):
        pretokens = list(pattern.pretokens(bytes(block.data[start:end])))
        documents.append(b"".join(pretokens))
        lengths += map(len, pretokens)
    ends = np.cumsum(lengths, dtype=np.int64)
    return block_of(documents), (ends[first : first + CHUNK] for first in range(0, len(ends), CHUNK))


@cache
def automaton_arrays(automaton: Automaton) -> AutomatonArrays:
    """Return the kernels' view of an automaton: its tables as uint8 arrays, without a copy, and its flags."""
    return (
        np.frombuffer(automaton.actions, dtype=np.uint8),
        np.frombuffer(automaton.loops, dtype=np.uint8),
        np.frombuffer(automaton.byte_classes, dtype=np.uint8),
        np.frombuffer(automaton.code_point_classes, dtype=np.uint8),
        automaton.fold_contractions,
        automaton.ascii_rules,
    )


# For kernels that get the ends of pretokens and do not scan.
_EMPTY: Bytes = np.frombuffer(b"", dtype=np.uint8)
NO_AUTOMATON: AutomatonArrays = (_EMPTY, _EMPTY, _EMPTY, _EMPTY, False, 0)


def _regex_ends(block: Block, pattern: Pattern | Chain) -> Iterator[np.ndarray]:
    for start, end in zip(block.offsets, block.offsets[1:], strict=False):
        lengths = []
        for pretoken in pretokens_of(bytes(block.data[start:end]), pattern):
            lengths.append(len(pretoken))
            if len(lengths) == CHUNK:
                ends = start + np.cumsum(lengths, dtype=np.int64)
                start = ends[-1]
                lengths = []
                yield ends
        if lengths:
            yield start + np.cumsum(lengths, dtype=np.int64)


def split(text: str | bytes, pattern: Pattern) -> list[bytes]:
    """Return the pretokens of one text. Joined, they give the text."""
    data = text_bytes(text)
    pretokens, start = [], 0
    for ends in pretoken_ends(single_block(data), pattern):
        for end in ends.tolist():
            pretokens.append(data[start:end])
            start = end
    return pretokens

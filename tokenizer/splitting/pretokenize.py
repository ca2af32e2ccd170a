"""Where pretokens end, block by block: the scanner for named patterns, `regex` for all others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np

from tokenizer.documents import Block, block_of, single_block
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.patterns import Automaton, Pattern
from tokenizer.splitting.scanner import pretokens_of
from tokenizer.text import text_bytes

# Pretokens per kernel call: their ends stay in the second-level cache, and Ctrl-C is heard between calls.
CHUNK = 16384


def pretoken_ends(block: Block, pattern: Pattern | Chain) -> Iterator[np.ndarray]:
    """Yield the ends (int64, absolute in block.data) of the pretokens of all documents, chunk by chunk.

    A pretoken starts where the one before ended, the first at block.offsets[0]. An array is overwritten by the next.
    Text that a regex leaves unmatched is a pretoken too, up to the next match, be it an empty one, as in Hugging Face.
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
    documents, lengths = [], []
    for start, end in pairwise(block.offsets.tolist()):
        pretokens = list(pattern.pretokens(bytes(block.data[start:end])))
        documents.append(b"".join(pretokens))
        lengths += map(len, pretokens)
    ends = np.cumsum(lengths, dtype=np.int64)
    return block_of(documents), (ends[first : first + CHUNK] for first in range(0, len(ends), CHUNK))


@cache
def automaton_arrays(automaton: Automaton) -> tuple:
    """What the kernels read of an automaton: its bytes as arrays, without a copy, and the flags."""
    tables = (automaton.actions, automaton.loops, automaton.byte_classes, automaton.code_point_classes)
    arrays = (np.frombuffer(table, dtype=np.uint8) for table in tables)
    return *arrays, automaton.fold_contractions, automaton.ascii_rules


# For kernels that are given the ends of pretokens and need not scan.
NO_AUTOMATON = (*[np.frombuffer(b"", dtype=np.uint8)] * 4, False, 0)


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
    """The pretokens of one text; together they are the text."""
    data = text_bytes(text)
    pretokens, start = [], 0
    for ends in pretoken_ends(single_block(data), pattern):
        for end in ends.tolist():
            pretokens.append(data[start:end])
            start = end
    return pretokens

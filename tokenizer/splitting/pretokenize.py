"""Find the ends of pretokens in blocks of documents, by the scanner or as the splitter does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from tokenizer.document_blocks import Block, single_block
from tokenizer.splitting.automata import NO_ASCII_RULES
from tokenizer.splitting.splitter import Splitter
from tokenizer.text import text_bytes

# Pretokens per kernel call. Their ends stay in the L2 cache, and Python handles Ctrl-C between calls.
CHUNK = 16384
WORDS_CHUNK = 8 * CHUNK  # for words, whose ends exist before the first call; fewer calls take less time

Bytes = npt.NDArray[np.uint8]
# actions, byte_classes, code_point_classes, ascii_rules
AutomatonArrays = tuple[npt.NDArray[np.uint16], Bytes, Bytes, int]


def pretoken_ends(block: Block, splitter: Splitter) -> Iterator[np.ndarray]:
    """Yield the ends of all documents' pretokens in chunks: int64, absolute positions in block.data.

    The first pretoken starts at block.offsets[0], every other where the one before it ends. The next chunk overwrites
    the array. As in Hugging Face, text between two matches of a regex is a pretoken, and an empty match ends it.
    """
    tables = automaton_arrays(splitter)
    if tables is None:
        yield from _ends_in_python(block, splitter)
        return
    from tokenizer.kernels.scan import scan

    ends = np.empty(CHUNK, dtype=np.int64)
    document, position = 0, int(block.offsets[0])
    while document < len(block.offsets) - 1:
        n, document, position = scan(block.data, block.offsets, document, position, ends, *tables)
        if n:
            yield ends[:n]


def pretokenize(block: Block, splitter: Splitter) -> tuple[Block, Iterator[np.ndarray]]:
    """Return a block and its `pretoken_ends`. The block is a new one if the splitter rewrites the text."""
    if not splitter.rewrites:
        return block, pretoken_ends(block, splitter)
    block, ends = splitter.rewrite(block)
    return block, (ends[first : first + WORDS_CHUNK] for first in range(0, len(ends), WORDS_CHUNK))


@cache
def automaton_arrays(splitter: Splitter) -> AutomatonArrays | None:
    """Return the kernels' view of a splitter's automaton: its tables without a copy, and its rule set for ASCII.

    None if the splitter has no automaton.
    """
    tables = splitter.automaton
    if tables is None:
        return None
    return (
        np.frombuffer(tables.actions, dtype=np.uint16),
        np.frombuffer(tables.byte_classes, dtype=np.uint8),
        np.frombuffer(tables.code_point_classes, dtype=np.uint8),
        splitter.ascii_rules,
    )


# For kernels that get the ends of pretokens and do not scan.
_EMPTY: Bytes = np.frombuffer(b"", dtype=np.uint8)
NO_AUTOMATON: AutomatonArrays = (np.frombuffer(b"", dtype=np.uint16), _EMPTY, _EMPTY, NO_ASCII_RULES)


def _ends_in_python(block: Block, splitter: Splitter) -> Iterator[np.ndarray]:
    for start, end in zip(block.offsets, block.offsets[1:], strict=False):
        lengths = []
        for pretoken in splitter.pretokens(bytes(block.data[start:end])):
            lengths.append(len(pretoken))
            if len(lengths) == CHUNK:
                ends = start + np.cumsum(lengths, dtype=np.int64)
                start = ends[-1]
                lengths = []
                yield ends
        if lengths:
            yield start + np.cumsum(lengths, dtype=np.int64)


def split(text: str | bytes, splitter: Splitter) -> list[bytes]:
    """Return the pretokens of one text. The pretokens of a pattern join to the text again."""
    block, chunks = pretokenize(single_block(text_bytes(text)), splitter)
    pretokens, start = [], 0
    for ends in chunks:
        for end in ends.tolist():
            pretokens.append(block.data[start:end].tobytes())
            start = end
    return pretokens

"""Find the ends of pretokens in blocks of documents, by the scanner or as the splitter does.

`decided_bytes` finds the part of a stream of text whose pretokens do not depend on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from tokenizer.document_blocks import Block, safe_places, single_block
from tokenizer.splitting.automata import NO_ASCII_RULES, Automaton
from tokenizer.splitting.scanner import pretokens
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
        ends = splitter.ends_of_block(block)
        yield from _ends_in_python(block, splitter) if ends is None else _cut(ends)
        return
    yield from scanned_ends(block, tables)


def scanned_ends(block: Block, tables: AutomatonArrays) -> Iterator[np.ndarray]:
    """Yield the ends of the pretokens that an automaton finds, as `pretoken_ends` does."""
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
    """Return the kernels' view of a splitter's automaton, None if it has none."""
    return None if splitter.automaton is None else arrays_of(splitter.automaton, splitter.ascii_rules)


def arrays_of(tables: Automaton, ascii_rules: int) -> AutomatonArrays:
    """Return the kernels' view of an automaton: its tables without a copy, and its rule set for ASCII."""
    return (
        np.frombuffer(tables.actions, dtype=np.uint16),
        np.frombuffer(tables.byte_classes, dtype=np.uint8),
        np.frombuffer(tables.code_point_classes, dtype=np.uint8),
        ascii_rules,
    )


# For kernels that get the ends of pretokens and do not scan.
_EMPTY: Bytes = np.frombuffer(b"", dtype=np.uint8)
NO_AUTOMATON: AutomatonArrays = (np.frombuffer(b"", dtype=np.uint16), _EMPTY, _EMPTY, NO_ASCII_RULES)


def _ends_in_python(block: Block, splitter: Splitter) -> Iterator[np.ndarray]:
    for start, end in pairwise(block.offsets.tolist()):
        lengths = map(len, splitter.pretokens(bytes(block.data[start:end])))
        while (some := np.fromiter(islice(lengths, CHUNK), dtype=np.int64)).size:
            ends = start + np.cumsum(some, dtype=np.int64)
            start = int(ends[-1])
            yield ends


def _cut(ends: np.ndarray) -> Iterator[np.ndarray]:
    return (ends[first : first + CHUNK] for first in range(0, len(ends), CHUNK))


def split(text: str | bytes, splitter: Splitter) -> list[bytes]:
    """Return the pretokens of one text. The pretokens of a pattern join to the text again."""
    block, chunks = pretokenize(single_block(text_bytes(text)), splitter)
    pretokens, start = [], 0
    for ends in chunks:
        for end in ends.tolist():
            pretokens.append(block.data[start:end].tobytes())
            start = end
    return pretokens


# A pretoken depends on fewer pretokens after it than this, apart from runs that the next pretoken reads, too.
LOOK_AHEAD = 128
# Pretokens that more text cannot change are searched in this much of a text's end, then in 8 times as much.
TAIL_BYTES = 1 << 10


def decided_bytes(data: bytes, pattern: Splitter) -> int:
    """Return the length of a prefix of a text whose ids do not depend on what follows the text; 0 if none is known.

    Patterns with an automaton: up to the first pretoken near the end that depends on what follows. BERT's words: up to
    the last white space or punctuation. SentencePiece's words: as in `safe_places`. Any other regex can depend on any
    later text.
    """
    data = data[: _whole_characters(data)]
    if (divider := pattern.last_divider(data)) is not None:
        return divider
    if pattern.automaton is None:
        places = safe_places(np.frombuffer(data, np.uint8), len(data) - 1) if pattern.splits_at_spaces else ()
        return max(places, default=0)
    tail, ends = TAIL_BYTES, np.zeros(1, dtype=np.int64)
    while True:
        if len(data) > tail and len(ends) == 1:
            ends = np.concatenate([ends, *(chunk.copy() for chunk in pretoken_ends(single_block(data), pattern))])
        # If the first pretoken of the tail is decided, so are all before it: after its end, a pretoken looks only at a
        # few characters, or at a run that the next pretoken looks at, too (see `regex_compilation`).
        tail_first = int(np.searchsorted(ends, max(0, len(data) - tail), side="right")) - 1
        start, start_of_tail = int(ends[max(0, tail_first - LOOK_AHEAD)]), int(ends[tail_first])
        decided = list(pretokens(data[start:], pattern.automaton, complete=False))
        # White space can be split differently if the text ends there.
        while decided and list(pretokens(b"".join(decided[-LOOK_AHEAD:]), pattern.automaton)) != decided[-LOOK_AHEAD:]:
            decided.pop()
        end = start + sum(map(len, decided))
        if end > start_of_tail or start_of_tail == 0:
            return end
        tail *= 8


def _whole_characters(data: bytes) -> int:
    """Return the length of a text without a UTF-8 character at its end that may be incomplete."""
    for length in range(1, min(4, len(data) + 1)):
        byte = data[-length]
        if byte >= 0xC0:
            return len(data) - length if length < (2 + (byte >= 0xE0) + (byte >= 0xF0)) else len(data)
        if byte < 0x80:
            break
    return len(data)

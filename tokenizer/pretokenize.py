"""Where pretokens end, block by block: the scanner for named patterns, `regex` for all others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tokenizer.documents import Block, single_block, text_bytes
from tokenizer.patterns import Pattern, compile_regex

# Pretokens per kernel call: their ends stay in the second-level cache, and Ctrl-C is heard between calls.
CHUNK = 16384


def pretoken_ends(block: Block, pattern: Pattern) -> Iterator[np.ndarray]:
    """Yield the ends (int64, absolute in block.data) of the pretokens of all documents, chunk by chunk.

    A pretoken starts where the one before ended, the first at block.offsets[0]. An array is overwritten by the next.
    Text that a regex leaves unmatched is a pretoken too, up to the next match, be it an empty one, as in Hugging Face.
    """
    if pattern.automaton is None:
        yield from _regex_ends(block, pattern)
        return
    from tokenizer.scan_kernel import scan

    automaton = pattern.automaton
    ends = np.empty(CHUNK, dtype=np.int64)
    document, position = 0, int(block.offsets[0])
    while document < len(block.offsets) - 1:
        n, document, position = scan(
            block.data,
            block.offsets,
            document,
            position,
            ends,
            automaton.actions,
            automaton.loops,
            automaton.byte_classes,
            automaton.code_point_classes,
            automaton.fold_contractions,
        )
        if n:
            yield ends[:n]


def _regex_ends(block: Block, pattern: Pattern) -> Iterator[np.ndarray]:
    regex = compile_regex(pattern.regex)
    for start, end in zip(block.offsets, block.offsets[1:], strict=False):
        lengths = []
        for segment, is_bad in _segments(bytes(block.data[start:end])):
            if is_bad:
                lengths.append(1)
                continue
            done = 0
            for match in regex.finditer(segment):
                if match.start() > done:
                    lengths.append(len(segment[done : match.start()].encode()))
                if match.end() > match.start():
                    lengths.append(len(match.group().encode()))
                done = match.end()
                if len(lengths) >= CHUNK:
                    ends = start + np.cumsum(lengths, dtype=np.int64)
                    start = ends[-1]
                    lengths = []
                    yield ends
            if done < len(segment):
                lengths.append(len(segment[done:].encode()))
        if lengths:
            yield start + np.cumsum(lengths, dtype=np.int64)


def _segments(text: bytes) -> Iterator[tuple[str, bool]]:
    """The stretches of valid UTF-8, and between them each byte that is not, as (text, is_bad)."""
    decoded = text.decode(errors="surrogateescape")
    start = 0
    if not decoded.isascii():
        import re

        for bad in re.finditer("[\udc80-\udcff]", decoded):
            if bad.start() > start:
                yield decoded[start : bad.start()], False
            yield bad.group(), True
            start = bad.end()
    if start < len(decoded):
        yield decoded[start:], False


def split(text: str | bytes, pattern: Pattern) -> list[bytes]:
    """The pretokens of one text; together they are the text."""
    data = text_bytes(text)
    pretokens, start = [], 0
    for ends in pretoken_ends(single_block(data), pattern):
        for end in ends.tolist():
            pretokens.append(data[start:end])
            start = end
    return pretokens

"""Which documents are for training and which for validation.

A rule is written "own", "hash:0.05" or "tail:0.1". Where a corpus has own splits but none for validation, a
second rule cuts it from "train".
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from corpora.documents import single_document, text_buffer

TRAIN, VALIDATION = "train", "validation"
FEW_DOCUMENTS = 20
_SEARCHED_BYTES = 1 << 20


@dataclass(frozen=True)
class Rule:
    """How documents are divided."""

    kind: str
    """"own", "hash" or "tail" """

    fraction: float = 0.0
    """of the documents (hash) or bytes (tail) that is for validation"""

    def __str__(self) -> str:
        return self.kind if self.kind == "own" else f"{self.kind}:{self.fraction:g}"


OWN = Rule("own")
HASH = Rule("hash", 0.05)
TAIL = Rule("tail", 0.1)


def parse_rule(text: str) -> Rule:
    """The rule that `text` writes; "hash" and "tail" alone take their usual fraction."""
    if text == "own":
        return OWN
    match = re.fullmatch(r"(hash|tail)(?::([0-9.eE+-]+))?", text)
    if match:
        usual = HASH if match[1] == "hash" else TAIL
        try:
            fraction = float(match[2]) if match[2] else usual.fraction
        except ValueError:
            fraction = 0.0
        if 0 < fraction < 1:
            return Rule(match[1], fraction)
    raise ValueError(f'the split "{text}" is none of own, hash:FRACTION and tail:FRACTION, with 0 < FRACTION < 1')


class HashRouter:
    """Each document by its own bytes, so that duplicates fall together: for validation if its 8-byte BLAKE2b, as a
    big-endian number, lies in the first `fraction` of all numbers."""

    def __init__(self, fraction: float):
        self._limit = int(fraction * 2**64)

    def route(self, documents: pa.Array) -> Iterator[tuple[str, pa.Array]]:
        """`documents`, large_binary without nulls, as (split, documents)."""
        if not len(documents):
            return
        chosen = self.chosen(documents)
        for split, mask in ((TRAIN, ~chosen), (VALIDATION, chosen)):
            if mask.all():
                yield split, documents
            elif mask.any():
                yield split, documents.filter(pa.array(mask))

    def chosen(self, documents: pa.Array) -> np.ndarray:
        """bool (N,): which of the documents, large_binary without nulls, are for validation."""
        offsets, data = text_buffer(documents)
        view, ends, blake2b = memoryview(data), offsets.tolist(), hashlib.blake2b
        digests = b"".join(blake2b(view[start:end], digest_size=8).digest() for start, end in pairwise(ends))
        return np.frombuffer(digests, dtype=">u8") < self._limit


class TailRouter:
    """What is before a cut in the sequence of all documents is for training, the rest for validation.

    The tail would begin at byte `total_bytes - fraction * total_bytes`; the cut is at the first line end at or after
    it: a line feed, or the end of a document. Where only the end of everything follows, it is at the last
    character boundary at or before that byte. The document that holds the cut becomes two.
    """

    def __init__(self, fraction: float, total_bytes: int):
        self._total = total_bytes
        # Neither side may be empty, if that can be.
        self._target = max(total_bytes - max(int(total_bytes * fraction), 1), 1)
        self._seen = 0

    def route(self, documents: pa.Array) -> Iterator[tuple[str, pa.Array]]:
        """`documents`, large_binary without nulls, as (split, documents)."""
        if not len(documents):
            return
        offsets, data = text_buffer(documents)
        ends = self._seen + (offsets[1:] - offsets[0])
        before, self._seen = self._seen, int(ends[-1])
        if before >= self._target:
            yield VALIDATION, documents
            return
        # The first document that reaches the target holds the cut.
        holder = int(np.searchsorted(ends, self._target))
        if holder == len(documents):
            yield TRAIN, documents
            return
        start = int(ends[holder - 1]) if holder else before
        text = data[offsets[holder] : offsets[holder + 1]]
        cut = self._cut(text, self._target - start, first=start == 0, last=start + len(text) == self._total)
        if holder:
            yield TRAIN, documents[:holder]
        for split, part in ((TRAIN, text[:cut]), (VALIDATION, text[cut:])):
            if len(part):
                yield split, single_document(pa.py_buffer(part))
        if holder + 1 < len(documents):
            yield VALIDATION, documents[holder + 1 :]

    def _cut(self, text: np.ndarray, target: int, first: bool, last: bool) -> int:
        """Where to cut a document whose byte `target` (1 to its length) begins the tail."""
        feed = _find_line_feed(text, target - 1)
        if feed is not None and feed + 1 < len(text):
            return feed + 1
        if not last:
            return len(text)
        boundary = target
        while boundary > max(target - 3, 0) and _continues_character(text, boundary):
            boundary -= 1
        if boundary == 0 and first:
            boundary = target
            while _continues_character(text, boundary):
                boundary += 1
        return boundary


def _continues_character(text: np.ndarray, position: int) -> bool:
    return position < len(text) and text[position] & 0xC0 == 0x80


def _find_line_feed(text: np.ndarray, start: int) -> int | None:
    for piece in range(start, len(text), _SEARCHED_BYTES):
        found = text[piece : piece + _SEARCHED_BYTES].tobytes().find(b"\n")
        if found >= 0:
            return piece + found
    return None

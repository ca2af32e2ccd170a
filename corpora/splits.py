"""Rules that divide documents into training and validation.

A rule is written "predefined", "hash:0.05", "tail:0.1" or "none", which leaves all documents for training. If a
corpus has splits of its own but no validation, a second rule cuts validation from "train".
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
    """A rule that divides documents into splits."""

    kind: str
    """"predefined", "hash", "tail" or "none" """

    fraction: float = 0.0
    """share of the documents (hash) or bytes (tail) for validation"""

    def __str__(self) -> str:
        return f"{self.kind}:{self.fraction:g}" if self.kind in ("hash", "tail") else self.kind


PREDEFINED = Rule("predefined")
NONE = Rule("none")
HASH = Rule("hash", 0.05)
TAIL = Rule("tail", 0.1)


def parse_rule(text: str) -> Rule:
    """Return the rule written as `text`. "hash" and "tail" alone have their usual fraction."""
    if not isinstance(text, str):
        raise ValueError(f'split must be a rule such as "predefined" or "hash:0.05", not {text!r}')
    if text in ("predefined", "none"):
        return Rule(text)
    match = re.fullmatch(r"(hash|tail)(?::([0-9.eE+-]+))?", text)
    if match:
        usual = HASH if match[1] == "hash" else TAIL
        try:
            fraction = float(match[2]) if match[2] else usual.fraction
        except ValueError:
            fraction = 0.0
        if 0 < fraction < 1:
            return Rule(match[1], fraction)
    raise ValueError(
        f'the split "{text}" is not one of predefined, hash:FRACTION, tail:FRACTION (with 0 < FRACTION < 1) and none'
    )


class HashRouter:
    """Routes each document by a hash of its bytes, so that duplicates are in the same split.

    A document is for validation if its 8-byte BLAKE2b digest, as a big-endian number, is below `fraction` * 2**64.
    """

    def __init__(self, fraction: float):
        self._limit = int(fraction * 2**64)

    def route(self, documents: pa.Array) -> Iterator[tuple[str, pa.Array]]:
        """Yield (split, documents) from `documents`, large_binary without nulls."""
        if not len(documents):
            return
        chosen = self.validation_mask(documents)
        for split, mask in ((TRAIN, ~chosen), (VALIDATION, chosen)):
            if mask.all():
                yield split, documents
            elif mask.any():
                yield split, documents.filter(pa.array(mask))

    def validation_mask(self, documents: pa.Array) -> np.ndarray:
        """Return which documents (large_binary, no nulls) are for validation, (N,) bool."""
        offsets, data = text_buffer(documents)
        view, ends, blake2b = data.data, offsets.tolist(), hashlib.blake2b
        digests = b"".join(blake2b(view[start:end], digest_size=8).digest() for start, end in pairwise(ends))
        return np.frombuffer(digests, dtype=">u8") < self._limit


class TailRouter:
    """Routes the documents before a cut to training, and the documents after it to validation.

    The target is byte `total_bytes - fraction * total_bytes`. The cut is at the first line feed or document end from
    there on. If that is the end of the last document, the cut is at the last character boundary up to the target.
    The document that holds the cut becomes two.
    """

    def __init__(self, fraction: float, total_bytes: int, seen: int = 0):
        """`seen`: bytes of documents before the first to route."""
        self._total = total_bytes
        # Both sides get at least one byte, if there are two.
        self._target = max(total_bytes - max(int(total_bytes * fraction), 1), 1)
        self._seen = seen

    def route(self, documents: pa.Array) -> Iterator[tuple[str, pa.Array]]:
        """Yield (split, documents) from `documents`, large_binary without nulls."""
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
        """Return where to cut a document whose target is byte `target` (1 to its length)."""
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

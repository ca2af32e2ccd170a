"""Records of vocabularies that were read and checked before, so that a program with a short text need not do it again.

To parse and check a tokenizer.json of 100,000 tokens takes longer than all else that such a program does. What came of
it is kept in a folder of the user's caches, under the SHA-256 of the file's content: a file that changed has no record.
A record that is not whole is passed over, the oldest give way to new ones, and a folder that cannot be written to is
no error. The variable BYTELM_CACHE names another folder, or none where it is empty.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from contextlib import suppress
from pathlib import Path

from tokenizer.splitting.chains import Chain
from tokenizer.splitting.patterns import resolve_pattern
from tokenizer.vocabulary import CutPairs, Vocabulary

SMALLEST_FILE = 1 << 20  # bytes; smaller files are read as fast
MOST_RECORDS = 16
# Raised whenever records come to hold, or files to be checked for, something else.
_FORMAT = f"bytelm vocabulary 1 {sys.byteorder}\n".encode()
_KEPT = ("special_tokens", "rule", "normalizer", "added_flags", "post_processor")


def folder_of_records() -> Path | None:
    """Where records are kept; None where there shall be none."""
    named = os.environ.get("BYTELM_CACHE")
    if named is not None:
        return Path(named) if named else None
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - raises for no home
    return Path(caches, "bytelm")


class Record:
    """The record of one file's content, which may not be there."""

    def __init__(self, content: bytes):
        folder = folder_of_records() if len(content) >= SMALLEST_FILE else None
        self._path = folder and folder / f"{_sha256(content).hex()}.vocabulary"

    def read(self) -> Vocabulary | None:
        """The vocabulary, or None where there is no whole record."""
        if self._path is None:
            return None
        try:
            content = self._path.read_bytes()
        except OSError:
            return None
        start = len(_FORMAT) + 32
        body = memoryview(content)[start:]
        if content[: len(_FORMAT)] != _FORMAT or content[len(_FORMAT) : start] != _sha256(body):
            return None
        header, tokens, lengths = _parts(body)
        return _restored(json.loads(bytes(header)), str(tokens, "utf-8").split("\n"), lengths)

    def write(self, vocabulary: Vocabulary) -> None:
        """Keep a vocabulary that was read from the file, where it is one of the usual kind."""
        body = _body(vocabulary) if self._path is not None else None
        if body is None:
            return
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}.partial")
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                unfinished.write_bytes(_FORMAT + _sha256(body) + body)
                unfinished.replace(self._path)
            finally:
                unfinished.unlink(missing_ok=True)
            _forget_oldest(self._path.parent)


def _sha256(content: bytes | memoryview) -> bytes:
    from hashlib import sha256

    return sha256(content).digest()


def _body(vocabulary: Vocabulary) -> bytes | None:
    """Tokens whose ids follow one by one, and the lengths of the left parts of merges that make them in that order."""
    ids, pairs, first_merged = vocabulary.ids, vocabulary.pairs, vocabulary.first_merged
    first = next(iter(ids.values()))
    if (
        isinstance(vocabulary.pattern, Chain)
        or first_merged is None
        or list(ids.values()) != list(range(first, first + len(ids)))
    ):
        return None
    lengths = [len(left) for left, _ in pairs]
    if max(lengths) >= 1 << 16:
        return None
    header = {name: getattr(vocabulary, name) for name in _KEPT}
    header |= {"pattern": str(vocabulary.pattern), "first": first, "first_merged": first_merged}
    lengths = array("H", lengths)
    parts = (json.dumps(header).encode(), "\n".join(ids).encode(), lengths.tobytes())
    return b"".join([len(part).to_bytes(8, "little") + part for part in parts])


def _parts(body: memoryview) -> list[memoryview]:
    parts = []
    while body:
        end = 8 + int.from_bytes(body[:8], "little")
        parts.append(body[8:end])
        body = body[end:]
    return parts


def _restored(header: dict, tokens: list[str], lengths: memoryview) -> Vocabulary:
    first, first_merged = header["first"], header["first_merged"]
    lengths = lengths.cast("H")
    merged = tokens[first_merged - first : first_merged - first + len(lengths)]
    return Vocabulary(
        ids=dict(zip(tokens, range(first, first + len(tokens)), strict=True)),
        spelled=True,
        pairs=CutPairs(merged, lengths),
        first_merged=first_merged,
        pattern=resolve_pattern(header["pattern"]),
        **{name: header[name] for name in _KEPT},
    )


def _forget_oldest(folder: Path) -> None:
    records = sorted(folder.glob("*.vocabulary"), key=lambda path: path.stat().st_mtime_ns)
    for path in records[:-MOST_RECORDS]:
        path.unlink(missing_ok=True)

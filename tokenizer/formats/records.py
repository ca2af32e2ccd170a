"""The cache of parsed vocabularies: one record for each large tokenizer.json that was read and checked.

Parsing and checking a tokenizer.json of 100,000 tokens takes longer than the rest of a program that encodes a short
text. Records are stored in the user's cache folder under the SHA-256 of the file, so a changed file has no record.
Damaged records are ignored, new records replace the oldest, and a folder that is not writable is not an error.
BYTELM_CACHE names another folder; an empty value turns the cache off.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from contextlib import suppress
from pathlib import Path

from tokenizer.bpe_vocabulary import BytePairVocabulary, PackedPairs
from tokenizer.splitting.normalizers import NFC
from tokenizer.splitting.patterns import resolve_pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.vocabulary import Vocabulary

SMALLEST_FILE = 1 << 20  # bytes; a record would not load faster than a smaller file
MOST_RECORDS = 16
# Increase the version whenever the content of records or the checks of files change.
_FORMAT = f"bytelm vocabulary 3 {sys.byteorder}\n".encode()
_HEADER_FIELDS = ("special_tokens", "rule", "added_flags", "post_processor", "length_settings")


def folder_of_records() -> Path | None:
    """Return the folder of records, or None if the cache is off."""
    named = os.environ.get("BYTELM_CACHE")
    if named is not None:
        return Path(named) if named else None
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - raises for no home
    return Path(caches, "bytelm")


class Record:
    """The record of a file's content. It need not exist."""

    def __init__(self, content: bytes):
        folder = folder_of_records() if len(content) >= SMALLEST_FILE else None
        self._path = folder / f"{_sha256(content).hex()}.vocabulary" if folder else None

    def read(self) -> BytePairVocabulary | None:
        """Return the vocabulary, or None if the record is missing or damaged."""
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
        return _restore(json.loads(bytes(header)), str(tokens, "utf-8").split("\n"), lengths)

    def write(self, vocabulary: Vocabulary) -> None:
        """Store the vocabulary of the file, if it is one of BPE that can be stored: see `_body`."""
        if self._path is None or not isinstance(vocabulary, BytePairVocabulary):
            return
        if (body := _body(vocabulary)) is None:
            return
        from tokenizer.formats.whole_files import whole_file

        with suppress(OSError):
            with whole_file(self._path) as partial:
                partial.write_bytes(_FORMAT + _sha256(body) + body)
            _delete_oldest(self._path.parent)


def _sha256(content: bytes | memoryview) -> bytes:
    from hashlib import sha256

    return sha256(content).digest()


def _body(vocabulary: BytePairVocabulary) -> bytes | None:
    """Return the bytes of a record: header, spelled tokens, and the length of the left part of each merge.

    None if the normalizer is not NFC, token ids have gaps, merges are not in the order of their tokens' ids, a left
    part has 65,536 characters or more, or the pre-tokenizer has several steps.
    """
    ids: Any = vocabulary.ids
    pairs: Any = vocabulary.pairs
    first_merged = vocabulary.first_merged
    first = next(iter(ids.values()))
    if (
        vocabulary.pattern.spelling is None
        or (vocabulary.normalizer is not None and not vocabulary.normalizer.is_nfc)
        or first_merged is None
        or vocabulary.unreachable
        or list(ids.values()) != list(range(first, first + len(ids)))
    ):
        return None
    lengths = [len(left) for left, _ in pairs]
    if max(lengths) >= 1 << 16:
        return None
    header = {name: getattr(vocabulary, name) for name in _HEADER_FIELDS}
    header |= {
        "nfc": vocabulary.normalizer is not None,
        "pattern": str(vocabulary.pattern),
        "first": first,
        "first_merged": first_merged,
    }
    parts = (json.dumps(header).encode(), "\n".join(ids).encode(), array("H", lengths).tobytes())
    return b"".join([len(part).to_bytes(8, "little") + part for part in parts])


def _parts(body: memoryview) -> list[memoryview]:
    """Return the parts of a record, each stored after its length in 8 bytes."""
    parts = []
    while body:
        end = 8 + int.from_bytes(body[:8], "little")
        parts.append(body[8:end])
        body = body[end:]
    return parts


def _restore(header: dict[str, Any], tokens: list[str], left_lengths: memoryview) -> BytePairVocabulary:
    first, first_merged = header["first"], header["first_merged"]
    lengths = left_lengths.cast("H")
    merged = tokens[first_merged - first : first_merged - first + len(lengths)]
    return BytePairVocabulary(
        ids=dict(zip(tokens, range(first, first + len(tokens)), strict=True)),
        spelled=True,
        pairs=PackedPairs(merged, lengths),
        first_merged=first_merged,
        pattern=resolve_pattern(header["pattern"]),
        normalizer=NFC if header["nfc"] else None,
        **{name: header[name] for name in _HEADER_FIELDS},
    )


def _delete_oldest(folder: Path) -> None:
    records = sorted(folder.glob("*.vocabulary*"), key=lambda path: path.stat().st_mtime_ns)
    for path in records[:-MOST_RECORDS]:
        path.unlink(missing_ok=True)

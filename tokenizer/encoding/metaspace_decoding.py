"""From ids of Unigram pieces to text, as `tokenizers` and sentencepiece decode them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain

from tokenizer.encoding.ids_to_text import ByteDecoding
from tokenizer.splitting.metaspace_splitter import NEVER
from tokenizer.splitting.normalizers import MARK, Replace, most_characters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.sentencepiece_vocabulary import SentencePieceVocabulary
    from tokenizer.unigram_vocabulary import UnigramVocabulary

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")


class UnigramDecoding(ByteDecoding, ABC):
    """What decoding by both libraries has in common: only the first token of a text is decoded differently."""

    @cached_property
    @abstractmethod
    def _later(self) -> list[bytes | None]:
        """The bytes that each id adds unless it is the first of a text."""

    def added_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a preceding text. A byte piece adds its byte."""
        self.token_bytes(token)  # raises for an unknown id
        return self._later[token] or b""

    def decode_each(self, ids: Iterable[int]) -> list[bytes]:
        listed = [*ids]
        self.decode(listed)  # raises for an unknown id
        return [self.decode(listed[:1]), *map(self.added_bytes, listed[1:])] if listed else []

    def _decode_many(self, ids: Any, skip_special_tokens: bool) -> None:
        """Return None, so that `_pieces` decodes long arrays too."""


class MetaspaceDecoding(UnigramDecoding):
    """The texts of the pieces, with spaces in place of `▁`."""

    _vocabulary: UnigramVocabulary

    @cached_property
    def _later(self) -> list[bytes | None]:
        """The bytes that each id adds unless it is the first of a text."""
        falls_back = any(step["type"] == "ByteFallback" for step in self._vocabulary.decoder)
        later: list[bytes | None] = []
        for token in self.by_id:
            if token is None:
                later.append(None)
                continue
            piece = token.decode()
            byte = _BYTE.fullmatch(piece) if falls_back else None
            later.append(bytes.fromhex(byte[1]) if byte else self._decode(["x", piece])[1:].encode())
        return later

    @cached_property
    def _is_piecewise(self) -> bool:
        """Whether each piece after the first is decoded on its own."""
        return [step["type"] for step in self._vocabulary.decoder] == ["Metaspace"]

    def _pieces(self, ids: list[int]) -> Iterable[bytes]:
        """Return the bytes that each id adds; those of all ids in one item if the decoder joins pieces."""
        first = self._decode([self._text(i) for i in (ids[:1] if self._is_piecewise else ids)]).encode()
        return chain([first], map(self._later.__getitem__, ids[1:] if self._is_piecewise else []))  # type: ignore[arg-type]

    def _text(self, token: int) -> str:
        found = self.by_id[token]
        if found is None:
            raise IndexError(token)
        return found.decode()

    def _decode(self, pieces: list[str]) -> str:
        most = most_characters(sum(map(len, pieces)))
        for step in self._vocabulary.decoder:
            if step["type"] == "Replace":
                Replace(step["pattern"]["String"], False, step["content"]).check_growth(pieces, most)
            pieces = _DECODERS[step["type"]](pieces, step)
        return "".join(pieces)


def _metaspace(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    decoded = [piece.replace(MARK, " ") for piece in pieces]
    if pieces and step["prepend_scheme"] != NEVER:
        decoded[0] = pieces[0].replace(MARK, "")
    return decoded


def _replace(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    return [piece.replace(step["pattern"]["String"], step["content"]) for piece in pieces]


def _byte_fallback(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    """Decode each run of byte pieces. If it is not UTF-8, every byte of the run becomes U+FFFD."""
    decoded: list[str] = []
    pending = bytearray()
    for piece in [*pieces, ""]:
        byte = _BYTE.fullmatch(piece)
        if byte:
            pending.append(int(byte[1], 16))
            continue
        if pending:
            try:
                decoded.append(pending.decode())
            except UnicodeDecodeError:
                decoded += ["\ufffd"] * len(pending)
            pending.clear()
        decoded.append(piece)
    return decoded[:-1]


def _fuse(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    return ["".join(pieces)]


def _strip(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    """Remove the character up to `start` times from the beginning and `stop` times from the end of each piece."""
    stripped = []
    for piece in pieces:
        start, stop = 0, len(piece)
        while start < min(step["start"], len(piece)) and piece[start] == step["content"]:
            start += 1
        while stop > max(start, len(piece) - step["stop"]) and piece[stop - 1] == step["content"]:
            stop -= 1
        stripped.append(piece[start:stop])
    return stripped


_DECODERS = {
    "Metaspace": _metaspace,
    "Replace": _replace,
    "ByteFallback": _byte_fallback,
    "Fuse": _fuse,
    "Strip": _strip,
}


class SentencePieceDecoding(UnigramDecoding):
    """The texts of the pieces of a SentencePiece model, as sentencepiece gives them; control pieces give nothing."""

    _vocabulary: SentencePieceVocabulary

    @cached_property
    def _later(self) -> list[bytes | None]:
        """The bytes that each id adds unless it is the first of a text."""
        vocabulary = self._vocabulary
        later: list[bytes | None] = [None if token is None else self._piece(token) for token in self.by_id]
        for i in vocabulary.control_ids:
            later[i] = b""
        for i, byte in vocabulary.bytes_of_pieces.items():
            later[i] = byte
        later[vocabulary.unknown_id] = vocabulary.unknown_surface.encode()
        return later

    def _piece(self, token: bytes) -> bytes:
        return token.replace(MARK.encode(), b" ")

    def _pieces(self, ids: list[int]) -> Iterable[bytes]:
        """Return the bytes of all pieces in order. Each byte that is not part of UTF-8 becomes U+FFFD."""
        pattern, bytes_of_pieces = self._vocabulary.pattern, self._vocabulary.bytes_of_pieces
        drops_mark = pattern.add_dummy_prefix or pattern.remove_extra_whitespaces
        decoded: list[bytes] = []
        pending = b""
        at_start = True
        for i in ids:
            later = self._later[i]
            if later is None:
                raise IndexError(i)
            if i in bytes_of_pieces:
                pending += later
                at_start = False
                continue
            decoded.append(_valid(pending))
            pending = b""
            if at_start and drops_mark and i != self._vocabulary.unknown_id and later.startswith(b" "):
                later = later[1:]
                at_start = pattern.remove_extra_whitespaces and later == b""
            else:
                at_start = at_start and later == b""
            decoded.append(later)
        return [*decoded, _valid(pending)]


def _valid(data: bytes) -> bytes:
    return "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in data.decode(errors="surrogateescape")).encode()

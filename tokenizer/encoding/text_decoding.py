"""From ids to text by the steps of tokenizer.json, as `tokenizers` decodes them, and as sentencepiece does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import cached_property
from itertools import chain

from tokenizer.encoding.decoder_steps import BYTE, JOIN, bytes_of, decode_by
from tokenizer.encoding.ids_to_text import ByteDecoding, list_of_ids
from tokenizer.splitting.normalizers import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.sentencepiece_vocabulary import SentencePieceVocabulary

_OTHER = "\x01"  # a text that no decoder changes


class TextDecoding(ByteDecoding, ABC):
    """Tokens are text, and the first one of a text is decoded differently, as in both libraries."""

    @cached_property
    @abstractmethod
    def _later(self) -> list[bytes | None]:
        """The bytes that each id adds unless it is the first of a text."""

    def added_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a preceding text. A byte piece adds its byte."""
        self.token_bytes(token)  # raises for an unknown id
        return self._later[token] or b""

    def decode_each(self, ids: Iterable[int]) -> list[bytes]:
        listed = list_of_ids(ids)
        self.decode(listed)  # raises for an unknown id
        return [self.decode(listed[:1]), *map(self.added_bytes, listed[1:])] if listed else []

    def _decode_many(self, ids: Any, skip_special_tokens: bool) -> None:
        """Return None, so that `_pieces` decodes long arrays too."""


class StepDecoding(TextDecoding):
    """The texts of tokens after the steps of decoding in `vocabulary.decoder`."""

    _vocabulary: Any

    @cached_property
    def _kinds(self) -> list[str]:
        return [step["type"] for step in self._vocabulary.decoder]

    @cached_property
    def _later(self) -> list[bytes | None]:
        """The bytes that each id adds unless it is the first of a text."""
        if self._kinds == ["ByteLevel"]:
            return [None if token is None else bytes_of(token.decode()) for token in self.by_id]
        later: list[bytes | None] = []
        for token in self.by_id:
            if token is None:
                later.append(None)
                continue
            piece = token.decode()
            byte = BYTE.fullmatch(piece) if "ByteFallback" in self._kinds else None
            if byte:
                later.append(bytes.fromhex(byte[1]))
            elif "BPEDecoder" in self._kinds:  # the last token of a text loses its suffix
                later.append(self._decode([_OTHER, piece, _OTHER])[1:-1].encode())
            else:
                later.append(self._decode([_OTHER, piece])[1:].encode())
        return later

    @cached_property
    def _is_piecewise(self) -> bool:
        """Whether each piece after the first is decoded on its own."""
        return self._kinds in (["Metaspace"], ["WordPiece"], ["ByteLevel"], ["Fuse"], [JOIN])

    def _pieces(self, ids: list[int]) -> Iterable[bytes]:
        """Return the bytes that each id adds; those of all ids in one item if the decoder joins pieces."""
        if self._kinds == ["ByteLevel"]:
            return map(self._later.__getitem__, ids)  # type: ignore[arg-type]
        first = self._decode([self._text(i) for i in (ids[:1] if self._is_piecewise else ids)]).encode()
        return chain([first], map(self._later.__getitem__, ids[1:] if self._is_piecewise else []))  # type: ignore[arg-type]

    def decode_each(self, ids: Iterable[int]) -> list[bytes]:
        listed = list_of_ids(ids)
        decoded, pieces = self.decode(listed), super().decode_each(listed)
        # A decoder that reads several tokens at once gives the text of all to the first.
        return pieces if b"".join(pieces) == decoded else [decoded, *[b""] * (len(pieces) - 1)]

    def _text(self, token: int) -> str:
        found = self.by_id[token]
        if found is None:
            raise IndexError(token)
        return found.decode()

    def _decode(self, pieces: list[str]) -> str:
        return decode_by(self._vocabulary.decoder, pieces)


class SentencePieceDecoding(TextDecoding):
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

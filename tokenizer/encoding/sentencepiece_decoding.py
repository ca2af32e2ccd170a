"""From ids of a SentencePiece model to text, as sentencepiece decodes them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from tokenizer.encoding.metaspace_decoding import UnigramDecoding
from tokenizer.splitting.normalizers import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.sentencepiece_vocabulary import SentencePieceVocabulary


class SentencePieceDecoding(UnigramDecoding):
    """The texts of the pieces, with spaces in place of `▁`; control pieces give nothing."""

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
        later[vocabulary.unknown] = vocabulary.unknown_surface.encode()
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
            if at_start and drops_mark and i != self._vocabulary.unknown and later.startswith(b" "):
                later = later[1:]
                at_start = pattern.remove_extra_whitespaces and later == b""
            else:
                at_start = at_start and later == b""
            decoded.append(later)
        return [*decoded, _valid(pending)]


def _valid(data: bytes) -> bytes:
    return "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in data.decode(errors="surrogateescape")).encode()

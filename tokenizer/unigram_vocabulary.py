"""The Unigram vocabulary: every piece has a score, and a text becomes the pieces with the largest sum of scores.

Source: Kudo, "Subword Regularization" (2018), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from tokenizer.splitting.normalizers import MARK
from tokenizer.vocabulary import Vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Unpack

    from tokenizer.encoding.kernel_encoder import KernelTables
    from tokenizer.encoding.piece_tables import UnigramTables
    from tokenizer.encoding.segmentations import Segmentations
    from tokenizer.encoding.text_decoding import TextDecoding
    from tokenizer.vocabulary import Common, Encode, EncodeWithSpans, Part

UNKNOWN_PENALTY = 10.0  # nats below the lowest score


class UnigramVocabulary(Vocabulary):
    """An immutable Unigram vocabulary, which encodes as `tokenizers` does: in float64, pretoken by pretoken.

    pieces, scores: the spelling and the score in nats of each id; `▁` stands for a space. Texts can become any piece,
    also that of a special token. unknown: the id of characters that no piece spells.
    byte_fallback: whether the pieces `<0x00>` to `<0xFF>` spell these characters instead.
    decoder: the steps of decoding, in the form of tokenizer.json.

    The caller must check that pieces are distinct and not empty, that scores are finite, and that `unknown` is an id.
    """

    kind = "unigram"
    units = "Unigram pieces"
    pattern: Any  # `MetaspaceWords`, or `SentencePieceText` in a subclass
    sums_are_float32 = False
    source: bytes | None = None
    """The file of a SentencePiece model."""

    def __init__(
        self,
        *,
        pieces: Sequence[str],
        scores: Sequence[float],
        unknown: int,
        byte_fallback: bool = False,
        decoder: Sequence[dict[str, Any]],
        **common: Unpack[Common],
    ):
        super().__init__(largest=len(pieces) - 1, **common)
        self.pieces = pieces
        self.scores = scores
        self.unknown = unknown
        self.byte_fallback = byte_fallback
        self.decoder = decoder

    def pretoken_encoder(self) -> Encode:
        from tokenizer.encoding.unigram_lattice import Lattices

        return Lattices(self).encode

    def kernel_tables(self) -> UnigramTables:
        from tokenizer.encoding.piece_tables import UnigramTables

        return UnigramTables(self)

    def decoding(self) -> TextDecoding:
        from tokenizer.encoding.text_decoding import StepDecoding

        return StepDecoding(self)

    def span_encoder(self, encode: Encode) -> EncodeWithSpans:
        if self.source is not None:
            raise ValueError(
                "offsets of SentencePiece's Unigram models are not supported: convert the model with as_tokenizers()"
            )
        from tokenizer.encoding.metaspace_spans import UnigramSpans

        return UnigramSpans(self)

    def segmentations(self, tables: Callable[[], KernelTables]) -> Segmentations:
        from tokenizer.encoding.segmentations import Segmentations

        return Segmentations(self, tables)

    @cached_property
    def ids(self) -> dict[str, int]:  # type: ignore[override]  # computed on first use
        """The id of each piece."""
        return {piece: i for i, piece in enumerate(self.pieces)}

    @cached_property
    def matches(self) -> dict[str, int]:
        """The ids of the pieces that texts can become, spelled as in pretokens: with a space for each mark."""
        return {piece.replace(MARK, " "): i for piece, i in self.ids.items() if " " not in piece}

    @property
    def unknown_id(self) -> int:
        return self.unknown

    @property
    def edge_scores(self) -> Sequence[float]:
        """The score of each id in a segmentation."""
        return self.scores

    def unknown_ids(self, text: str) -> list[int]:
        """Return the ids of joined unknown pieces: the piece that they spell, else their bytes, else unknown."""
        if (i := self.matches.get(text)) is not None:
            return [i]
        return self._fallback(text.replace(" ", MARK))

    def _fallback(self, text: str) -> list[int]:
        if self.byte_ids is not None:
            found = [self.byte_ids[byte] for byte in text.encode()]
            if min(found) >= 0:
                return found
        return [self.unknown]

    @cached_property
    def unknown_score(self) -> float:
        """The score of a character without a piece."""
        return min(self.scores) - UNKNOWN_PENALTY

    @cached_property
    def byte_ids(self) -> list[int] | None:
        """The ids of the 256 bytes, -1 for a byte without a piece; None without byte_fallback."""
        if not self.byte_fallback:
            return None
        return [self.ids.get(f"<0x{byte:02X}>", -1) for byte in range(256)]

    @property
    def fingerprint_parts(self) -> list[Part]:
        import struct

        return [
            ("tokens", self.pieces),
            ("scores", [struct.pack(f"<{len(self.scores)}d", *self.scores)]),
            ("rules", [str(self.unknown), str(self.byte_fallback)]),
        ]

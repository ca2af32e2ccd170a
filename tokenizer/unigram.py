"""The Unigram vocabulary: every piece has a score, and a text becomes the pieces with the largest sum of scores.

It has the properties of `Vocabulary`. `encoding/kinds.py` names the encoder and decoder of each kind. Source: Kudo,
"Subword Regularization" (2018), section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tokenizer.fingerprints import digest_of, flag_parts, special_token_part
from tokenizer.splitting.metaspace import FIRST, MARK, NEVER, MetaspaceWords

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    import numpy as np
    import numpy.typing as npt

    from tokenizer.splitting.sentencepiece import SentencePieceText

UNKNOWN_PENALTY = 10.0  # nats below the lowest score


class UnigramVocabulary:
    """An immutable Unigram vocabulary, which encodes as `tokenizers` does: in float64, pretoken by pretoken.

    pieces, scores: the spelling and the score in nats of each id; `▁` stands for a space. Texts can become any piece,
    also that of a special token. unknown: the id of characters that no piece spells.
    byte_fallback: whether the pieces `<0x00>` to `<0xFF>` spell these characters instead.
    decoder: the steps of decoding, in the form of tokenizer.json.
    added_flags, post_processor and length_settings: as in `Vocabulary`.

    The caller must check that pieces are distinct and not empty, that scores are finite, and that `unknown` is an id.
    """

    kind = "unigram"
    sums_are_float32 = False
    normalizer = None  # normalization is part of `pattern`
    missing_bytes = b""
    is_lossless = False

    def __init__(
        self,
        *,
        pieces: Sequence[str],
        scores: Sequence[float],
        unknown: int,
        special_tokens: dict[str, int],
        pattern: MetaspaceWords | SentencePieceText,
        byte_fallback: bool = False,
        decoder: Sequence[dict[str, Any]],
        added_flags: Mapping[str, dict[str, bool]] | None = None,
        post_processor: dict[str, Any] | None = None,
        length_settings: Mapping[str, Any] | None = None,
    ):
        self.pieces = pieces
        self.scores = scores
        self.unknown = unknown
        self.special_tokens = special_tokens
        self.pattern: Any = pattern  # a subclass has its own kind
        self.byte_fallback = byte_fallback
        self.decoder = decoder
        self.added_flags = added_flags or {}
        self.post_processor = post_processor
        self.length_settings = length_settings or {}
        self.size = max([len(pieces) - 1, *special_tokens.values()]) + 1

    @property
    def inside(self) -> UnigramVocabulary:
        """The vocabulary for text that follows a special token; itself unless only the start of a text gets a mark."""
        if not isinstance(self.pattern, MetaspaceWords) or self.pattern.prepend != FIRST:
            return self
        return UnigramVocabulary(
            pieces=self.pieces,
            scores=self.scores,
            unknown=self.unknown,
            special_tokens=self.special_tokens,
            pattern=self.pattern._replace(prepend=NEVER),
            byte_fallback=self.byte_fallback,
            decoder=self.decoder,
        )

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each piece."""
        return {piece: i for i, piece in enumerate(self.pieces)}

    @cached_property
    def matches(self) -> dict[str, int]:
        """The ids of the pieces that texts can become, spelled as in pretokens: with a space for each mark."""
        return {piece.replace(MARK, " "): i for piece, i in self.ids.items() if " " not in piece}

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

    @cached_property
    def tokens(self) -> list[bytes | None]:
        """The spelling of each piece by id; None for special tokens and gaps."""
        special = set(self.special_tokens.values())
        tokens = [None if i in special else piece.encode() for i, piece in enumerate(self.pieces)]
        return tokens + [None] * (self.size - len(tokens))

    def find(self, token: bytes) -> int | None:
        """Return the id of the piece with this spelling in UTF-8, or None."""
        return self.ids.get(token.decode(errors="surrogateescape"))

    def spelled_id(self, spelling: str) -> int | None:
        """Return the id of the piece with this spelling, or None."""
        return self.ids.get(spelling)

    def spelling(self, token: bytes) -> str:
        """Return a piece as tokenizer.json spells it: as text."""
        return token.decode()

    @property
    def byte_lengths(self) -> NoReturn:
        """Raises ValueError: normalization loses bytes, and the unknown token stands for any characters."""
        raise ValueError(
            "Unigram pieces have no fixed number of bytes, because normalization and the unknown token lose text: "
            "count the bytes of the original documents"
        )

    @property
    def merges(self) -> npt.NDArray[np.int32]:
        """No merges, int32 (0, 3)."""
        import numpy as np

        return np.empty((0, 3), dtype=np.int32)

    @cached_property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that decides ids. It does not depend on the file format."""
        import struct

        return digest_of(
            [
                ("kind", [self.kind]),
                ("tokens", self.pieces),
                ("scores", [struct.pack(f"<{len(self.scores)}d", *self.scores)]),
                ("rules", [str(self.unknown), str(self.byte_fallback)]),
                ("pattern", [self.pattern.identity]),
                special_token_part(self.special_tokens),
                *flag_parts(self.special_tokens, self.added_flags, ("lstrip", "rstrip", "single_word")),
            ]
        )

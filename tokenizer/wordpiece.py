"""The WordPiece vocabulary: BERT's words are cut into the longest tokens from left to right.

It has the properties of `Vocabulary`. `encoding/kinds.py` names the encoder and decoder of each kind. Source: Devlin et
al., "BERT" (2019), after Schuster and Nakajima (2012).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from tokenizer.fingerprints import digest_of, flag_parts, special_token_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    import numpy as np
    import numpy.typing as npt

    from tokenizer.splitting.bert import BertWords

UNKNOWN = "[UNK]"
CONTINUATION = "##"
LONGEST_WORD = 100  # characters


class WordPieceVocabulary:
    """An immutable WordPiece vocabulary.

    ids: maps tokens to ids. It may contain special tokens; a word spelled like one gets its id, as in tokenizers. Other
    special tokens have the ids that follow, from the number of entries on, as tokenizers gives them.
    unknown: the token of a word that no tokens spell. prefix: the start of tokens that continue a word.
    longest_word: longer words, in code points, are unknown. cleanup: whether decoding joins punctuation to words.
    added_flags, post_processor and length_settings: as in `Vocabulary`.
    learned_merges: the merges of training in order, as pairs of tokens. Encoding does not use them, and files do not
    keep them.

    The caller must check that ids are distinct whole numbers and that `unknown` is a token.
    """

    kind = "wordpiece"
    normalizer = None  # normalization is part of `pattern`
    missing_bytes = b""
    is_lossless = False

    def __init__(
        self,
        *,
        ids: Mapping[str, int],
        special_tokens: dict[str, int],
        pattern: BertWords,
        unknown: str = UNKNOWN,
        prefix: str = CONTINUATION,
        longest_word: int = LONGEST_WORD,
        cleanup: bool = True,
        added_flags: Mapping[str, dict[str, bool]] | None = None,
        post_processor: dict[str, Any] | None = None,
        length_settings: Mapping[str, Any] | None = None,
        learned_merges: Sequence[tuple[str, str]] = (),
    ):
        self.ids = ids
        self.special_tokens = special_tokens
        self.pattern = pattern
        self.unknown = unknown
        self.prefix = prefix
        self.longest_word = longest_word
        self.cleanup = cleanup
        self.added_flags = added_flags or {}
        self.post_processor = post_processor
        self.length_settings = length_settings or {}
        self.learned_merges = learned_merges
        self.size = max([*ids.values(), *special_tokens.values()]) + 1

    def find(self, token: bytes) -> int | None:
        """Return the id of the token with this spelling in UTF-8, or None."""
        return self.ids.get(token.decode(errors="surrogateescape"))

    def spelled_id(self, spelling: str) -> int | None:
        """Return the id of the token with this spelling, or None."""
        return self.ids.get(spelling)

    def spelling(self, token: bytes) -> str:
        """Return a token as tokenizer.json spells it: as text."""
        return token.decode()

    @cached_property
    def tokens(self) -> list[bytes | None]:
        """The spelling of each token by id; None for special tokens and gaps."""
        tokens: list[bytes | None] = [None] * self.size
        for token, i in self.ids.items():
            if token not in self.special_tokens:
                tokens[i] = token.encode()
        return tokens

    @property
    def byte_lengths(self) -> NoReturn:
        """Raises ValueError: normalization loses bytes, and [UNK] stands for any word."""
        raise ValueError(
            "WordPiece tokens have no fixed number of bytes, because normalization and [UNK] lose text: "
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
        listed = sorted(self.ids.items(), key=lambda item: item[1])
        return digest_of(
            [
                ("kind", [self.kind]),
                ("tokens", [f"{i} {token}" for token, i in listed]),
                ("rules", [self.unknown, self.prefix, str(self.longest_word)]),
                ("pattern", [self.pattern.identity]),
                special_token_part(self.special_tokens),
                *flag_parts(self.special_tokens, self.added_flags, ("lstrip", "rstrip", "single_word")),
            ]
        )

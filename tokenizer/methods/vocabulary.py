"""The methods of `Tokenizer` that describe its vocabulary."""

from __future__ import annotations

from functools import cached_property

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    import numpy as np
    import numpy.typing as npt

    from tokenizer.encoding.kinds import AnyVocabulary


class VocabularyMethods:
    """Tokens, ids and properties of a vocabulary."""

    def __init__(self, vocabulary: AnyVocabulary):
        self.vocabulary = vocabulary  # tokens, ids and merges, independent of file formats

    def __reduce__(self) -> tuple[type[Self], tuple[AnyVocabulary]]:
        return type(self), (self.vocabulary,)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} entries, pattern {self.vocabulary.pattern})"

    @property
    def vocab_size(self) -> int:
        """The largest id + 1: special tokens, the 256 bytes, merges, and a file's unused ids."""
        return self.vocabulary.size

    @property
    def special_tokens(self) -> dict[str, int]:
        """The id of each special token, by spelling."""
        return dict(self.vocabulary.special_tokens)

    @property
    def kind(self) -> str:
        """The kind of vocabulary: "bpe" or "wordpiece"."""
        return self.vocabulary.kind

    @property
    def is_lossless(self) -> bool:
        """Whether ids decode exactly to the normalized text. WordPiece loses case, accents or white space."""
        return self.vocabulary.is_lossless

    @property
    def pattern(self) -> str:
        """The name of the split pattern or of BERT's words, or the regex of a custom one."""
        return str(self.vocabulary.pattern)

    @property
    def normalizer(self) -> str | None:
        """The Unicode normalization before encoding: "NFC" or None."""
        return self.vocabulary.normalizer

    @property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that decides ids. It does not depend on the file format."""
        return self.vocabulary.fingerprint

    @cached_property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """The merges in order, as pairs of bytes; none for WordPiece. For ranks, merges that give the same ids."""
        tokens = self.vocabulary.tokens
        return [(tokens[left], tokens[right]) for left, right, _ in self.vocabulary.merges.tolist()]

    @property
    def token_byte_lengths(self) -> npt.NDArray[np.int32]:
        """The bytes of each token, int32 (vocab_size,), 0 for special and unused ids. ValueError for WordPiece."""
        return self.vocabulary.byte_lengths

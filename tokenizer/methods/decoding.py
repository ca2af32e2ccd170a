"""The methods of `Tokenizer` that turn ids into text."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizer.encoding.kinds import decoding
from tokenizer.methods.vocabulary import VocabularyMethods

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tokenizer.encoding.kinds import AnyVocabulary


class DecodingMethods(VocabularyMethods):
    """Ids to text."""

    def __init__(self, vocabulary: AnyVocabulary):
        super().__init__(vocabulary)
        self._decoding = decoding(vocabulary)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of the ids. Special tokens give their spelling. Raises ValueError for an unknown id."""
        return self._decoding.decode(ids)

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """Return the text of the ids. errors: how to handle invalid UTF-8, as in `bytes.decode`."""
        return self.decode_bytes(ids).decode("utf-8", errors=errors)

    @property
    def ordinary(self) -> npt.NDArray[np.bool_]:
        """Whether each id stands for text, bool (vocab_size,): False for special tokens and unused ids."""
        return self._decoding.ordinary

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; for special and WordPiece tokens, the spelling. ValueError for an unknown id."""
        return self._decoding.token_bytes(token)

    def added_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a preceding text; in WordPiece, a word adds a space before it."""
        return self._decoding.added_bytes(token)

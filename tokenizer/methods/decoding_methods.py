"""The methods of `Tokenizer` that turn ids into text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from tokenizer.arguments import check_iterable, error_handler
from tokenizer.methods.vocabulary_methods import VocabularyMethods

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    import numpy as np
    import numpy.typing as npt

    from tokenizer.vocabulary import Vocabulary


class DecodingMethods(VocabularyMethods):
    """Ids to text."""

    def __init__(self, vocabulary: Vocabulary):
        super().__init__(vocabulary)
        self._decoding = vocabulary.decoding()

    def decode_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> bytes:
        """Return the bytes of the ids. Special tokens give their spelling, or nothing if `skip_special_tokens`.

        Raises ValueError for an unknown id.
        """
        return self._decoding.decode(ids, skip_special_tokens)

    def decode(self, ids: Iterable[int], errors: str = "replace", *, skip_special_tokens: bool = False) -> str:
        """Return the text of the ids. errors: how to handle invalid UTF-8, as in `bytes.decode`."""
        return self._decoding.decode(ids, skip_special_tokens).decode("utf-8", errors=error_handler(errors))

    def decode_batch(
        self, batch: Iterable[Iterable[int]], errors: str = "replace", *, skip_special_tokens: bool = False
    ) -> list[str]:
        """Return the text of each list of ids. `batch` may be the Arrow array that `encode_arrow` returns.

        Raises ValueError with the index of the list that has an unknown id.
        """
        check_iterable("batch", batch, "lists of ids")
        texts = []
        for number, ids in enumerate(batch.to_pylist() if hasattr(batch, "to_pylist") else batch):
            try:
                texts.append(self.decode(ids, errors, skip_special_tokens=skip_special_tokens))
            except ValueError as error:
                raise ValueError(f"batch[{number}]: {error}") from None
        return texts

    def decode_tokens_bytes(self, ids: Iterable[int]) -> list[bytes]:
        """Return the bytes that each id adds to the text. Joined, they equal `decode_bytes`."""
        return self._decoding.decode_each(ids)

    def decode_with_offsets(
        self, ids: Iterable[int], errors: Literal["replace", "strict"] = "replace"
    ) -> tuple[str, list[int]]:
        """Return the text of the ids and, for each id, the index of the character that contains its first byte.

        A token that begins inside a character has the offset of this character, as in tiktoken.
        Invalid UTF-8 becomes U+FFFD as in `decode`; errors="strict" raises ValueError, as tiktoken does.
        """
        from tokenizer.encoding.offsets import decoded_with_starts, offsets_of

        pieces = self.decode_tokens_bytes(ids)
        text, starts = decoded_with_starts(b"".join(pieces), errors)
        return text, offsets_of(accumulate(map(len, pieces[:-1]), initial=0) if pieces else (), starts)

    @property
    def ordinary(self) -> npt.NDArray[np.bool_]:
        """Whether each id stands for text, bool (vocab_size,): False for special tokens and unused ids."""
        return self._decoding.ordinary

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; for special, WordPiece and Unigram tokens, the spelling.

        Raises ValueError for an unknown id.
        """
        return self._decoding.token_bytes(token)

    def added_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a preceding text, such as the space before a WordPiece word."""
        return self._decoding.added_bytes(token)

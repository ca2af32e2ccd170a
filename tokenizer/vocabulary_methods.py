"""The methods of `Tokenizer` that describe its vocabulary and turn ids into text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate

from tokenizer.argument_checks import check_iterable, error_handler
from tokenizer.text import text_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Self

    import numpy as np
    import numpy.typing as npt

    from tokenizer.vocabulary import Vocabulary


class VocabularyMethods:
    """Tokens, ids and properties of a vocabulary, and ids to text."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary  # tokens, ids and merges, independent of file formats
        self._decoding = vocabulary.decoding()

    def __reduce__(self) -> tuple[type[Self], tuple[Vocabulary]]:
        return type(self), (self.vocabulary,)

    def __len__(self) -> int:
        return self.vocab_size

    def __eq__(self, other: object) -> bool:
        """Return whether both give the same ids for every text, by their fingerprints."""
        if not isinstance(other, VocabularyMethods):
            return NotImplemented
        return self is other or self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

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
        """The kind of vocabulary: "bpe", "wordpiece", "unigram", "characters", "words", "integers"
        or "character-bpe"."""
        return self.vocabulary.kind

    @property
    def is_lossless(self) -> bool:
        """Whether ids decode exactly to the normalized text. WordPiece and Unigram lose white space."""
        return self.vocabulary.is_lossless

    @property
    def pattern(self) -> str:
        """The name of the split pattern or of BERT's words, or the regex of a custom one."""
        return str(self.vocabulary.pattern)

    @property
    def normalizer(self) -> str | None:
        """The normalization before encoding: "NFC", another name or the steps as JSON; None for none."""
        return None if self.vocabulary.normalizer is None else str(self.vocabulary.normalizer)

    @property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 of everything that decides ids. It does not depend on the file format."""
        return self.vocabulary.fingerprint

    @cached_property
    def merges(self) -> list[tuple[bytes, bytes]]:
        """BPE's merges in order, as pairs of bytes; empty for other kinds. Ranks have merges that give the same ids."""
        return [*self.vocabulary.merge_pairs]

    @property
    def token_byte_lengths(self) -> npt.NDArray[np.int32]:
        """The bytes of each token, int32 (vocab_size,), 0 for special and unused ids. ValueError if not lossless."""
        return self.vocabulary.byte_lengths

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token, special ones too. Tokens are spelled as in tokenizer.json, such as "Ġthe"."""
        return self._spelled_ids | self.vocabulary.special_tokens

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token spelled as in `get_vocab`, or None."""
        if not isinstance(token, str):
            raise ValueError(f"token must be a string, not {token!r}")
        special = self.vocabulary.special_tokens.get(token)
        return self._spelled_ids.get(token) if special is None else special

    def id_to_token(self, token: int) -> str | None:
        """Return the spelling of an id as in `get_vocab`, or None for an unknown id."""
        if not hasattr(token, "__index__"):
            raise ValueError(f"token must be a whole number, not {token!r}")
        return self._spellings.get(token)

    def encode_single_token(self, token: str | bytes) -> int:
        """Return the id of the token with these bytes, special or not; `token_bytes` is the inverse.

        The bytes of a WordPiece or Unigram token are its spelling, such as "##ing". Raises ValueError if there is no
        such token.
        """
        if not isinstance(token, (str, bytes)):
            raise ValueError(f"token must be str or bytes, not {token!r}")
        data = text_bytes(token)
        found = self.vocabulary.find(data)
        if found is None:
            found = self.vocabulary.special_tokens.get(data.decode(errors="surrogateescape"))
        if found is None:
            raise ValueError(f"{token!r} is not a token of this vocabulary; encode gives the ids of any text")
        return found

    @cached_property
    def _spelled_ids(self) -> dict[str, int]:
        """The ids of tokens that are not special, by spelling."""
        spelling = self.vocabulary.spelling
        spelled = {spelling(token): i for i, token in enumerate(self.vocabulary.tokens) if token is not None}
        return {**spelled, **self.vocabulary.unreachable}

    @cached_property
    def _spellings(self) -> dict[int, str]:
        return {i: spelling for spelling, i in [*self._spelled_ids.items(), *self.vocabulary.special_tokens.items()]}

    def decode_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> bytes:
        """Return the bytes of the ids. Special tokens give their spelling, or nothing if `skip_special_tokens`.

        Raises ValueError for an unknown id.
        """
        return self._decoding.decode(ids, skip_special_tokens)

    def decode(
        self,
        ids: Iterable[int],
        errors: str = "replace",
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """Return the text of the ids. errors: how to handle invalid UTF-8, as in `bytes.decode`.

        clean_up_tokenization_spaces: whether to remove the spaces before . ? ! , n't 'm 's 've 're and around a lone ',
            as transformers does. For texts that were written with a space before each token.
        """
        text = self._decoding.decode(ids, skip_special_tokens).decode("utf-8", errors=error_handler(errors))
        if clean_up_tokenization_spaces:
            from tokenizer.encoding.decoder_steps import joined_to_words

            return joined_to_words(text)
        return text

    def decode_batch(
        self,
        batch: Iterable[Iterable[int]],
        errors: str = "replace",
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[str]:
        """Return the text of each list of ids. `batch` may be the Arrow array that `encode_arrow` returns.

        Raises ValueError with the index of the list that has an unknown id.
        """
        check_iterable("batch", batch, "lists of ids")
        options = {
            "skip_special_tokens": skip_special_tokens,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        texts = []
        for number, ids in enumerate(batch.to_pylist() if hasattr(batch, "to_pylist") else batch):
            try:
                texts.append(self.decode(ids, errors, **options))
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
        from tokenizer.encoding.spans import decoded_with_starts, offsets_of

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

"""From ids back to text: byte-level tokens are joined, WordPiece tokens become words with spaces between them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from operator import index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    from tokenizer.kernels.decode import Decoder
    from tokenizer.vocabulary import Vocabulary
    from tokenizer.wordpiece_vocabulary import WordPieceVocabulary

MANY_IDS = 50_000  # decode longer arrays with a kernel


def _list(ids: Any) -> Any:
    """Return ids as a list; a value that is not a list of ids is returned unchanged."""
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__iter__"):
        return ids
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


class ByteDecoding:
    """The bytes of the tokens, joined."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary

    @cached_property
    def by_id(self) -> list[bytes | None]:
        """Return the bytes of each id, followed by `size` Nones, so that negative indices are unknown too."""
        by_id = self._vocabulary.tokens + [None] * self._vocabulary.size
        for spelling, i in [*self._vocabulary.special_tokens.items(), *self._vocabulary.unreachable.items()]:
            if by_id[i] is None:
                by_id[i] = spelling.encode()
        return by_id

    @property
    def ordinary(self) -> npt.NDArray[np.bool_]:
        """Whether each id stands for text, bool (vocab_size,)."""
        import numpy as np

        return np.array([token is not None for token in self._vocabulary.tokens])

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; for a special token, its spelling. Raises ValueError for an unknown id."""
        try:
            token = index(token)
        except TypeError:
            raise ValueError(f"an id must be a whole number, not {token!r}") from None
        size = self._vocabulary.size
        found = self.by_id[token] if 0 <= token < size else None
        if found is None:
            raise ValueError(f"{token} is not an id of this tokenizer, which has {size} entries")
        return found

    def added_bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a preceding text. Raises ValueError for an unknown id."""
        return self.token_bytes(token)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> bytes:
        """Return the bytes of ids. Raises ValueError for an unknown id."""
        if isinstance(ids, (str, bytes)) or getattr(ids, "ndim", 1) != 1 or not hasattr(ids, "__iter__"):
            raise ValueError(f"ids must be a list of ids, not {repr(ids)[:80]}; put a single id in a list")
        if hasattr(ids, "tolist"):  # an array of numpy or Arrow, which has a length
            if len(ids) >= MANY_IDS and (decoded := self._decode_many(ids, skip_special_tokens)) is not None:  # type: ignore[arg-type]
                return decoded
            ids = ids.tolist()
        listed = ids if isinstance(ids, list) else list(ids)
        try:
            kept = [i for i in listed if i not in self._skipped] if skip_special_tokens else listed
            return b"".join(self._pieces(kept))
        except (IndexError, TypeError):
            for i in listed:
                if not hasattr(i, "__index__"):
                    raise ValueError(f"ids must be whole numbers, not {i!r}") from None
                self.token_bytes(i)
            raise

    def decode_each(self, ids: Iterable[int]) -> list[bytes]:
        """Return the bytes that each id adds to the text. Raises ValueError for an unknown id."""
        listed = _list(ids)
        self.decode(listed)  # raises for an unknown id
        return list(self._pieces(listed))

    def _pieces(self, ids: list[int]) -> Iterable[bytes]:
        """Return the bytes that each id adds. Unknown ids raise IndexError or TypeError, or give None."""
        return map(self.by_id.__getitem__, ids)  # type: ignore[arg-type]

    @cached_property
    def _skipped(self) -> frozenset[int]:
        """The ids of special tokens, without added tokens that are not special."""
        special, flags = self._vocabulary.special_tokens, self._vocabulary.added_flags
        return frozenset(i for spelling, i in special.items() if flags.get(spelling, {}).get("special", True))

    def _decode_many(self, ids: Any, skip_special_tokens: bool) -> bytes | None:
        """Return the bytes of an array of ids, or None if an id is unknown."""
        if skip_special_tokens:
            import numpy as np

            ids = np.asarray(ids)
            ids = ids[~np.isin(ids, list(self._skipped))]
        return self._decoder.decode(ids)

    @cached_property
    def _decoder(self) -> Decoder:
        from tokenizer.kernels.decode import Decoder

        return Decoder(self.by_id[: self._vocabulary.size])


class PieceDecoding(ByteDecoding):
    """Words with single spaces between them, as the WordPiece decoder of `tokenizers` writes them."""

    _vocabulary: WordPieceVocabulary

    def added_bytes(self, token: int) -> bytes:
        self.token_bytes(token)  # raises for an unknown id
        return self._later[token] or b""

    @cached_property
    def _later(self) -> list[bytes | None]:
        """Return the bytes of each id where it is not the first id of a text."""
        prefix = self._vocabulary.prefix.encode()
        later = []
        for token in self.by_id:
            if token is not None:
                token = token.removeprefix(prefix) if token.startswith(prefix) else b" " + token
            later.append(self._clean(token))
        return later

    def _clean(self, token: bytes | None) -> bytes | None:
        if token is None or not self._vocabulary.cleanup:
            return token
        from tokenizer.encoding.decoder_steps import cleaned

        return cleaned(token.decode()).encode()

    def _pieces(self, ids: list[int]) -> Iterable[bytes]:
        first = [self._clean(self.by_id[i]) for i in ids[:1]]
        return chain(first, map(self._later.__getitem__, ids[1:]))  # type: ignore[arg-type]

    def _decode_many(self, ids: Any, skip_special_tokens: bool) -> None:
        """Return None, so that `_pieces` decodes long arrays too: the first token of a text is decoded differently."""

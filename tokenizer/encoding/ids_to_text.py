"""From ids back to the bytes of their tokens."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from operator import index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    from tokenizer.kernels.decode import Decoder
    from tokenizer.vocabulary import Vocabulary

MANY_IDS = 50_000  # decode longer arrays with a kernel


def list_of_ids(ids: Any) -> Any:
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
        """Return the bytes of each id, None for an id without a token."""
        vocabulary = self._vocabulary
        by_id = [*vocabulary.tokens]
        normalizer = vocabulary.normalizer
        for spelling, i in [*vocabulary.special_tokens.items(), *vocabulary.unreachable.items()]:
            if normalizer is not None and vocabulary.added_flags.get(spelling, {}).get("normalized"):
                # As in tokenizers, a token that is found in normalized text has its normalized spelling.
                by_id[i] = normalizer.apply(spelling.encode())
            elif by_id[i] is None:
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
        if hasattr(ids, "tolist"):  # an array or a tensor, which has a length
            if len(ids) >= MANY_IDS and (decoded := self._decode_many(ids, skip_special_tokens)) is not None:  # type: ignore[arg-type]
                return decoded
            ids = ids.tolist()
        listed = ids if isinstance(ids, list) else list(ids)
        try:
            kept = [i for i in listed if i not in self._skipped] if skip_special_tokens else listed
            decoded = b"".join(self._pieces(kept))
            if min(kept, default=0) < 0:  # lists take negative indices too
                raise IndexError("negative id")
            return decoded
        except (IndexError, TypeError):
            for i in listed:
                if not hasattr(i, "__index__"):
                    raise ValueError(f"ids must be whole numbers, not {i!r}") from None
                self.token_bytes(i)
            raise

    def decode_each(self, ids: Iterable[int]) -> list[bytes]:
        """Return the bytes that each id adds to the text. Raises ValueError for an unknown id."""
        listed = list_of_ids(ids)
        self.decode(listed)  # raises for an unknown id
        return list(self._pieces(listed))

    def _pieces(self, ids: list[int]) -> Iterable[bytes]:
        """Return the bytes that each id adds. Unknown ids raise IndexError or TypeError, or give None.

        The caller refuses negative ids.
        """
        return map(self.by_id.__getitem__, ids)  # type: ignore[arg-type]

    @cached_property
    def _skipped(self) -> frozenset[int]:
        """The ids of special tokens, without added tokens that are not special.

        As in tokenizers, special tokens that are spelled otherwise in normalized text are not among them.
        """
        special, flags = self._vocabulary.special_tokens, self._vocabulary.added_flags
        skipped = {spelling: i for spelling, i in special.items() if flags.get(spelling, {}).get("special", True)}
        return frozenset(i for i in skipped.values() if (self.by_id[i] or b"").decode(errors="replace") in skipped)

    def _decode_many(self, ids: Any, skip_special_tokens: bool) -> bytes | None:
        """Return the bytes of an array of ids, or None if an id is unknown."""
        import numpy as np

        # `tolist` also reads tensors on other devices.
        ids = np.asarray(ids if isinstance(ids, np.ndarray) or hasattr(ids, "to_numpy") else ids.tolist())
        if skip_special_tokens:
            ids = ids[~np.isin(ids, list(self._skipped))]
        return self._decoder.decode(ids)

    @cached_property
    def _decoder(self) -> Decoder:
        from tokenizer.kernels.decode import Decoder

        return Decoder(self.by_id)

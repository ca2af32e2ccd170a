"""The methods of `Tokenizer` for sequences of integers instead of texts."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizer.encoding_methods import EncodingMethods
from tokenizer.splitting.integers import MOST, WIDTH, Integers, as_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self, Unpack

    import numpy as np
    import numpy.typing as npt

    from tokenizer.training.counting import Progress
    from tokenizer.training.train import TrainingOptions

    Sequence = npt.ArrayLike | bytes


class IntegerMethods(EncodingMethods):
    """BPE over integers, such as notes, atoms, opcodes, or bytes that are no text."""

    @classmethod
    def train_ids(
        cls,
        sequences: Iterable[Sequence] | npt.ArrayLike,
        vocab_size: int,
        *,
        offsets: npt.ArrayLike | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        memory: int | None = None,
        **options: Unpack[TrainingOptions],
    ) -> Self:
        """Return a tokenizer of integers, trained by byte-pair encoding (BPE) on sequences of them.

        The integer i has the id i. Merged tokens follow, then special tokens. Nothing is merged across the ends of
        sequences, and equal sequences are counted once. The merges are those of `tokenizers`.

        sequences: arrays (N,) of integers from 0 to 131,071, lists of them or bytes; a 2-D array has one in each row.
        offsets: if `sequences` is one array, where each sequence begins in it and the last one ends, (sequences + 1,).
        vocab_size: number of integers, merged tokens and special tokens together.
        options: those of `train` that apply. base: number of integers, by default the largest one plus 1.
            max_token_length: most integers in a token, up to 4,096 (the default).
        threads, progress, memory: as in `train`.

        Warns if the sequences run out of pairs. Raises ValueError for an invalid argument, and for other values, with
        the number of their sequence.
        """
        from tokenizer.training.counting import count_pretokens
        from tokenizer.training.train import Options, train_vocabulary

        if options.setdefault("kind", "integers") != "integers":
            raise ValueError(f"kind must be integers, not {options['kind']!r}: train makes the other kinds")
        checked = Options(vocab_size=vocab_size, threads=threads, progress=progress, memory=memory, **options)
        texts = _texts(_rows(sequences, offsets), checked.base or MOST)
        counts = count_pretokens(texts, Integers(None), threads=threads, progress=progress, memory=memory)
        return cls(train_vocabulary(counts, checked))

    def grow_ids(
        self,
        sequences: Iterable[Sequence] | npt.ArrayLike,
        entries: int,
        *,
        offsets: npt.ArrayLike | None = None,
        min_frequency: int = 2,
        max_token_length: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        memory: int | None = None,
    ) -> Self:
        """Return a new tokenizer of integers with up to `entries` entries, as `grow` does for texts.

        sequences, offsets: as in `train_ids`, of integers in the vocabulary. max_token_length: maximum number of
        integers in a new token. All other arguments: as in `grow`.
        """
        from tokenizer.training.growing import Growth, grow

        base = self._base
        limits: Any = {"min_frequency": min_frequency, "max_token_length": max_token_length}
        growth = Growth(entries=entries, threads=threads, progress=progress, memory=memory, **limits)
        return type(self)(grow(self.vocabulary, _texts(_rows(sequences, offsets), base), growth))

    def encode_ids(self, sequence: Sequence) -> npt.NDArray[np.uint32]:
        """Return the ids of a sequence of integers, uint32 (ids,).

        sequence: an array (N,) of integers, a list of them or bytes. Raises ValueError for an integer that the
        vocabulary lacks, and if this is no tokenizer of integers.
        """
        text = as_text(_integers(sequence, self._base, "sequence"))
        return self.encode_to_numpy(text.tobytes(), disallowed_special=())

    def decode_ids(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> npt.NDArray[np.uint32]:
        """Return the integers of the ids, uint32 (N,): the sequence that `encode_ids` encoded.

        Special tokens give nothing if `skip_special_tokens`. Otherwise they raise ValueError, like unknown ids, and a
        tokenizer that is none of integers.
        """
        import numpy as np

        base = self._base
        decoded = self.decode_bytes(ids, skip_special_tokens=skip_special_tokens)
        try:
            return Integers(base).check(np.frombuffer(decoded, np.uint8))
        except ValueError:
            raise ValueError("ids has a special token, which is no integer: give skip_special_tokens=True") from None

    @property
    def _base(self) -> int:
        """The number of integers; ValueError if this is no tokenizer of integers."""
        pattern = self.vocabulary.pattern
        if not isinstance(pattern, Integers) or pattern.base is None:
            raise ValueError(f"this is a tokenizer of texts ({self.kind}): train one of integers with train_ids")
        return pattern.base


def _rows(sequences: Any, offsets: Any) -> Iterable[Any]:
    """Return the sequences one by one."""
    import numpy as np

    if offsets is None:
        if (
            isinstance(sequences, (str, bytes))
            or not hasattr(sequences, "__iter__")
            or getattr(sequences, "ndim", 1) == 0
        ):
            raise ValueError(f"sequences must be several sequences of integers, not {sequences!r:.80}")
        if isinstance(sequences, np.ndarray) and sequences.ndim != 2 and sequences.dtype != object:
            raise ValueError(f"sequences is an array with {sequences.ndim} dimensions: give 2-D, or `offsets`")
        return sequences  # type: ignore[no-any-return]
    values, places = _array_of(sequences), _array_of(offsets)
    fits = (
        places.ndim == 1 and len(places) and places.dtype.kind in "iu" and (np.diff(places.astype(np.int64)) >= 0).all()
    )
    if not fits or values.ndim != 1 or places[0] != 0 or places[-1] != len(values):
        raise ValueError("offsets must be whole numbers that rise from 0 to the length of the array `sequences`")
    return (values[start:end] for start, end in zip(places[:-1].tolist(), places[1:].tolist(), strict=True))


def _texts(sequences: Iterable[Any], base: int) -> Iterable[Any]:
    """Yield sequences as Arrow arrays of texts."""
    import pyarrow as pa

    held: list[np.ndarray] = []
    size = 0
    for number, sequence in enumerate(sequences):
        held.append(_integers(sequence, base, f"sequences[{number}]"))
        size += len(held[-1])
        if size >= 1 << 20:
            yield _array(held, pa)
            held, size = [], 0
    if held:
        yield _array(held, pa)


def _array(sequences: list[np.ndarray], pa: Any) -> Any:
    import numpy as np

    offsets = np.cumsum([0, *map(len, sequences)], dtype=np.int64) * WIDTH
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(as_text(np.concatenate(sequences)))]
    return pa.Array.from_buffers(pa.large_string(), len(sequences), buffers)


def _integers(sequence: Any, base: int, name: str) -> np.ndarray:
    """Return a sequence as an array; ValueError unless it has only integers from 0 to `base` - 1."""
    import numpy as np

    values: np.ndarray
    if isinstance(sequence, (bytes, bytearray)):
        values = np.frombuffer(sequence, np.uint8)
    else:
        values = _array_of(sequence)
        if values.shape == (0,):
            return np.zeros(0, np.uint32)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"{name} must be a sequence of integers, not {sequence!r:.80}")
    wrong = (values < 0) | (values >= base)
    if wrong.any():
        place = int(wrong.argmax())
        raise ValueError(f"{name} has {values[place]} at {place}: integers must be from 0 to {base - 1:,}")
    return values


def _array_of(values: Any) -> np.ndarray:
    import numpy as np

    try:
        return np.asarray(values)
    except ValueError:  # lists of different lengths
        return np.empty((0, 0))

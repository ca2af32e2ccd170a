"""Read the symbols of a corpus: its bytes, characters or tokens, numbered from the most frequent one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from corpora import Corpus
from corpora.documents import text_buffer
from tokenizer import Tokenizer

Unit = Literal["bytes", "characters", "tokens"]
UNITS = get_args(Unit)
SAMPLE_SEED = 0

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class SymbolText:
    """The D documents of a corpus or of a sample of it, one after the other.

    Attributes:
        text: uint8 (B,), bytes of all documents
        text_offsets: int64 (D + 1,), start of each document in `text`, then B
        ids: unsigned (N,), symbol numbers; 0 is the most frequent symbol
        offsets: int64 (D + 1,), start of each document in `ids`, then N
        values: (K,), byte, code point or token id of each symbol number
        counts: int64 (K,), occurrences of each symbol number
    """

    name: str
    unit: Unit
    text: Array
    text_offsets: Array
    ids: Array
    offsets: Array
    values: Array
    counts: Array

    @property
    def bytes_per_symbol(self) -> float:
        return len(self.text) / len(self.ids)


def read_symbols(
    corpus: Corpus,
    unit: Unit,
    tokenizer: Tokenizer | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
    sample: int | None = None,
) -> SymbolText:
    """Return the symbols of all splits of a corpus, or of `sample` bytes of it (see `_sample`).

    `progress` is called with the bytes read so far. Raises ValueError if there is no symbol.
    """
    encode = _ENCODERS[unit]
    texts, lengths, raw, counts_by_document = [], [], [], []
    counts = np.zeros(0, dtype=np.int64)
    done = 0
    batches = (batch.column(0).view(pa.large_binary()) for _, batch in corpus.routed_batches())
    for documents in batches if sample is None else _sample(batches, sample, corpus.column_type):
        starts, data = text_buffer(documents)
        text = data[starts[0] : starts[-1]].copy()
        ids, offsets = encode(documents, text, starts - starts[0], tokenizer, threads)
        texts.append(text)
        lengths.append(np.diff(starts))
        raw.append(ids)
        counts_by_document.append(np.diff(offsets))
        occurrences = np.bincount(ids, minlength=len(counts))
        occurrences[: len(counts)] += counts
        counts = occurrences
        done += len(text)
        progress(done)
    if not counts.any():
        remedy = "raise `sample_bytes`" if sample is not None else "give another text"
        raise ValueError(f"{corpus.name} has no {unit} to count: {remedy}")
    values = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    places = np.zeros(len(counts), dtype=np.min_scalar_type(max(0, len(values) - 1)))
    places[values] = np.arange(len(values))
    return SymbolText(
        name=corpus.name,
        unit=unit,
        text=np.concatenate(texts),
        text_offsets=_offsets(lengths),
        ids=np.concatenate([places[ids] for ids in raw]),
        offsets=_offsets(counts_by_document),
        values=values,
        counts=counts[values],
    )


def _sample(batches: Iterator[pa.Array], size: int, column_type: pa.DataType) -> Iterator[pa.Array]:
    """Yield the documents of a random sample in corpus order; the seed is fixed.

    A sample has `size` bytes if the corpus has as many. It consists of whole documents and the beginning of one.
    """
    generator, number, total = np.random.default_rng(SAMPLE_SEED), 0, 0
    kept: list[tuple[float, int, bytes]] = []  # a heap: the document with the largest key is the first to leave
    for documents in batches:
        keys = generator.random(len(documents))
        for i in np.flatnonzero(keys < -kept[0][0]) if total >= size else range(len(documents)):
            # One byte more than the sample: its end then is at the beginning of a character.
            text = bytes(memoryview(documents[int(i)].as_buffer())[: size + 1])
            heappush(kept, (-keys[i], number + int(i), text))
            total += len(text)
            while total - len(kept[0][2]) >= size:
                total -= len(heappop(kept)[2])
        number += len(documents)
    if total > size:
        key, last, text = heappop(kept)
        end = len(text) - (total - size)
        if pa.types.is_large_string(column_type):
            while end and text[end] & 0xC0 == 0x80:
                end -= 1
        kept.append((key, last, text[:end]))
    yield pa.array([text for _, _, text in sorted(kept, key=lambda each: each[1])], pa.large_binary())


def sample_of(text: SymbolText, size: int) -> Array:
    """Return at most `size` bytes of documents in random order, uint8. The seed is fixed; the last document is cut."""
    if len(text.text) <= size and len(text.text_offsets) == 2:
        return text.text
    order = np.random.default_rng(SAMPLE_SEED).permutation(len(text.text_offsets) - 1)
    parts, missing = [], size
    for document in order.tolist():
        part = text.text[text.text_offsets[document] : text.text_offsets[document + 1]][:missing]
        parts.append(part)
        missing -= len(part)
        if not missing:
            break
    return np.concatenate(parts)


def one_alphabet(first: SymbolText, second: SymbolText) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return (ids, offsets) of two texts with symbols numbered in the union of their alphabets."""
    union = np.union1d(first.values, second.values)
    numbered = [np.searchsorted(union, text.values)[text.ids] for text in (first, second)]
    return (numbered[0], first.offsets), (numbered[1], second.offsets)


def _offsets(lengths: list[Array]) -> Array:
    return np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64)


def _bytes(
    documents: pa.Array, text: Array, starts: Array, tokenizer: Tokenizer | None, threads: int | None
) -> tuple[Array, Array]:
    return text, starts


def _characters(
    documents: pa.Array, text: Array, starts: Array, tokenizer: Tokenizer | None, threads: int | None
) -> tuple[Array, Array]:
    ids = np.frombuffer(text.tobytes().decode().encode("utf-32-le"), dtype="<u4")
    begins = (text & 0xC0) != 0x80  # the other bytes continue a character
    return ids, np.concatenate(([0], np.cumsum(begins, dtype=np.int64)))[starts]


def _tokens(
    documents: pa.Array, text: Array, starts: Array, tokenizer: Tokenizer | None, threads: int | None
) -> tuple[Array, Array]:
    assert tokenizer is not None, "the unit is tokens"
    lists = tokenizer.encode_arrow(documents, threads)
    return lists.values.to_numpy(), lists.offsets.to_numpy()


_ENCODERS = {"bytes": _bytes, "characters": _characters, "tokens": _tokens}

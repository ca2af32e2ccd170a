"""Groups of near duplicates: buckets of documents with the same band keys, and their exact comparison."""

from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np

from corpora import Corpus
from pipelines.dataset.arrow import read_ahead
from pipelines.dataset.shingle_kernels import WORDS, common, unite, write_shingles
from tokenizer.document_blocks import Block, arrow_block, as_readonly, nfc_block
from tokenizer.workers import share_out, thread_count

Array = np.ndarray[Any, Any]


class Buckets(NamedTuple):
    """Documents with the same key in one band, for each key that at least two documents have."""

    members: Array
    """int64: the numbers of the documents, ascending in each bucket"""
    ends: Array
    """int64: where each bucket ends in `members`"""


def buckets_of(keys: Array, documents: Array) -> Buckets:
    """Return the buckets of one band. keys: uint64 (N,); documents: int64 (M,), the numbers to include."""
    chosen = keys[documents]
    order = np.argsort(chosen, kind="stable")
    chosen = chosen[order]
    begins = np.concatenate([[True], chosen[1:] != chosen[:-1], [True]])[: len(chosen) + 1]
    shared = ~(begins[:-1] & begins[1:])
    ends = np.flatnonzero(np.append(begins[:-1][shared], True))[1:]
    return Buckets(documents[order[shared]], ends)


class _Task(NamedTuple):
    """Consecutive documents, and the candidates among them."""

    block: Block
    places: Array
    """int64 (K,): which documents of `block` are candidates"""
    candidates: Array
    """int64 (K,): which candidates they are"""
    sets: list[Array]
    """the distinct shingles of each candidate, once read"""


class ShingleSets:
    """The distinct shingles of candidates, in a file that is mapped into memory."""

    def __init__(
        self,
        file: IO[bytes],
        corpus: Corpus,
        documents: Array,
        shingles: Array,
        threads: int | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Read the corpus and write the shingles of the candidates to the empty `file`.

        documents: int64 (C,), the numbers of the candidates, ascending. shingles: int64 (N,), the number of shingles of
        each document of the corpus, with repetitions. `progress` is called with the bytes of text read so far.
        """
        self._documents = documents
        self._starts, self._sizes = np.zeros((2, len(documents)), np.int64)
        done = written = 0

        def tasks() -> Iterator[_Task]:
            nonlocal done
            number = 0
            for _, texts in read_ahead(corpus.documents()):
                first, last = np.searchsorted(documents, [number, number + len(texts)])
                block = arrow_block(texts)
                if first < last:
                    yield _Task(block, documents[first:last] - number, np.arange(first, last), [])
                number += len(texts)
                done += block.size
                progress(done)

        def work(task: _Task, check: Callable[[], None]) -> None:
            memory = np.empty(WORDS + 1, np.uint64)
            block = nfc_block(task.block)
            for place, candidate in zip(task.places.tolist(), task.candidates.tolist(), strict=True):
                check()
                out = np.empty(shingles[documents[candidate]], np.uint64)
                count = write_shingles(block.data, *block.offsets[place : place + 2].tolist(), memory, out)
                task.sets.append(np.unique(out[:count]))

        def finished(task: _Task) -> None:
            nonlocal written
            for candidate, each in zip(task.candidates.tolist(), task.sets, strict=True):
                self._starts[candidate], self._sizes[candidate] = written, len(each)
                file.write(each.data)
                written += len(each)

        share_out(tasks(), [work] * thread_count(threads), finished)
        file.flush()
        mapped = np.memmap(file, np.uint64, "r") if written else np.empty(0, np.uint64)
        self._shingles = as_readonly(mapped.view(np.ndarray))

    def first_similar(self, bands: list[Buckets]) -> tuple[Array, int]:
        """Return the first document of each candidate's group, int64 (C,), and the result of `unite`.

        Documents are in a group if they share a bucket and are similar, directly or through others.
        """
        parents = np.arange(len(self._documents))
        uncompared = 0
        for members, ends in bands:
            memory = np.empty(np.diff(ends, prepend=0).max(initial=0), np.int64)
            places = np.searchsorted(self._documents, members)
            uncompared += unite(self._shingles, self._starts, self._sizes, places, ends, parents, memory)
        while not np.array_equal(parents, roots := parents[parents]):
            parents = roots
        return self._documents[parents], uncompared

    def similarity(self, documents: Array, others: Array) -> Array:
        """Return the Jaccard similarity of pairs of candidates, float64 (P,); their numbers are int64 (P,)."""
        pairs = np.searchsorted(self._documents, np.stack([documents, others], axis=1))
        both = np.empty(len(pairs), np.int64)
        common(self._shingles, self._starts, self._sizes, pairs, both)
        return np.asarray(both / (self._sizes[pairs].sum(axis=1) - both))

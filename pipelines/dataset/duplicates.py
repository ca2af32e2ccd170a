"""Duplicate documents of a corpus: exact ones by SHA-256, near ones by MinHash and exact Jaccard similarity.

Documents that duplicate each other, directly or through others, form a group. The first of a group in corpus order is
kept, so no group is in two splits. A corpus's own validation and test splits keep all of their documents, and
duplicates of these are removed from training. The result does not depend on the number of threads.

Near duplicates share at least three quarters of their distinct shingles, which are runs of five words: their Jaccard
similarity is at least 3/4 (Broder 1997). Texts are compared in NFC. Candidates are pairs whose MinHash signatures agree
in one of 14 bands of 8 minima, as a pair of similarity s does with probability 1 - (1 - s^8)^14 (Leskovec, Rajaraman &
Ullman 2020, section 3.4). Candidates are compared exactly. A document of fewer than five words has no shingles, so it
has only exact duplicates.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from corpora import Corpus
from corpora.documents import EXACT_DUPLICATE, NEAR_DUPLICATE
from pipelines.dataset.arrow import read_ahead
from pipelines.dataset.shingle_kernels import BANDS, PERMUTATIONS, WORDS, common, sign, unite, write_shingles
from tokenizer.document_blocks import Block, arrow_block, as_readonly, normalized_block
from tokenizer.splitting.normalizers import NFC
from tokenizer.workers import share_out, thread_count

Array = np.ndarray[Any, Any]
Method = Literal["exact", "near"]
Progress = Callable[[str, int, int | None], None]
"""Called with the name of a pass over the corpus, the bytes of text read, and their total if it is known"""

DUPLICATES_FILE = "duplicates.jsonl"
BUFFER = 1024  # shingles between two updates of a signature


@dataclass(frozen=True)
class Duplicates:
    """The duplicates to remove from a corpus. `Corpus.documents` numbers documents from 0."""

    documents: Array
    """int64 (R,), ascending: the number of each duplicate"""
    kept: Array
    """int64 (R,): the number of the document that is kept instead"""
    similarity: Array
    """float64 (R,): the Jaccard similarity of the two. Less than 3/4 if they are duplicates only through others."""
    exact: Array
    """bool (R,): whether the two have the same bytes"""
    hashes: list[bytes]
    """the SHA-256 of each duplicate"""
    removed_bytes: int
    """the size of all duplicates"""
    corpus_documents: int
    """the number of documents in the corpus"""
    uncompared: int
    """how often a document was compared with only some of its candidates; see `shingle_kernels.unite`"""

    @property
    def marks(self) -> bytes:
        """The mark of each document of the corpus, as `Corpus.without` takes them."""
        marks = np.zeros(self.corpus_documents, np.uint8)
        marks[self.documents] = np.where(self.exact, EXACT_DUPLICATE, NEAR_DUPLICATE)
        return marks.tobytes()

    def write(self, path: Path) -> None:
        """Write a line of JSON for each duplicate."""
        columns = (self.documents.tolist(), self.hashes, self.kept.tolist(), self.similarity.tolist())
        with path.open("w", encoding="utf-8") as file:
            for document, digest, kept, similarity in zip(*columns, strict=True):
                row = {"document": document, "sha256": digest.hex(), "kept": kept, "similarity": round(similarity, 4)}
                file.write(json.dumps(row) + "\n")


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
            block = normalized_block(task.block, NFC)
            for place, candidate in zip(task.places.tolist(), task.candidates.tolist(), strict=True):
                check()
                out = np.empty(shingles[documents[candidate]], np.uint64)
                count = write_shingles(block.data, *block.offsets[place : place + 2].tolist(), memory, out)
                task.sets.append(np.unique(out[:count]))

        def finished(task: _Task) -> None:
            nonlocal written
            for candidate, shingles_of_one in zip(task.candidates.tolist(), task.sets, strict=True):
                self._starts[candidate], self._sizes[candidate] = written, len(shingles_of_one)
                file.write(shingles_of_one.data)
                written += len(shingles_of_one)

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


@dataclass
class _Part:
    """What the first pass records of consecutive documents."""

    held_out: bool
    sizes: Array
    """int64 (D,), in bytes"""
    shingles: Array
    """int64 (D,): shingles with repetitions, 0 without near duplicates"""
    keys: Array
    """uint64 (D, BANDS): hashes of the bands of the signatures; (0, BANDS) without near duplicates"""
    hashes: bytes = b""
    """SHA-256 of each document"""


def find_duplicates(
    corpus: Corpus,
    method: Method,
    scratch: Path,
    *,
    threads: int | None = None,
    progress: Progress = lambda label, done, total: None,
) -> Duplicates:
    """Return the duplicates in `corpus`.

    Takes about 300 bytes of memory per document, or 400 for near duplicates. Near duplicates also need a second pass
    over the corpus, and a temporary file in the folder `scratch` with 8 bytes per shingle of a candidate.
    """
    parts = _read(corpus, method, threads, progress)
    sizes, hashes = np.concatenate([part.sizes for part in parts]), b"".join(part.hashes for part in parts)
    held_out = np.repeat([part.held_out for part in parts], [len(part.sizes) for part in parts])
    group = equal = _first_equal(hashes)
    uncompared = 0
    with tempfile.TemporaryFile(dir=scratch) as file:
        if method == "near":
            shingles = np.concatenate([part.shingles for part in parts])
            bands = _bands(
                [part.keys for part in parts], np.flatnonzero((equal == np.arange(len(equal))) & (shingles > 0))
            )
            candidates = np.unique(np.concatenate([band.members for band in bands]))

            def compare(done: int) -> None:
                progress("comparing documents", done, corpus.text_bytes_estimate)

            sets = ShingleSets(file, corpus, candidates, shingles, threads, compare)
            first = np.arange(len(equal))
            first[candidates], uncompared = sets.first_similar(bands)
            group = first[equal]
        kept = _choose_kept(group, held_out)
        removed = np.flatnonzero((kept != np.arange(len(kept))) & ~held_out)
        kept = kept[removed]
        exact = equal[removed] == equal[kept]
        similarity = np.ones(len(removed))
        if method == "near":
            similarity[~exact] = sets.similarity(equal[removed[~exact]], equal[kept[~exact]])
    return Duplicates(
        documents=removed,
        kept=kept,
        similarity=similarity,
        exact=exact,
        hashes=[hashes[32 * number : 32 * number + 32] for number in removed.tolist()],
        removed_bytes=int(sizes[removed].sum()),
        corpus_documents=len(sizes),
        uncompared=uncompared,
    )


def _bands(keys: list[Array], documents: Array) -> list[Buckets]:
    """Return the buckets of each band.

    keys: uint64 (D, BANDS) of each part; documents: int64 (M,), the numbers to include.
    """
    return [buckets_of(np.concatenate([part[:, band] for part in keys]), documents) for band in range(BANDS)]


def _read(corpus: Corpus, method: Method, threads: int | None, progress: Progress) -> list[_Part]:
    """Return the parts of a corpus in order."""
    parts: list[_Part] = []
    done = 0

    def tasks() -> Iterator[tuple[_Part, Block]]:
        for held_out, documents in read_ahead(corpus.documents()):
            block = arrow_block(documents)
            keys = np.empty((len(documents) if method == "near" else 0, BANDS), np.uint64)
            parts.append(_Part(held_out, np.diff(block.offsets), np.zeros(len(documents), np.int64), keys))
            yield parts[-1], block

    def worker() -> Callable[[tuple[_Part, Block], Callable[[], None]], None]:
        memory, signature = np.empty(WORDS + 1 + BUFFER, np.uint64), np.empty((1, PERMUTATIONS), np.uint32)

        def work(task: tuple[_Part, Block], check: Callable[[], None]) -> None:
            part, block = task
            text, ends = block.data.data, pairwise(block.offsets.tolist())
            part.hashes = b"".join(hashlib.sha256(text[start:end]).digest() for start, end in ends)
            if method == "near":
                composed = normalized_block(block, NFC)
                sign(composed.data, composed.offsets, memory, signature, part.keys, part.shingles)

        return work

    def finish(task: tuple[_Part, Block]) -> None:
        nonlocal done
        done += task[1].size
        progress("finding duplicates", done, corpus.text_bytes_estimate)

    share_out(tasks(), [worker() for _ in range(thread_count(threads))], finish)
    return parts


def _first_equal(hashes: bytes) -> Array:
    """Return for each document the first one with the same hash, int64 (N,)."""
    count = len(hashes) // 32
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), count, [None, pa.py_buffer(hashes)])
    values = column.dictionary_encode().indices.to_numpy()
    first: Array = np.unique(values, return_index=True)[1]
    return np.asarray(first[values])


def _choose_kept(group: Array, held_out: Array) -> Array:
    """Return for each document the one kept of its group, int64 (N,): the first held-out one, else the first.

    group (N,): a document of each group, the same for all of them.
    """
    held_out_first = np.argsort(~held_out, kind="stable")
    _, first, inverse = np.unique(group[held_out_first], return_index=True, return_inverse=True)
    kept = np.empty_like(group)
    kept[held_out_first] = held_out_first[first][inverse]
    return kept

"""Ranges of a corpus: consecutive documents that any process can read without the rest of the corpus."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc

from corpora.documents import Dropped, batch_documents, clean_all
from corpora.read_options import ReadOptions
from corpora.readers import Part
from corpora.splits import NONE, PREDEFINED, TRAIN, HashRouter, Rule, TailRouter


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """The rules that decide the split of each document."""

    rule: Rule
    """predefined, hash, tail or none"""

    cut: Rule | None
    """the rule that cuts off validation, from train if `rule` is own; None if validation exists or is not needed"""

    total_bytes: int | None = None
    """bytes of all documents that `cut` applies to; needed by a tail"""

    @property
    def only_train(self) -> bool:
        """Whether `cut` applies to the corpus's own train split only."""
        return self.rule == PREDEFINED

    def held_out(self, split: str | None) -> bool:
        """Return whether a document of the corpus's own `split` stays there, for validation or tests."""
        return self.only_train and split != TRAIN

    def router(self, bytes_before: int) -> HashRouter | TailRouter | None:
        """Return the router of documents after the first `bytes_before` bytes; None if `cut` is None."""
        if self.cut is None:
            return None
        if self.cut.kind == "hash":
            return HashRouter(self.cut.fraction)
        assert self.total_bytes is not None, "the plan of a tail split counts the bytes"
        return TailRouter(self.cut.fraction, self.total_bytes, bytes_before)


@dataclass(frozen=True, kw_only=True)
class InputRange:
    """Consecutive documents of a corpus, with everything needed to read them and to decide their splits.

    The ranges of a corpus, one after the other, hold exactly its documents. A range can be pickled.
    """

    parts: tuple[Part, ...]
    options: ReadOptions
    plan: SplitPlan
    bytes_before: int = 0
    """bytes of the documents before this range that `plan.cut` applies to; 0 unless it is a tail"""

    duplicates: bytes | None = None
    """marks of the documents, see `corpora.documents.clean_all`; None to keep all"""

    @property
    def size(self) -> int:
        """Approximate bytes of input."""
        return sum(part.size for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides the documents and splits: files (`file_identity`), options, rules."""
        parts = [(type(part).__name__, part.identity()) for part in self.parts]
        duplicates = None if self.duplicates is None else hashlib.sha256(self.duplicates).hexdigest()
        content = [parts, asdict(self.options), asdict(self.plan), self.bytes_before, duplicates]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def routed_batches(self, dropped: Dropped) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield (split, batch) in order within each split, and count the documents left out in `dropped`.

        A batch has the single column "text", with at most 8 MiB of text or a single document.
        """
        column_type = pa.large_binary() if self.options.invalid == "bytes" else pa.large_string()
        return batch_documents(self.routed(dropped), column_type)

    def documents(self, dropped: Dropped) -> Iterator[tuple[str | None, pa.Array]]:
        """Yield (own split, large_binary array without nulls) before the split, and count as in `routed_batches`."""
        chunks = (chunk for part in self.parts for chunk in part.chunks())
        return clean_all(chunks, self.options, dropped, self.duplicates)

    def routed(self, dropped: Dropped) -> Iterator[tuple[str, pa.Array]]:
        """Yield (split, large_binary array) as the documents are read, a file or a part of it at a time."""
        router = self.plan.router(self.bytes_before)
        for split, documents in self.documents(dropped):
            if self.plan.rule == NONE:
                yield TRAIN, documents
            elif router is None or self.plan.held_out(split):
                assert split is not None, "a chunk of a corpus with own splits names no split"
                yield split, documents
            else:
                yield from router.route(documents)


def count_documents(
    whole: InputRange, dropped: Dropped, *, only_train: bool, enough: int | None = None
) -> tuple[int, int]:
    """Return the number of documents in a range, or in their own train split, and their bytes.

    Stops when `enough` documents are found.
    """
    documents = size = 0
    for split, kept in whole.documents(dropped):
        if only_train and split != TRAIN:
            continue
        documents += len(kept)
        size += pc.sum(pc.binary_length(kept), min_count=0).as_py()
        if enough is not None and documents >= enough:
            break
    return documents, size


def pack(parts: Iterable[Part], size: int) -> Iterator[tuple[Part, ...]]:
    """Yield `parts` in groups of at most `size` bytes, or of one larger part."""
    group: list[Part] = []
    total = 0
    for part in parts:
        if group and total + part.size > size:
            yield tuple(group)
            group, total = [], 0
        group.append(part)
        total += part.size
    if group:
        yield tuple(group)

"""The summary of a corpus, from one pass over it."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpora.corpus import Corpus
from corpora.documents import Dropped
from corpora.splits import TRAIN


@dataclass(kw_only=True)
class SplitSummary:
    """Documents of one split, and their bytes of text."""

    documents: int = 0
    bytes: int = 0


@dataclass(kw_only=True)
class CorpusSummary:
    """A corpus in numbers, with the beginnings of a few documents."""

    name: str
    description: str
    licence: str
    split_rule: str
    split_description: str
    splits: dict[str, SplitSummary]
    dropped: Dropped
    skipped_files: dict[str, int]
    synthetic: dict[str, Any] | None = None
    excerpts: list[str] = field(default_factory=list)

    @property
    def documents(self) -> int:
        return sum(split.documents for split in self.splits.values())

    @property
    def bytes(self) -> int:
        return sum(split.bytes for split in self.splits.values())


def summarize(
    corpus: Corpus,
    excerpts: int = 3,
    excerpt_bytes: int = 300,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> CorpusSummary:
    """Count documents and bytes per split, and take the beginnings of `excerpts` random documents.

    The seed is fixed, so the same corpus gives the same excerpts. `progress` is called with
    ("reading", bytes so far, `corpus.text_bytes_estimate`).
    """
    splits = {name: SplitSummary() for name in corpus.split_names}
    generator = np.random.default_rng(0)
    chosen: list[tuple[float, int, str]] = []
    done, cut = 0, ""
    for name, batch in corpus.routed_batches():
        documents = batch.column(0)
        if name == TRAIN and "tail" in corpus.split_rule:
            at_line_end = bytes(documents[-1].as_buffer()[-1:]) == b"\n"
            cut = ", cut at a line end" if at_line_end else ""
        size = pc.sum(pc.binary_length(documents)).as_py()
        keys = generator.random(len(documents))
        # The documents with the largest random keys are a uniform sample, found in one pass.
        for i in np.argsort(keys)[::-1][:excerpts]:
            if len(chosen) < excerpts or keys[i] > chosen[0][0]:
                push = heapq.heappush if len(chosen) < excerpts else heapq.heapreplace
                number = sum(split.documents for split in splits.values()) + int(i)
                push(chosen, (float(keys[i]), number, _beginning(documents[int(i)], excerpt_bytes)))
        splits[name].documents += len(documents)
        splits[name].bytes += size
        done += size
        if progress:
            progress("reading", done, corpus.text_bytes_estimate)
    return CorpusSummary(
        name=corpus.name,
        description=corpus.description,
        licence=corpus.licence,
        split_rule=corpus.split_rule,
        split_description=corpus.split_description + cut,
        splits=splits,
        dropped=replace(corpus.dropped),
        skipped_files=corpus.skipped_files,
        synthetic=corpus.synthetic,
        excerpts=[text for _, _, text in sorted(chosen, key=lambda choice: choice[1])],
    )


def _beginning(document: pa.Scalar, length: int) -> str:
    # Leave out the first bytes of a character that the cut splits.
    data = document.as_buffer()
    cut = bytes(data[:length]).decode(errors="replace").rstrip("\ufffd")
    return cut + ("…" if data.size > length else "")

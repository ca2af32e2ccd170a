"""Find the documents of a split that the run was also trained on: their loss is not that of held-out text.

Training splits do not record their documents, and can have random segmentations. So each document has a fingerprint:
the sum of a random number for each of its bytes. A token adds the sum of its bytes, whatever the segmentation, so one
pass over the training tokens finds the candidates. Their decoded bytes are then compared by SHA-256.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corpora.splits import TRAIN
from lm.warn import warn
from pipelines.cli.display import count_text
from pipelines.cli.waiting import doing
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation.decoded_text import decode, decoded_tokens
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import Stream
from pipelines.run.folder import Run
from tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainedText(Result):
    """The part of a split that the run was also trained on, None if no training text is known."""

    trained_documents: int | None = number(
        "documents seen in training", "Documents of this text that are also in the training text of the run.", 0
    )
    trained_share: float | None = number(
        "share seen in training", "Share of the bytes of this text that are in documents seen in training.", 4
    )

    def not_held_out(self, run: str) -> str | None:
        """Return a sentence if a part of the text was also in the training text of `run`; None otherwise."""
        if not self.trained_documents:
            return None
        return (
            f"{self.trained_share:.1%} of this text ({count_text(self.trained_documents, 'document')}) was also in the "
            f"training text of {run}: the loss on it is not that of held-out text."
        )


@dataclass(frozen=True, kw_only=True)
class SeenInTraining(Measurement):
    """The part of a split that the run was also trained on. It is always measured."""

    result = TrainedText

    def measure(self, split: ScoredSplit) -> TrainedText | None:
        if split.text is None:
            return None
        trained, run = split.trained_text, split.plan.run
        asked_for = split.name == TRAIN and split.plan.dataset.fingerprint == run.facts["dataset_fingerprint"]
        if not asked_for and (sentence := trained.not_held_out(run.name)):
            warn(f"{split.plan.entry(split.name)}: {sentence}")
        return trained


MEASUREMENT = SeenInTraining


class TrainingText:
    """The documents of the training splits of a run, and of the runs whose weights it started from."""

    def __init__(self, datasets: Iterable[TokenDataset], tokenizer: Tokenizer) -> None:
        """Leave out datasets without separators, whose documents are unknown, and datasets of another tokenizer."""
        self._datasets = [
            dataset
            for dataset in datasets
            if dataset.info["separator"] is not None and dataset.tokenizer_fingerprint == tokenizer.fingerprint
        ]
        self._added, lengths = decoded_tokens(tokenizer)
        ends = np.cumsum(lengths)
        numbers = np.random.default_rng(0).integers(2**64, size=256, dtype=np.uint64)
        sums = _running(numbers[np.frombuffer(b"".join(self._added.to_pylist()), np.uint8)])
        self._weights = sums[ends] - sums[ends - lengths]

    @classmethod
    def of(cls, run: Run, opened: Iterable[Any]) -> "TrainingText":
        """Open the datasets of a run that still exist, unless they are in `opened`."""
        known = {dataset.place: dataset for dataset in opened if isinstance(dataset, TokenDataset)}
        return cls(_datasets(run, known), run.tokenizer())

    def share(self, stream: Stream, text: StreamText | None) -> TrainedText:
        """Return the documents of a split that were also trained on, and their share of the bytes of all documents.

        Both are None if no training text is known, and for pairs.
        """
        if not self._datasets or text is None or not isinstance(stream, TokenStream):
            return TrainedText(None, None)
        doing("comparing with the training text")
        ids = stream.read(0, stream.tokens)
        places = np.searchsorted(text.document, np.arange(text.documents + 1))
        fingerprints = np.diff(_running(self._weights[ids])[places])
        digests: list[bytes] = []
        sizes: list[int] = []
        wanted: dict[int, set[bytes]] = defaultdict(set)
        for part, fingerprint in zip(np.split(ids, places[1:-1]), fingerprints.tolist(), strict=True):
            written = decode(self._added, part)
            sizes.append(len(written))
            digests.append(hashlib.sha256(written).digest())
            if written:
                wanted[fingerprint].add(digests[-1])
        seen = {digest for dataset in self._datasets for digest in self._matches(dataset, wanted)}
        trained = np.array([digest in seen for digest in digests])
        share = float(np.array(sizes) @ trained / max(1, sum(sizes)))
        return TrainedText(int(trained.sum()), share)

    def _matches(self, dataset: TokenDataset, wanted: dict[int, set[bytes]]) -> Iterator[bytes]:
        """Yield the digests in `wanted`, by fingerprint, that the training split has; remove them from `wanted`."""
        stream, searched = dataset.split("train"), np.array(list(wanted), np.uint64)
        for bounds, fingerprints in self._documents(stream, dataset.info["separator"]):
            for place in np.flatnonzero(np.isin(fingerprints, searched)).tolist():
                if rest := wanted[int(fingerprints[place])]:
                    ids = stream.read(int(bounds[place]), int(bounds[place + 1] - bounds[place]))
                    digest = hashlib.sha256(decode(self._added, ids)).digest()
                    if digest in rest:
                        rest.remove(digest)
                        yield digest

    def _documents(self, stream: TokenStream, separator: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the bounds (D + 1,) and fingerprints (D,) of the documents that end in a chunk, chunk by chunk."""
        start, before, total = np.zeros(1, np.int64), np.zeros(1, np.uint64), np.zeros(1, np.uint64)
        first = 0
        for chunk in stream.chunks():
            sums = _running(self._weights[chunk]) + total
            ends = np.flatnonzero(chunk == separator)
            bounds, sums_there = np.append(start, first + ends), np.append(before, sums[ends])
            yield bounds, np.diff(sums_there)
            start, before, total = bounds[-1:], sums_there[-1:], sums[-1:]
            first += len(chunk)
        yield np.append(start, first), total - before


def _running(values: np.ndarray) -> np.ndarray:
    """Return the sum before each of `values` (N,), and of all: (N + 1,) uint64, modulo 2^64."""
    return np.append(np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64))


def _datasets(run: Run, known: dict[Any, TokenDataset]) -> Iterator[TokenDataset]:
    """Yield the datasets of a run and of its ancestors, except missing datasets and datasets of pairs."""
    for place in run.sources:
        if place in known:
            yield known[place]
        elif isinstance(place, Path) and place.is_dir():
            with suppress(ValueError, OSError):
                yield TokenDataset(place)
    if origin := run.facts.get("init_from"):
        with suppress(ValueError, OSError):
            yield from _datasets(Run(Path(origin)), known)

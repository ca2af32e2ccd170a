"""Encode a corpus in memory with the tokenizer of a run, to evaluate it without a dataset on disk."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from corpora import Corpus, open_corpus
from pipelines.cli.display import Bar
from pipelines.dataset.arrow import id_dtype, text_of
from pipelines.dataset.document_records import RecordedDocuments
from pipelines.dataset.reader import TokenStream
from pipelines.run.folder import Run
from pipelines.run.text_ids import text_ids
from tokenizer import Tokenizer


@dataclass(frozen=True)
class CorpusSplit:
    """The documents of a split: their tokens, hashes and sizes."""

    stream: TokenStream
    recorded: RecordedDocuments


class CorpusText:
    """The splits of a corpus, encoded for a run.

    `splits` holds the splits named in `wanted` if the corpus has its own; otherwise all documents are one split. Names
    of splits begin with the name of the corpus. The stream includes the tokens after the last whole block.
    """

    def __init__(
        self,
        specs: Sequence[str],
        run: Run,
        context_length: int,
        wanted: Sequence[str],
        reading: Mapping[str, Any] | None = None,
    ) -> None:
        """`reading` are options of `open_corpus`.

        Raises ValueError for a corpus without text, and for a wanted split that it lacks.
        """
        reading = reading or {}
        corpus = open_corpus(list(specs), **reading)
        if own := corpus.split_rule == "predefined":
            for split in wanted:
                if split not in corpus.split_names:
                    raise ValueError(f"{corpus.name} has no split {split!r}; it has {', '.join(corpus.split_names)}")
        else:
            # Without a split rule, all documents are in train, in corpus order.
            corpus = open_corpus(list(specs), split="none", **reading)
        tok = run.tokenizer()
        self.source = ", ".join(specs)
        self.tokenizer_fingerprint = tok.fingerprint
        self.context_length = context_length
        self.separator = separator_of(run, tok)
        self.synthetic: dict[str, Any] | None = corpus.synthetic
        self._corpus = corpus
        self._names = (
            {f"{corpus.name} {split}": (split,) for split in wanted} if own else {corpus.name: corpus.split_names}
        )
        self.splits = {name: self._split(corpus, tok, names) for name, names in self._names.items()}
        content = [digest for split in self.splits.values() for digest in split.recorded.hashes]
        self.fingerprint = hashlib.sha256(b"".join(content)).hexdigest()

    def documents(self, split: str) -> Iterator[bytes]:
        """Yield the bytes of the documents of a split, read again."""
        for name, batch in self._corpus.routed_batches():
            if name in self._names[split]:
                yield from map(bytes, _documents(batch.column(0)))

    def _split(self, corpus: Corpus, tok: Tokenizer, names: Sequence[str]) -> CorpusSplit:
        views: list[np.ndarray] = []
        hashes: list[bytes] = []
        sizes, tokens = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        with Bar("encoding", corpus.text_bytes_estimate, "B") as bar:
            for split, batch in corpus.routed_batches():
                if split not in names:
                    continue
                ids, lengths = self._encoded(batch.column(0), tok)
                views.append(ids)
                tokens.append(lengths)
                sizes.append(text_of(batch.column(0))[1])
                hashes += [hashlib.sha256(document).digest() for document in _documents(batch.column(0))]
                bar.update(int(sum(map(np.sum, sizes))))
        if not views:
            raise ValueError(f"{corpus.name} has no text in {', '.join(names)}")
        recorded = RecordedDocuments(hashes, np.concatenate(sizes), np.concatenate(tokens))
        return CorpusSplit(TokenStream(views, self.context_length), recorded)

    def _encoded(self, column: pa.Array, tok: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of documents with their separators, and the number of tokens of each document."""
        encoded = tok.encode_arrow(column)
        offsets = encoded.offsets.to_numpy()
        ids = encoded.values.to_numpy()[offsets[0] : offsets[-1]].astype(id_dtype(tok.vocab_size))
        if self.separator is None:
            return ids, np.diff(offsets)
        return np.insert(ids, offsets[:-1] - offsets[0], self.separator), np.diff(offsets) + 1


def _documents(column: pa.Array) -> Iterator[memoryview]:
    text, lengths = text_of(column)
    ends = np.cumsum(lengths).tolist()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        yield text[start:end]


def separator_of(run: Run, tok: Tokenizer) -> int | None:
    """Return the token id that began each document in training, or None if there was none.

    For an imported decoder it is the end token of the previous document, for an encoder the token that ends its input.
    """
    ids, separated = text_ids(run, tok), run.facts.get("separated", True)
    if run.recipe.model.architecture == "encoder":
        return ids.after[-1] if ids.after and separated else None
    if ids.before:
        return ids.before[-1]
    return ids.stops[0] if ids.stops and separated else None

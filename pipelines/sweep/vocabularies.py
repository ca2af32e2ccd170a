"""The tokenizers and datasets of a sweep, and its held-out text.

The training split is counted once per kind, and all sizes train on these counts. All datasets have the same text.
"""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from corpora import Corpus
from pipelines.cli.display import Bar, say
from pipelines.dataset.arrow import id_dtype
from pipelines.dataset.block_dataset import write_blocks
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.files import whole_folder
from pipelines.reporting.training_phases import Phases
from pipelines.sweep.plan import Vocabulary
from pipelines.tokenizer_options import Superwords
from tokenizer import DEFAULT_SPECIAL_TOKENS, END_OF_TEXT, PretokenCounts, Tokenizer, count_pretokens
from tokenizer.kinds.kind import Kind
from tokenizer.kinds.registry import kind_named

HELD_OUT_BYTES = 1 << 19
LONGEST_DOCUMENT = HELD_OUT_BYTES // 8  # so that the held-out text is not all of one document


def held_out_documents(corpus: Corpus) -> list[bytes]:
    """Return about HELD_OUT_BYTES of validation documents in corpus order, each cut to LONGEST_DOCUMENT bytes.

    The documents with the smallest SHA-256 are chosen, so they come from all parts of the corpus.
    """
    sample = _Sample()
    for batch in corpus.batches("validation"):
        for text in batch.column(0).cast(pa.large_binary()):
            sample.add(text.as_py())
    if not sample.documents:
        raise ValueError(f"the validation split of {corpus.name} is empty: for so few documents use `split='tail:0.1'`")
    sample.trim()
    return [text for _, _, text in sorted(sample.documents, key=lambda document: document[1])]


class _Sample:
    """The documents with the smallest digests. `trim` keeps as few as reach HELD_OUT_BYTES."""

    def __init__(self) -> None:
        self.documents: list[tuple[bytes, int, bytes]] = []  # digest, number, text
        self._added = self._bytes = 0

    def add(self, text: bytes) -> None:
        self.documents.append((hashlib.sha256(text).digest(), self._added, _cut(text, LONGEST_DOCUMENT)))
        self._added += 1
        self._bytes += len(self.documents[-1][2])
        if self._bytes > 4 * HELD_OUT_BYTES:  # a whole split may not fit in memory
            self.trim()

    def trim(self) -> None:
        self.documents.sort()
        before = list(accumulate((len(text) for _, _, text in self.documents), initial=0))
        self.documents = [
            document for document, start in zip(self.documents, before, strict=False) if start < HELD_OUT_BYTES
        ]
        self._bytes = before[len(self.documents)]


def _cut(text: bytes, most: int) -> bytes:
    """Return at most `most` bytes of a document, cut at a line end, or else between two characters."""
    if len(text) <= most:
        return text
    lines = text.rfind(b"\n", 0, most) + 1
    while not lines and most > 0 and text[most] & 0xC0 == 0x80:  # inside a character
        most -= 1
    return text[: lines or most]


def stream_of(documents: Sequence[bytes], tokenizer: Tokenizer, context_length: int) -> TokenStream:
    """Return the tokens of documents, each after a separator. The last block may be short, so no text is left out."""
    encoded = tokenizer.encode_arrow(pa.array(documents, pa.large_binary()))
    ids, starts = encoded.values.to_numpy(), encoded.offsets.to_numpy()[:-1]
    separated = np.insert(ids, starts, tokenizer.special_tokens[END_OF_TEXT])
    return TokenStream([separated.astype(id_dtype(tokenizer.vocab_size))], context_length)


def train_vocabularies(
    folder: Path, corpus: Corpus, wanted: Sequence[Vocabulary], strict: bool, option: str = "sizes"
) -> dict[Vocabulary, Tokenizer]:
    """Train the tokenizers of the vocabularies that have no dataset in `folder` yet. Writes nothing.

    If a vocabulary is too small for the alphabet or too large for the text, raises ValueError if `strict`; otherwise
    leaves it out with a message. The error names the `option` that gave the size.
    """
    missing = [vocabulary for vocabulary in wanted if not _is_made(folder, vocabulary)]
    trained: dict[Vocabulary, Tokenizer] = {}
    for kind in dict.fromkeys(vocabulary.kind for vocabulary in missing):
        counts = _counts(corpus, kind_named("bpe" if kind == "superwords" else kind))
        for vocabulary in missing:
            if vocabulary.kind != kind:
                continue
            try:
                trained[vocabulary] = _train(counts, vocabulary, corpus)
            except ValueError as error:
                why = str(error).partition(":")[0]  # the remedies after it are options of train-tokenizer
                if strict:
                    raise ValueError(f"`{option}={vocabulary.size}` for {kind}: {why}") from None
                say(f"left out {vocabulary.name}: {why}")
    if not trained and len(missing) == len(wanted):
        raise ValueError(f"none of the default sizes suits {corpus.name}: give some with `sizes`")
    return trained


def write_datasets(
    folder: Path,
    corpus: Corpus,
    wanted: Sequence[Vocabulary],
    trained: Mapping[Vocabulary, Tokenizer],
    context_length: int,
) -> list[Vocabulary]:
    """Write the datasets of `trained` tokenizers, `folder`/NAME with tokenizer.json; return all with a dataset.

    Raises ValueError if the corpus has changed since the other datasets were written.
    """
    for vocabulary, tok in trained.items():
        _write(folder / vocabulary.name, corpus, tok, context_length)
    made = [vocabulary for vocabulary in wanted if _is_made(folder, vocabulary)]
    texts = {TokenDataset(folder / vocabulary.name).info["corpus"]["fingerprint"] for vocabulary in made}
    if len(texts) > 1:
        raise ValueError(f"{folder} has datasets of different texts, so the corpus has changed: choose another `out`")
    return made


def _is_made(folder: Path, vocabulary: Vocabulary) -> bool:
    return (folder / vocabulary.name / "dataset.json").exists()


def _counts(corpus: Corpus, kind: Kind) -> PretokenCounts:
    with Bar(f"counting for {kind.name}", corpus.text_bytes_estimate, "B") as bar:
        texts = corpus.batches("train")
        return count_pretokens(texts, kind.exact_pattern, progress=lambda _, done, __: bar.update(done))


def _train(counts: PretokenCounts, vocabulary: Vocabulary, corpus: Corpus) -> Tokenizer:
    """Return the tokenizer of a vocabulary; ValueError if it would have another size."""
    with warnings.catch_warnings(), Bar(vocabulary.name, None, "") as bar:
        warnings.simplefilter("ignore", UserWarning)  # about the size, which is checked below
        phases = Phases(bar, corpus.text_bytes_estimate)
        if vocabulary.kind == "superwords":
            stages = Superwords()
            first = stages.entries_before(vocabulary.size, len(DEFAULT_SPECIAL_TOKENS))
            tok = Tokenizer.train_from_counts(counts, first, progress=phases)
            tok = stages.grow(tok, corpus.batches("train"), vocabulary.size, progress=phases)
        else:
            options = kind_named(vocabulary.kind).exact_options()
            tok = Tokenizer.train_from_counts(counts, vocabulary.size, kind=vocabulary.kind, progress=phases, **options)
    if tok.vocab_size != vocabulary.size:
        raise ValueError(f"the text fills only {tok.vocab_size:,} entries")
    return tok


def _write(out: Path, corpus: Corpus, tok: Tokenizer, context_length: int) -> None:
    with whole_folder(out, lambda _: False) as partial, Bar(f"encoding {out.name}", None, "B") as bar:
        tok.save(partial)
        write_blocks(corpus, tok, context_length, partial, progress=bar.update)

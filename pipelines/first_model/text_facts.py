"""What `bytelm train` knows about a text before it chooses: sizes, lengths and scripts, from one pass."""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from corpora import Corpus
from corpora.splits import TRAIN, VALIDATION
from pipelines.dataset.arrow import TextFingerprint, text_of

# Scripts are counted in so many samples of each batch. A batch has at most 8 MB, or one document.
SAMPLES, SAMPLE_BYTES = 1024, 64


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """A text in numbers."""

    fingerprint: str
    """Of all documents and their splits; the same as in dataset.json"""
    split_rule: str
    documents: dict[str, int]
    """Number by split"""
    bytes: int
    train_bytes: int
    validation_bytes: int
    least_bytes: int
    """Of the smallest split that has any document"""
    characters: int
    typical_bytes: int
    """Half of the text is in documents of at least this length, to the nearest power of two"""
    scripts: dict[str, float]
    """Share of the letters of each script, the most frequent first"""


def facts_of(corpus: Corpus, progress: Callable[[int], None]) -> TextFacts:
    """Return the facts of a text. `progress` is called with the bytes read so far."""
    fingerprints = {name: TextFingerprint() for name in corpus.split_names}
    sizes, documents, scripts, characters = Counter[str](), Counter[str](), Counter[str](), 0
    by_length = np.zeros(64)  # bytes in documents of 2^n to 2^(n + 1) bytes
    for split, batch in corpus.routed_batches():
        text, lengths = text_of(batch.column(0))
        fingerprints[split].update(text, lengths)
        documents[split] += len(lengths)
        sizes[split] += len(text)
        view = np.frombuffer(text, np.uint8)
        characters += int(np.count_nonzero((view & 0xC0) != 0x80))
        np.add.at(by_length, np.log2(np.maximum(lengths, 1)).astype(int), lengths)
        scripts += _scripts_of(text)
        progress(sizes.total())
    letters = max(1, scripts.total())
    texts = {name: each.hexdigest() for name, each in fingerprints.items() if documents[name]}
    return TextFacts(
        fingerprint=hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        split_rule=corpus.split_rule,
        documents=dict(documents),
        bytes=sizes.total(),
        train_bytes=sizes[TRAIN],
        validation_bytes=sizes[VALIDATION],
        least_bytes=min(sizes.values(), default=0),
        characters=characters,
        typical_bytes=2 ** int(np.searchsorted(np.cumsum(by_length), by_length.sum() / 2)),
        scripts={name: count / letters for name, count in scripts.most_common()},
    )


def _scripts_of(text: memoryview) -> Counter[str]:
    """Return about how many letters of each script are in a text, from one sample in each part of it."""
    step = max(SAMPLE_BYTES, len(text) // SAMPLES)
    counts: Counter[str] = Counter()
    parts = np.arange(0, len(text), step)
    for start in parts + np.random.default_rng(0).integers(step - SAMPLE_BYTES + 1, size=len(parts)):
        sample = bytes(text[start : start + SAMPLE_BYTES]).decode(errors="ignore")
        # Unicode's names of letters begin with the script.
        counts.update(unicodedata.name(c, "Unnamed").partition(" ")[0].title() for c in sample if c.isalpha())
    return Counter({"Han" if name == "Cjk" else name: count * step // SAMPLE_BYTES for name, count in counts.items()})

"""What several tests of the corpora need: corpora in plain Python."""

import hashlib
import json

from corpora import Corpus


def documents(corpus: Corpus, split: str) -> list:
    """All documents of one split, str (bytes with invalid="bytes")."""
    return [text for batch in corpus.batches(split) for text in batch.column("text").to_pylist()]


def everything(corpus: Corpus) -> dict[str, list]:
    """All documents by split, from one pass."""
    found: dict[str, list] = {split: [] for split in corpus.split_names}
    for split, batch in corpus.routed_batches():
        found[split] += batch.column("text").to_pylist()
    return found


def jsonl(texts, **fields) -> bytes:
    return "".join(json.dumps({"text": text, **fields}, ensure_ascii=False) + "\n" for text in texts).encode()


def expected_hash_split(text: str, fraction: float) -> str:
    """The hash rule again, for one document."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return "validation" if number / 2**64 < fraction else "train"

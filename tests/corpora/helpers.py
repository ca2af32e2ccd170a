"""Helpers for the tests of corpora: corpora as plain Python lists."""

import gzip
import hashlib
import json
import lzma

import zstandard

from corpora import Corpus, open_corpus


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


COMPRESSORS = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd}


def documents(corpus: Corpus, split: str) -> list:
    """Return all documents of one split, str (bytes with invalid="bytes")."""
    return [text for batch in corpus.batches(split) for text in batch.column("text").to_pylist()]


def everything(corpus: Corpus) -> dict[str, list]:
    """Return all documents by split, from one pass."""
    found: dict[str, list] = {split: [] for split in corpus.split_names}
    for split, batch in corpus.routed_batches():
        found[split] += batch.column("text").to_pylist()
    return found


def all_documents(*specs, **options):
    """Return the documents of all splits in one list."""
    found = everything(open_corpus([str(spec) for spec in specs], **options))
    return [text for texts in found.values() for text in texts]


def jsonl(texts, **fields) -> bytes:
    return "".join(json.dumps({"text": text, **fields}, ensure_ascii=False) + "\n" for text in texts).encode()


def expected_hash_split(text: str, fraction: float) -> str:
    """Return the split of one document by the hash rule, computed independently."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return "validation" if number / 2**64 < fraction else "train"

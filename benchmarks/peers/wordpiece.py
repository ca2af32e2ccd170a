"""Adapters that encode with a WordPiece vocabulary or train one. Each uses the peer's fastest interface."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.peers import OURS
from benchmarks.texts import pieces

ALL_CHARACTERS = 0x110000
# Ids, uint32, of all lines, and the number of ids of each line; None if the interface encodes the file as one text.
Encoded = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True, kw_only=True)
class WordPieceFiles:
    """A vocabulary like bert-base-uncased's, as vocab.txt and as tokenizer.json."""

    vocab: str
    json: str


class LineEncoder(Protocol):
    """The interface of an adapter: `encode` gets the lines of a file, or reads the file itself."""

    def __init__(self, files: WordPieceFiles): ...

    def encode(self, lines: Sequence[str], path: Path) -> Encoded: ...


class Bytelm(LineEncoder):
    def __init__(self, files):
        from tokenizer import Tokenizer

        self.tokenizer = Tokenizer.load(files.vocab, pattern="bert-uncased")
        self.tokenizer.warm_up(1)  # the peers build their tables while loading

    def encode(self, lines, path):
        import pyarrow as pa

        encoded = self.tokenizer.encode_arrow(pa.array(lines), threads=1)
        return encoded.values.to_numpy(), np.diff(encoded.offsets.to_numpy())


class BytelmFile(Bytelm):
    def encode(self, lines, path):
        return self.tokenizer.encode_file(path, threads=1), None


class HuggingFace(LineEncoder):
    def __init__(self, files):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(files.json)

    def encode(self, lines, path):
        encoded = [line.ids for line in self.tokenizer.encode_batch_fast(lines, add_special_tokens=False)]
        return np.array([i for ids in encoded for i in ids], dtype=np.uint32), np.array([*map(len, encoded)])


class Nanotoken(LineEncoder):
    def __init__(self, files):
        import nanotoken

        self.tokenizer = nanotoken.Tokenizer(files.json)

    def encode(self, lines, path):
        encoded = self.tokenizer.encode_batch(lines, add_special_tokens=False, parallel=False)
        return encoded.ids, encoded.lengths


class NanotokenFile(Nanotoken):
    def encode(self, lines, path):
        return self.tokenizer.encode_files(path, add_special_tokens=False, parallel=False).ids, None


class Splintr(LineEncoder):
    def __init__(self, files):
        import splintr

        self.tokenizer = splintr.from_json(files.json)

    def encode(self, lines, path):
        ids, offsets = self.tokenizer.encode_batch_flat(lines)
        return np.frombuffer(ids, dtype=np.uint32), np.diff(np.frombuffer(offsets, dtype=np.int64))


class Tokie(LineEncoder):
    def __init__(self, files):
        import tokie

        self.tokenizer = tokie.Tokenizer.from_json(files.json)

    def encode(self, lines, path):
        return self.tokenizer.encode_batch_flat(lines, add_special_tokens=False)


# By peer and, if it has several, by interface.
LINE_ENCODERS: dict[tuple[str, str], type[LineEncoder]] = {
    (OURS, ""): Bytelm,
    (OURS, "encode_file"): BytelmFile,
    ("tokenizers", ""): HuggingFace,
    ("nanotoken", ""): Nanotoken,
    ("nanotoken", "encode_files"): NanotokenFile,
    ("splintr", ""): Splintr,
    ("tokie", ""): Tokie,
}


def train_bytelm(path: Path, vocab_size: int, threads: int, alphabet_order: str | None = None) -> list[str]:
    """Train by our rules, and return the tokens in the order of their ids."""
    from tokenizer import Tokenizer

    options = {"model": "wordpiece", "special_tokens": ("[UNK]",), "alphabet_order": alphabet_order}
    return [*Tokenizer.train(path, vocab_size, threads=threads, **options).vocabulary.ids]


def train_tokenizers(path: Path, vocab_size: int, threads: int) -> list[str]:
    """Train with `tokenizers`, and return the tokens in the order of their ids."""
    from tokenizers import BertWordPieceTokenizer

    peer = BertWordPieceTokenizer(lowercase=True)
    options = {"limit_alphabet": ALL_CHARACTERS, "min_frequency": 2, "show_progress": False}
    peer.train_from_iterator(
        pieces(path.read_bytes().decode()), vocab_size=vocab_size, special_tokens=["[UNK]"], **options
    )
    ids = peer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


WORDPIECE_TRAINERS: dict[str, Callable[[Path, int, int], list[str]]] = {
    OURS: train_bytelm,
    "tokenizers": train_tokenizers,
}


def alphabet_order(tokens: list[str]) -> str:
    """Return the characters that continue words, ordered by id. `tokenizers` orders them at random."""
    return "".join(token[2:] for token in tokens if len(token) == 3 and token.startswith("##"))

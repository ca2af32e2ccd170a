"""Adapters that train a WordPiece vocabulary."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.peers import OURS
from benchmarks.texts import pieces

ALL_CHARACTERS = 0x110000


def train_bytelm(path: Path, vocab_size: int, threads: int, alphabet_order: str | None = None) -> list[str]:
    """Train by our rules, and return the tokens in the order of their ids."""
    from tokenizer import Tokenizer

    options = {"kind": "wordpiece", "special_tokens": ("[UNK]",), "alphabet_order": alphabet_order}
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

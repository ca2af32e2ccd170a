"""Adapters that train a vocabulary on one file.

A trainer reads the file, trains, and returns a function that lists the merges, which is not timed. The merges are pairs
of bytes, or tokens if the peer keeps no pairs. Libraries that only run documents in parallel get pieces of the text,
which have the pretokens of the whole.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import OURS
from benchmarks.texts import pieces

Merges = list[tuple[bytes, bytes]] | list[bytes]


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One interface of a peer: train(path, vocab_size, pattern, threads) returns the function that lists the merges.

    byte_order: the order of single bytes in the comparison with ours; None if the peer has its own rules.
    threads: the most threads that the peer can use.
    """

    train: Callable[[Path, int, str, int], Callable[[], Merges]]
    byte_order: str | None
    patterns: tuple[str, ...] = ("gpt2", "cl100k")
    threads: int | None = None


def bytelm(path: Path, vocab_size: int, pattern: str, threads: int, byte_order: str = "gpt2"):
    from tokenizer import Tokenizer

    options = {"special_tokens": (), "min_frequency": 1, "byte_order": byte_order, "threads": threads}
    tokenizer = Tokenizer.train(path, vocab_size, pattern, **options)
    return lambda: tokenizer.merges


def gigatoken(path: Path, vocab_size: int, pattern: str, threads: int):
    import gigatoken

    _, merges = gigatoken.train_bpe(path, vocab_size, [])
    return lambda: merges


def gigabpe(path: Path, vocab_size: int, pattern: str, threads: int):
    import gigabpe

    # It reads each line as a document, so it learns no tokens across line ends. Its vocabulary has only bytes of the
    # text, so it learns some more merges, which are left out.
    options = {"pretokenizer": "bytelevel", "special_tokens": [], "min_frequency": 1, "threads": threads}
    _, merges = gigabpe.train_bpe([str(path)], vocab_size, **options)
    return lambda: [tuple(map(_from_byte_level, pair)) for pair in merges[: vocab_size - 256]]


def ffbpe(path: Path, vocab_size: int, pattern: str, threads: int):
    import ffbpe

    # It has scanners for patterns as tiktoken writes them, five times as fast as its regex engine.
    counter = ffbpe.PreTokenizer([], pat_str=tiktoken_spelling(pattern)).word_counter()
    if threads == 1:
        counter.add_text(_read(path))
    else:
        counter.add_batch(pieces(_read(path)))
    trainer = ffbpe.BpeTrainer([], initial_alphabet="byte_level", tie_break="smallest_pair_id")
    trainer.add_word_counter(counter)
    return _ffbpe_merges(trainer, vocab_size)


def ffbpe_from_file(path: Path, vocab_size: int, pattern: str, threads: int):
    """Train with ffbpe's interface that is slower but uses less memory."""
    import ffbpe

    words = ffbpe.PreTokenizer([], pat_str=tiktoken_spelling(pattern)).get_words_from_file(path)
    trainer = ffbpe.BpeTrainer([], initial_alphabet="byte_level", tie_break="smallest_pair_id")
    trainer.add_words(words)
    return _ffbpe_merges(trainer, vocab_size)


def rustbpe(path: Path, vocab_size: int, pattern: str, threads: int):
    import rustbpe

    tokenizer = rustbpe.Tokenizer()
    tokenizer.train_from_iterator(iter(pieces(_read(path))), vocab_size, pattern=_spelling(pattern))
    return lambda: _learned(dict(tokenizer.get_mergeable_ranks()))


def bpeasy(path: Path, vocab_size: int, pattern: str, threads: int):
    import bpeasy

    longest = 1 << 30
    vocab = bpeasy.train_bpe(iter(pieces(_read(path))), _spelling(pattern), longest, vocab_size)
    return lambda: _learned(vocab)


def tokenizers(path: Path, vocab_size: int, pattern: str, threads: int):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    peer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_spelling(pattern)), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    peer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"min_frequency": 1, "initial_alphabet": alphabet, "show_progress": False}
    peer.train_from_iterator(pieces(_read(path)), trainers.BpeTrainer(vocab_size=vocab_size, **options))
    return lambda: [tuple(map(_from_byte_level, pair)) for pair in json.loads(peer.to_str())["model"]["merges"]]


def sentencepiece(path: Path, vocab_size: int, pattern: str, threads: int):
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        input=str(path),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        max_sentence_length=1 << 20,
        num_threads=threads,
        minloglevel=2,
    )
    return lambda: [model.getvalue()]


# By peer and, if it has several, by interface.
TRAINERS: dict[tuple[str, str], Trainer] = {
    (OURS, ""): Trainer(train=bytelm, byte_order="gpt2"),
    ("gigatoken", ""): Trainer(train=gigatoken, byte_order="gpt2", patterns=("gpt2",)),
    ("gigabpe", ""): Trainer(train=gigabpe, byte_order="gpt2", patterns=("gpt2",)),
    ("ffbpe", ""): Trainer(train=ffbpe, byte_order="gpt2"),
    ("ffbpe", "get_words_from_file"): Trainer(train=ffbpe_from_file, byte_order="gpt2", threads=1),
    ("rustbpe", ""): Trainer(train=rustbpe, byte_order="raw"),
    ("tokenizers", ""): Trainer(train=tokenizers, byte_order="gpt2"),
    ("bpeasy", ""): Trainer(train=bpeasy, byte_order="raw"),
    ("sentencepiece", ""): Trainer(train=sentencepiece, byte_order=None, patterns=("gpt2",)),
}


def tiktoken_spelling(pattern: str) -> str:
    """Return a pattern as the installed tiktoken writes it, without loading a vocabulary."""
    from unittest.mock import patch

    import tiktoken_ext.openai_public as public

    encoding = {"gpt2": public.r50k_base, "cl100k": public.cl100k_base}[pattern]
    with patch.object(public, "load_tiktoken_bpe", lambda *_, **__: {}):
        return encoding()["pat_str"]


def _spelling(pattern: str) -> str:
    from tokenizer import resolve_pattern

    return resolve_pattern(pattern).regex


def _read(path: Path) -> str:
    return path.read_bytes().decode()


def _ffbpe_merges(trainer, vocab_size: int) -> Callable[[], Merges]:
    trainer.train(vocab_size)
    model = trainer.validate_model()
    return lambda: _learned(model.vocab)


def _learned(ids: dict[bytes, int]) -> list[bytes]:
    """Return the tokens of a vocabulary in the order of learning, without the 256 bytes."""
    return sorted(ids, key=ids.__getitem__)[256:]


def _from_byte_level(text: str) -> bytes:
    """Return the bytes of a token in GPT-2's notation: printable bytes stand for themselves, others start at U+0100."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return bytes(others[ord(c) - 256] if ord(c) >= 256 else ord(c) for c in text)

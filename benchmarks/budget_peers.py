"""The peers of benchmarks.budget: nanoGPT's and transformers' recipes, four settings each.

nanoGPT is not on PyPI, so both peers train `GPT2LMHeadModel` of transformers. Unlike nanoGPT's model, it has biases and
the tanh approximation of GELU. nanoGPT's settings follow the CPU command of its README, which changes
config/train_shakespeare_char.py; the context of 256 is that file's. The settings of transformers follow chapter 7.6 of
the Hugging Face course, with the defaults of `Trainer`. Warm-up takes 5 % of the training, as in nanoGPT's command (100
of 2,000 steps). The setting of the course has its 1.5 % (1,000 of about 65,000 steps).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

Vocabulary = Literal["characters", "gpt2", "bpe"]
END = "<|endoftext|>"
UNICODE_BITS = float(np.log2(0x110000 - 0x800))  # of a Unicode character, if all are equally likely


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model and its training, by a peer's recipe."""

    name: str
    vocabulary: Vocabulary
    entries: int = 0
    """Entries of a vocabulary that is trained on the text"""
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    """Sequences per step"""
    lr: float
    final: float
    """Final learning rate as a share of the peak; the decay is half a cosine"""
    warmup: float = 0.05
    """Share of the training"""
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    dropout: float = 0.0
    crops: bool = False
    """True: batches of random crops of the stream, as in nanoGPT. False: each block once per epoch, in random order"""


@dataclass(frozen=True)
class Peer:
    """A library's recipe."""

    name: str
    settings: tuple[Setting, ...] = field(default_factory=tuple)

    def setting(self, name: str) -> Setting:
        return next(setting for setting in self.settings if setting.name == name)


def _nano(name: str, **changes: Any) -> Setting:
    """Return a variant of the CPU command of nanoGPT's README."""
    shape = {"layers": 4, "width": 128, "heads": 4, "context": 64, "batch": 12}
    rest = {"lr": 1e-3, "final": 0.1, "betas": (0.9, 0.99), "crops": True, "vocabulary": "characters"}
    return Setting(name=name, **shape | rest | changes)


def _hugging_face(name: str, **changes: Any) -> Setting:
    """Return a GPT-2 with a byte-level BPE; by default with blocks of 256 tokens and no dropout."""
    shape = {"vocabulary": "bpe", "entries": 4096, "layers": 4, "width": 128, "heads": 2, "context": 256, "batch": 8}
    return Setting(name=name, **shape | {"lr": 2e-3, "final": 0.0} | changes)


PEERS = (
    Peer(
        "nanoGPT",
        (
            _nano("CPU command as published"),
            _nano("context 256", context=256),
            _nano("context 256, lr 3e-3", context=256, lr=3e-3),
            _nano("GPT-2's vocabulary", vocabulary="gpt2"),
        ),
    ),
    Peer(
        "transformers",
        (
            # The course has 124M parameters, 50,000 entries and batches of 256: too few steps in a few minutes.
            _hugging_face(
                "course as published, in small",
                entries=8192,
                layers=4,
                width=256,
                heads=4,
                context=128,
                batch=32,
                lr=5e-4,
                warmup=0.015,
                dropout=0.1,
            ),
            _hugging_face("4 x 256, 8,192 entries, lr 1e-3", entries=8192, width=256, heads=4, lr=1e-3),
            _hugging_face("4 x 128, lr 2e-3"),
            _hugging_face("2 x 128, batch 4, lr 3e-3", layers=2, batch=4, lr=3e-3),
        ),
    ),
)


class Tokens(Protocol):
    """A vocabulary of a peer."""

    size: int
    start: int
    """Token before each passage, in training and scoring"""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without the start token."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    def extra_bits(self, text: str) -> float:
        """Return the bits that restoring a text takes in addition to its ids."""


class Characters:
    """The characters of the training text, as in nanoGPT's data/shakespeare_char, and an id for all others.

    A character that the training text lacks costs UNICODE_BITS in addition to the id, which all such characters share.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._characters = sorted(set("\n").union(*texts))
        self._ids = {character: number for number, character in enumerate(self._characters)}
        self._other = len(self._characters)
        self.size, self.start = self._other + 1, self._ids["\n"]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._ids.get(character, self._other) for character in text] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join([*self._characters, "\N{REPLACEMENT CHARACTER}"][number] for number in ids)

    def extra_bits(self, text: str) -> float:
        return UNICODE_BITS * sum(character not in self._ids for character in text)


class ByteLevel:
    """A byte-level BPE of `tokenizers`: GPT-2's, or trained on the text. Its ids restore every text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.size, self.start = tokenizer.get_vocab_size(), tokenizer.token_to_id(END)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def extra_bits(self, text: str) -> float:
        return 0.0


def tokens_of(setting: Setting, texts: Sequence[str], gpt2: Path | None) -> Tokens:
    """Return the vocabulary of a setting; `gpt2` is a folder with encoder.json and vocab.bpe."""
    from tokenizers import ByteLevelBPETokenizer

    if setting.vocabulary == "characters":
        return Characters(texts)
    if setting.vocabulary == "gpt2":
        if gpt2 is None:
            raise ValueError("GPT-2's vocabulary is missing: give --gpt2 FOLDER with encoder.json and vocab.bpe")
        return ByteLevel(ByteLevelBPETokenizer(str(gpt2 / "encoder.json"), str(gpt2 / "vocab.bpe")))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=setting.entries, special_tokens=[END], show_progress=False)
    return ByteLevel(tokenizer)

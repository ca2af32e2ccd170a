"""Split patterns and special tokens of tiktoken's published vocabularies, which their rank files leave out.

A file is recognised by the SHA-256 of its content, otherwise by its name.
"""

from __future__ import annotations

from collections import namedtuple

from tokenizer.special import END_OF_TEXT
from tokenizer.splitting.patterns import NAMES

# pattern: its name; ranks: how many the file has; sha256: of its content; special_tokens: as in tiktoken.
Published = namedtuple("Published", ["pattern", "ranks", "sha256", "special_tokens"])

PUBLISHED = {
    "r50k": Published(
        "gpt2",
        50256,
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        {END_OF_TEXT: 50256},
    ),
    "p50k": Published(
        "gpt2",
        50280,
        "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
        {END_OF_TEXT: 50256},
    ),
    "cl100k": Published(
        "cl100k",
        100256,
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        {
            END_OF_TEXT: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k": Published(
        "o200k",
        199998,
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        {END_OF_TEXT: 199999, "<|endofprompt|>": 200018},
    ),
    # The special tokens of its tokenizer.model differ between Llama 3 and 3.1.
    "llama3": Published(
        "llama3",
        128000,
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
        {},
    ),
}


class PatternNeededError(ValueError):
    """The files of a vocabulary do not say how text is split."""


def pattern_of_name(name: str) -> str | None:
    """Return the pattern for a rank file's name, such as cl100k or cl100k_base; None for an unknown name."""
    return NAMES.get(name.removesuffix("_base"))


def recognise(content: bytes, ranks: int, name: str) -> tuple[str, dict[str, int]] | None:
    """Return the pattern and the special tokens of a file of `ranks` ranks; None for an unknown file.

    `name` is the file's name without its suffix. A name alone gives the pattern. It also gives the special
    tokens if the file has as many ranks as the published one.
    """
    from hashlib import sha256

    digest = sha256(content).hexdigest()
    for known in PUBLISHED.values():
        if known.sha256 == digest:
            return known.pattern, dict(known.special_tokens)
    pattern = pattern_of_name(name)
    if pattern is None:
        return None
    known = PUBLISHED.get(name.removesuffix("_base"))
    return pattern, dict(known.special_tokens) if known and known.ranks == ranks else {}

"""Split patterns and special tokens of tiktoken's published vocabularies, which the rank files do not contain.

A file is recognised by the SHA-256 of its content, otherwise by its name. Two vocabularies with the same ranks are told
apart by name.
"""

from __future__ import annotations

from collections import namedtuple

from tokenizer.special import END_OF_TEXT
from tokenizer.splitting.patterns import NAMES

# pattern: name of the split pattern; ranks: their number; sha256: digest of the file; special_tokens: as in tiktoken.
Published = namedtuple("Published", ["pattern", "ranks", "sha256", "special_tokens"])

_P50K_SHA256 = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
_HARMONY = ("startoftext", "endoftext", 0, 0, "return", "constrain", 0, "channel", "start", "end", "message", 0, 0, 0)
_HARMONY_IDS = {f"<|{name or f'reserved_{i}'}|>": i for i, name in enumerate((*_HARMONY, "call"), start=199998)}

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
        _P50K_SHA256,
        {END_OF_TEXT: 50256},
    ),
    "p50k_edit": Published(
        "gpt2",
        50280,
        _P50K_SHA256,
        {END_OF_TEXT: 50256, "<|fim_prefix|>": 50281, "<|fim_middle|>": 50282, "<|fim_suffix|>": 50283},
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
        _O200K_SHA256,
        {END_OF_TEXT: 199999, "<|endofprompt|>": 200018},
    ),
    "o200k_harmony": Published(
        "o200k",
        199998,
        _O200K_SHA256,
        # tiktoken also gives the id of <|endofprompt|> to <|reserved_200018|>, which is left out.
        {f"<|reserved_{i}|>": i for i in range(200013, 201088) if i != 200018}
        | _HARMONY_IDS
        | {"<|endofprompt|>": 200018},
    ),
    # Whisper's. Its other special tokens depend on the number of languages.
    "multilingual": Published(
        "gpt2",
        50257,
        "b34b360dbb493e781e479794586d661700670d65564001f23024971d1f2fa126",
        {END_OF_TEXT: 50257, "<|startoftranscript|>": 50258},
    ),
    # Empty, because Llama 3 and 3.1 use the same ranks with different special tokens.
    "llama3": Published(
        "llama3",
        128000,
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
        {},
    ),
}


class PatternNeededError(ValueError):
    """A vocabulary's files do not contain its split pattern, and the caller gave none."""


def pattern_of_name(name: str) -> str | None:
    """Return the pattern for a rank file's name, such as cl100k or cl100k_base; None for an unknown name."""
    return NAMES.get(name.removesuffix("_base"))


def recognise(content: bytes, ranks: int, name: str) -> tuple[str, dict[str, int]] | None:
    """Return the pattern and special tokens of a rank file; None for an unknown file.

    ranks: number of ranks in the file. name: file name without suffix. A known name gives the pattern. It also gives
    the special tokens if the number of ranks is that of the published file.
    """
    from hashlib import sha256

    digest = sha256(content).hexdigest()
    named = PUBLISHED.get(name.removesuffix("_base"))
    same = [published for published in PUBLISHED.values() if published.sha256 == digest]
    if same:
        published = named if named in same else same[0]
        return published.pattern, dict(published.special_tokens)
    pattern = pattern_of_name(name) or (named.pattern if named else None)
    if pattern is None:
        return None
    return pattern, dict(named.special_tokens) if named and named.ranks == ranks else {}

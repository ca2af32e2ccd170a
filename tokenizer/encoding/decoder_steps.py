"""The decoders of tokenizer.json: each step maps the texts of tokens to other texts, as in `tokenizers`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby

from tokenizer.splitting.normalizers import Replace, most_characters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
JOIN = "Join"
"""The type of the step that joins tokens by spaces, which tokenizer.json spells as no decoder."""
# Replacements that join punctuation and contractions to the word before, in this order.
_JOINED = [(f" {mark}", mark) for mark in ".?!,"] + [(" ' ", "'")]
_JOINED += [(f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")]


def decode_by(steps: Sequence[dict[str, Any]], pieces: Sequence[str]) -> str:
    """Return the text of tokens. Raises ValueError if replacements make it far longer."""
    most = most_characters(sum(map(len, pieces)))
    decoded = list(pieces)
    for step in steps:
        if step["type"] == "Replace":
            _replacement(step).check_growth(decoded, most)
        decoded = _DECODERS[step["type"]](decoded, step)
        if sum(map(len, decoded)) > most:
            raise ValueError(
                f"the tokenizer's decoder {step['type']} makes a text far longer: tokenizer.json is damaged, use the "
                "published file"
            )
    return "".join(decoded)


def joined_to_words(text: str) -> str:
    """Return a text with punctuation and contractions joined to the word before, as in transformers."""
    for spaced, joined in _JOINED:
        text = text.replace(spaced, joined)
    return text


def _cleaned(token: str) -> str:
    """Return a token after the cleanup of `tokenizers`, which also contracts "do not"."""
    return joined_to_words(token).replace(" do not", " don't")


def bytes_of(piece: str) -> bytes:
    """Return the bytes that a token spells in ByteLevel's alphabet; its UTF-8 if it has another character."""
    from tokenizer.byte_level import unspell

    try:
        return unspell(piece)
    except KeyError:
        return piece.encode()


def _join(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    return [" ".join(pieces)]


def _metaspace(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    mark = step["replacement"]
    decoded = [piece.replace(mark, " ") for piece in pieces]
    if pieces and step["prepend_scheme"] != "never":
        decoded[0] = pieces[0].replace(mark, "")
    return decoded


def _replacement(step: dict[str, Any]) -> Replace:
    ((kind, find),) = step["pattern"].items()
    return Replace(find, kind == "Regex", step["content"])


def _replace(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    return list(map(_replacement(step).normalize, pieces))


def _byte_fallback(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    """Decode each run of byte pieces. If it is not UTF-8, every byte of the run becomes U+FFFD."""
    decoded: list[str] = []
    pending = bytearray()
    for piece in [*pieces, ""]:
        byte = BYTE.fullmatch(piece)
        if byte:
            pending.append(int(byte[1], 16))
            continue
        if pending:
            try:
                decoded.append(pending.decode())
            except UnicodeDecodeError:
                decoded += ["\ufffd"] * len(pending)
            pending.clear()
        decoded.append(piece)
    return decoded[:-1]


def _byte_level(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    return [b"".join(map(bytes_of, pieces)).decode(errors="replace")]


def _fuse(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    return ["".join(pieces)]


def _strip(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    """Remove the character up to `start` times from the beginning and `stop` times from the end of each piece."""
    stripped = []
    for piece in pieces:
        start, stop = 0, len(piece)
        while start < min(step["start"], len(piece)) and piece[start] == step["content"]:
            start += 1
        while stop > max(start, len(piece) - step["stop"]) and piece[stop - 1] == step["content"]:
            stop -= 1
        stripped.append(piece[start:stop])
    return stripped


def _bpe(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    suffix = step["suffix"]
    return [piece.replace(suffix, " ") for piece in pieces[:-1]] + [piece.replace(suffix, "") for piece in pieces[-1:]]


def _wordpiece(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    prefix = step["prefix"]
    later = [piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}" for piece in pieces[1:]]
    decoded = [*pieces[:1], *later]
    return list(map(_cleaned, decoded)) if step["cleanup"] else decoded


def _ctc(pieces: Sequence[str], step: dict[str, Any]) -> list[str]:
    decoded = [piece.replace(step["pad_token"], "") for piece, _ in groupby(pieces)]
    if step["cleanup"]:
        decoded = [_cleaned(piece).replace(step["word_delimiter_token"], " ") for piece in decoded]
    return [piece for piece in decoded if piece]


_DECODERS: dict[str, Callable[[Sequence[str], dict[str, Any]], list[str]]] = {
    JOIN: _join,
    "BPEDecoder": _bpe,
    "ByteFallback": _byte_fallback,
    "ByteLevel": _byte_level,
    "CTC": _ctc,
    "Fuse": _fuse,
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": _strip,
    "WordPiece": _wordpiece,
}

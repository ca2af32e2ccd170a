"""Fingerprints of vocabularies: one SHA-256 over named parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

Part = tuple[str, Sequence[bytes | str]]


def digest_of(parts: Iterable[Part]) -> str:
    """Return the hexadecimal SHA-256 of named parts. Lengths are hashed too, so different lists of parts differ."""
    import hashlib

    digest = hashlib.sha256()
    for name, contents in parts:
        digest.update(f"{name} {len(contents)}\n".encode())
        for content in contents:
            encoded = content.encode() if isinstance(content, str) else content
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
    return digest.hexdigest()


def special_token_part(special_tokens: Mapping[str, int]) -> Part:
    """Return the part of special tokens in the order of their ids."""
    by_id = sorted(special_tokens.items(), key=lambda item: item[1])
    return "special tokens", [f"{i} {spelling}" for spelling, i in by_id]


def flag_parts(
    special_tokens: Mapping[str, int], added_flags: Mapping[str, Mapping[str, bool]], deciding: Sequence[str]
) -> Iterator[Part]:
    """Yield the part of the flags in `deciding` that decide where special tokens are found, if any is set."""
    flags = []
    for spelling, i in sorted(special_tokens.items(), key=lambda item: item[1]):
        if given := [flag for flag in deciding if added_flags.get(spelling, {}).get(flag)]:
            flags.append(f"{i} {' '.join(given)}")
    if flags:
        yield "flags", flags

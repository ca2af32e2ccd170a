"""What a tokenizer is, whatever file it came from: token bytes, merges, special tokens, pattern and semantics."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tokenizer.patterns import Pattern

# How a pretoken becomes ids.
BY_MERGES = "merges"  # the listed merge of lowest rank, leftmost first
WHOLE_FIRST = "whole pretoken, then merges"  # Hugging Face's ignore_merges
BY_RANKS = "whole pretoken, then ranks"  # tiktoken: any two neighbours whose bytes are a token, lowest id first


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """An immutable vocabulary. Ids without bytes (special tokens, and gaps) have None in `tokens`.

    For a vocabulary whose every token is what merging its own bytes gives, the three semantics give the same ids;
    the loaders then say BY_MERGES, so that fingerprints do not depend on the file's format.
    """

    tokens: list[bytes | None]
    merges: np.ndarray = field(repr=False)  # int32 (n, 3): left, right, merged id, in order; empty for BY_RANKS
    special_tokens: dict[str, int]
    pattern: Pattern
    semantics: str = BY_MERGES
    byte_ids: np.ndarray = field(init=False, repr=False)  # int32 (256,)

    def __post_init__(self):
        by_bytes = {token: i for i, token in enumerate(self.tokens) if token is not None}
        missing = [byte for byte in range(256) if bytes([byte]) not in by_bytes]
        if missing:
            raise ValueError(
                f"the vocabulary lacks {len(missing)} of the 256 single bytes (the first is 0x{missing[0]:02x}); "
                "a byte-level vocabulary has them all"
            )
        byte_ids = np.array([by_bytes[bytes([byte])] for byte in range(256)], dtype=np.int32)
        object.__setattr__(self, "byte_ids", byte_ids)
        for spelling, i in self.special_tokens.items():
            if not 0 <= i < len(self.tokens) or self.tokens[i] is not None:
                raise ValueError(f"the special token {spelling!r} has the id {i}, which is taken or out of range")
        if len(set(self.special_tokens.values())) != len(self.special_tokens):
            raise ValueError("two special tokens have the same id")

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """int32 (vocab_size,): bytes of each token, 0 for special tokens and gaps."""
        lengths = np.array([len(token or b"") for token in self.tokens], dtype=np.int32)
        lengths.flags.writeable = False
        return lengths

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all that decides ids; see DESIGN: the same whatever file format it was read from."""
        digest = hashlib.sha256()

        def add(name: str, *parts: bytes) -> None:
            digest.update(f"{name} {len(parts)}\n".encode())
            for part in parts:
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part)

        # Gaps at the end do not count; a special token's bytes are its spelling's, told apart below.
        held = [i for i, token in enumerate(self.tokens) if token is not None]
        add("ids", np.array(held, dtype="<i8").tobytes())
        add("tokens", *(self.tokens[i] for i in held))
        add("merges", np.ascontiguousarray(self.merges, dtype="<i4").tobytes())
        add("pattern", self.pattern.identity.encode())
        by_id = sorted(self.special_tokens.items(), key=lambda item: item[1])
        add("special tokens", *(f"{i} {spelling}".encode() for spelling, i in by_id))
        add("semantics", self.semantics.encode())
        return digest.hexdigest()


def trained_vocabulary(
    merges: np.ndarray, byte_order: bytes, special_tokens: tuple[str, ...], pattern: Pattern
) -> Vocabulary:
    """Special tokens first, then the bytes in `byte_order`, then the merges (int32 (n, 2), of symbols)."""
    first = len(special_tokens)
    tokens: list[bytes | None] = [None] * first
    tokens += [bytes([byte]) for byte in byte_order]
    for left, right in merges.tolist():
        tokens.append(tokens[first + left] + tokens[first + right])
    listed = np.empty((len(merges), 3), dtype=np.int32)
    listed[:, :2] = merges + first
    listed[:, 2] = np.arange(len(merges)) + first + 256
    return Vocabulary(
        tokens=tokens,
        merges=listed,
        special_tokens={spelling: i for i, spelling in enumerate(special_tokens)},
        pattern=pattern,
    )

"""The loss of groups of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lm.metrics.units import bits


@dataclass(frozen=True, kw_only=True)
class Group:
    """The loss of a group of tokens. Bits per byte are None without bytes, and if the loss is not a code length."""

    tokens: int
    bytes: int | None
    """None if the tokenizer loses text, which leaves the bytes of a token unknown"""
    bits_per_token: float
    bits_per_byte: float | None
    share: float
    """Share of all bits"""
    bits_per_original_byte: float | None = None
    """For a document, if the tokenizer loses text"""

    @property
    def per_byte(self) -> float | None:
        """Bits per byte, or per byte of the original."""
        return self.bits_per_original_byte if self.bits_per_byte is None else self.bits_per_byte


@dataclass(frozen=True, kw_only=True)
class NamedGroup(Group):
    """A group with its name."""

    name: str
    text: str = ""
    """The beginning of a document"""


class Groups:
    """Sums of nats, tokens and bytes by group."""

    def __init__(
        self, nats: np.ndarray, sizes: np.ndarray | None, per_byte: bool = True, original: bool = False
    ) -> None:
        """nats (N,). sizes: bytes (N,), None if unknown; with `original`, bytes of the original text."""
        self.nats, self.sizes, self.per_byte, self.original = nats, sizes, per_byte, original

    def of(self, groups: np.ndarray, count: int) -> list[Group | None]:
        """Return each of `count` groups, None if it has no tokens. `groups` (N,): the number of each token's group."""
        tokens = np.bincount(groups, minlength=count).tolist()
        nats = np.bincount(groups, self.nats, minlength=count).tolist()
        sizes = [None] * count
        if self.sizes is not None:
            sizes = np.bincount(groups, self.sizes, minlength=count).round().astype(int).tolist()
        rows, total = zip(tokens, sizes, nats, strict=True), self.nats.sum()
        return [group_of(*row, total, self.per_byte, self.original) if row[0] else None for row in rows]

    def rows(self, groups: np.ndarray, names: Sequence[str]) -> list[NamedGroup]:
        """Return the groups with tokens. `groups` (N,): the index in `names` of each token's group."""
        named = zip(names, self.of(groups, len(names)), strict=True)
        return [NamedGroup(name=name, **vars(group)) for name, group in named if group is not None]


def group_of(
    tokens: int, size: int | None, nats: float, total: float, per_byte: bool = True, original: bool = False
) -> Group:
    """Return a group of tokens with `nats`, out of the `total` nats of the split."""
    bits_per_byte = bits(nats / size) if size and per_byte else None
    return Group(
        tokens=tokens,
        bytes=size,
        bits_per_token=bits(nats / tokens),
        bits_per_byte=None if original else bits_per_byte,
        share=float(nats / total) if total else 0.0,
        bits_per_original_byte=bits_per_byte if original else None,
    )

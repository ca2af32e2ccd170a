"""The parts of an export to `transformers`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Ids = Mapping[str, int | list[int] | None]


@dataclass(frozen=True)
class Edges:
    """The ids that a tokenizer adds before a text, between two texts, and after the last."""

    before: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A run in the format of transformers."""

    title: str
    """Format and class"""
    parameters: int
    settings: dict[str, Any]
    """config.json, without special ids"""
    tensors: dict[str, Tensor]
    ids: Ids
    """Special ids of config.json"""
    edges: Edges | None
    """None: the tokenizer stays unchanged"""
    tokenizer_settings: dict[str, Any] = field(default_factory=dict)
    """Entries that tokenizer_config.json has too"""
    loading: str
    """Python code that loads the model"""
    scoring: str = ""
    """Code that continues it with the log-probability of a text"""

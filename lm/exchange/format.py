"""What a format of `transformers` can say, and the map between its tensors' names and ours.

A format is data: which values of each field of `ModelConfig` it expresses, which settings of config.json have one
meaning only here, and a list of entries, each a tensor of the format and those of ours that it holds. The list is read
in both directions, so what goes out comes back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from lm.config import ModelConfig

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "relu2": "relu2"}
SAME_ACTIVATION = {"gelu_pytorch_tanh": "gelu_new"}

SHAPE = {"vocab_size", "context_length", "layers", "width", "heads", "mlp_width", "norm_eps"}
SHAPE |= {"rotary_base", "rotary_factor", "rotary_original_length", "relative_buckets", "relative_distance"}
"""Fields that every format has a word for, where they mean something to it."""
TRAINING = {"dropout", "stochastic_depth", "document_mask", "zero_projections", "initialization", "attention"}
"""Fields that change no logits of a trained model: what a format does not know of them stays behind."""


@dataclass(frozen=True)
class Entry:
    """A tensor of the format and those of ours in it: one above the other by their rows, in so many groups in turn
    (GPT-NeoX has query, key and value of each head together), and transposed where the format has (inputs, outputs)."""

    theirs: str
    ours: tuple[str, ...]
    groups: int = 1
    transposed: bool = False

    def pack(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The format's tensor from ours."""
        rows = torch.cat([weights[name].unflatten(0, (self.groups, -1)) for name in self.ours], dim=1).flatten(0, 1)
        return (rows.T if self.transposed else rows).contiguous()

    def unpack(self, tensor: Tensor) -> dict[str, Tensor]:
        """Ours, of one shape where there are several, from the format's."""
        rows = tensor.T if self.transposed else tensor
        parts = rows.unflatten(0, (self.groups, -1)).chunk(len(self.ours), dim=1)
        return {name: part.flatten(0, 1).contiguous() for name, part in zip(self.ours, parts, strict=True)}


def layer(theirs: str, *ours: str, bias: bool = True, groups: int = 1, transposed: bool = False) -> Iterator[Entry]:
    """The entries of a layer's weight and, where it has one, its bias."""
    yield Entry(f"{theirs}.weight", tuple(f"{name}.weight" for name in ours), groups, transposed)
    if bias:
        yield Entry(f"{theirs}.bias", tuple(f"{name}.bias" for name in ours), groups)


@dataclass(frozen=True, kw_only=True)
class Format:
    """One family of `transformers`."""

    name: str
    model_type: str
    """As in config.json."""
    auto_class: str
    """The class of `transformers` that opens it."""
    prefix: str
    """Of the names; a file of the bare model leaves it out."""
    head: str = "lm_head."
    """Of the names that never have the prefix."""
    expresses: Mapping[str, tuple[Any, ...]]
    """Values of fields of `ModelConfig`; an empty tuple: all of them."""
    defaults: Mapping[str, Any]
    """What config.json means where it leaves a setting out."""
    needs: Mapping[str, tuple[Any, ...]]
    """Settings of config.json that have to have one of these values."""
    settings: Callable[[ModelConfig], dict[str, Any]]
    """What config.json says of the shape."""
    fields: Callable[[Mapping[str, Any], Mapping[str, Tensor]], dict[str, Any]]
    """The fields of `ModelConfig` from config.json, and from tensors where it leaves something open."""
    entries: Callable[[ModelConfig], Iterable[Entry]]
    zeros: Callable[[ModelConfig], dict[str, tuple[int, ...]]] = field(default=lambda config: {})
    """Tensors that the format has and the model has not, with their shapes: all zero, they change nothing."""
    copies: Callable[[ModelConfig], dict[str, str]] = field(default=lambda config: {})
    """Tensors of the format that repeat another one of it, which files may have or leave out."""
    written_copies: Callable[[ModelConfig], tuple[str, ...]] = field(default=lambda config: ())
    """Those that are written."""
    conflicts: Callable[[ModelConfig], list[str]] = field(default=lambda config: [])
    """What else the format cannot express, in the combination of fields: phrases as in `objections`."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Patterns in names of older or newer files, and what stands there now."""
    superfluous: tuple[str, ...] = ()
    """Patterns of names in such files that the model does not need: buffers, and parts beside it."""

    def objections(self, config: ModelConfig) -> list[str]:
        """What of `config` the format cannot express, a phrase each."""
        found = []
        for each in fields(ModelConfig):
            # A field that the format says nothing about has to have the value that it has by itself.
            allowed = self.expresses.get(each.name, (each.default,))
            value = getattr(config, each.name)
            idle = each.name in SHAPE | TRAINING or (each.name == "kv_heads" and value == config.heads)
            if allowed and value not in allowed and not idle:
                found.append(f"model.{each.name} = {_listed(allowed)}, not {value!r}")
        return found + self.conflicts(config)

    def check(self, settings: Mapping[str, Any]) -> None:
        """ValueError names the first setting of config.json of the wrong type, a size that is none, or one that means
        what we have not."""
        for name, default in self.defaults.items():
            kind = int if default is None else type(default)
            value = settings[name]
            fits = type(value) is kind or (kind is float and type(value) is int) or value is default
            if not fits:
                raise ValueError(f"config.json has {name} = {value!r}, but it must be of type {kind.__name__}")
            if kind is int and value is not None and value < 1:
                raise ValueError(f"config.json has {name} = {value}, but it must be 1 or more")
        for name, allowed in self.needs.items():
            if settings.get(name) not in allowed:
                raise ValueError(
                    f"config.json has {name} = {settings.get(name)!r}, which is not supported: {self.name} models are "
                    f"read with {_listed(allowed)}"
                )

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors under the names of the whole model, whichever way it was saved, without what is superfluous."""
        bare = not any(name.startswith(self.prefix) for name in tensors)
        found = {}
        for name, tensor in tensors.items():
            for pattern, instead in self.renamed.items():
                name = re.sub(pattern, instead, name)
            if bare and not name.startswith(self.head):
                name = self.prefix + name
            if not any(re.search(pattern, name) for pattern in self.superfluous):
                found[name] = tensor
        return found


def is_tied(head: str, embedding: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Whether the output matrix is the embedding: so config.json says, and the file has no other head of its own, which
    would count more in transformers, too."""
    own = head in tensors and not (embedding in tensors and torch.equal(tensors[head], tensors[embedding]))
    return settings["tie_word_embeddings"] and not own


def activation(name: str, known: Mapping[str, str], setting: str) -> str:
    """Our name of an activation; ValueError for one that we have not."""
    name = SAME_ACTIVATION.get(name, name)
    for ours, theirs in known.items():
        if theirs == name:
            return ours
    raise ValueError(
        f"config.json has {setting} = {name!r}, which is not supported: known are {_listed(known.values())}"
    )


def _listed(values: Collection[Any]) -> str:
    return " or ".join(map(repr, values))

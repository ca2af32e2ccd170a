"""The description of a format of `transformers`: a table of settings and a map of tensors, each read both ways.

A `Setting` is a row of config.json: its key, the field of `ModelConfig` that it holds, its default, and the conversion
in each direction. An `Entry` is a tensor of the format and our tensors in it. Both directions use the same rows, so an
exported model comes back unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from lm.config import ModelConfig

ABSENT = object()
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "relu2": "relu2"}
SYNONYMS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}  # gelu_fast rounds a constant

POSITION_FIELDS = {"rotary_base", "rotary_factor", "rotary_original_length", "relative_buckets", "relative_distance"}
"""Fields that one kind of positions uses; `ModelConfig` keeps them at their defaults with all others."""
TRAINING_FIELDS = {
    *("dropout", "hidden_dropout", "stochastic_depth", "document_mask", "zero_projections"),
    *("initialization", "attention", "layer_groups"),
}
"""Fields that do not change the logits of a trained model; a format without a setting for one drops it."""


@dataclass(frozen=True)
class Pretrained:
    """A model as a file of its format has it: settings, with defaults filled in, and tensors."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    source: str = "config.json"
    """File of the settings, for messages."""


@dataclass(frozen=True)
class Setting:
    """A row of config.json. Without `fields` and `write` it is only checked, never written."""

    key: str
    fields: str | tuple[str, ...] = ()
    """Fields of `ModelConfig` that the setting decides."""
    default: Any = ABSENT
    """Value where config.json leaves the key out, and the type that it must have; None: an optional int."""
    names: Mapping[str, str] | None = field(default=None, kw_only=True)
    """Format's name of each value of the field; other values cannot be expressed."""
    allowed: tuple[Any, ...] | None = field(default=None, kw_only=True)
    """Values that we can read."""
    least: int = field(default=1, kw_only=True)
    """Smallest value of an int."""
    write: Callable[[ModelConfig], Any] | None = field(default=None, kw_only=True)
    """Setting from the configuration, if not simply the field's value."""
    read: Callable[[Pretrained], Any] | None = field(default=None, kw_only=True)
    """Value of the field (of several: a tuple), if not simply the setting's."""

    def settings_from(self, config: ModelConfig) -> dict[str, Any]:
        """Return the key with its value for `config`, or nothing if the format leaves it out."""
        if self.write is not None:
            return {self.key: self.write(config)}
        if not isinstance(self.fields, str):
            return {}
        value = getattr(config, self.fields)
        return {self.key: value if self.names is None else self.names[value]}

    def fields_from(self, given: Pretrained) -> dict[str, Any]:
        """Return the fields of `ModelConfig` that the setting decides."""
        if not self.fields:
            return {}
        value = given.settings[self.key] if self.read is None else self.read(given)
        if self.names is not None:
            value = self._our_name(value, given.source)
        return {self.fields: value} if isinstance(self.fields, str) else dict(zip(self.fields, value, strict=True))

    def check(self, value: Any, format_name: str, source: str) -> None:
        """Raise ValueError for a value of the wrong type, a number below `least`, or a meaning that we do not have."""
        if self.default is not ABSENT:
            kind = int if self.default is None else type(self.default)
            fits = type(value) is kind or (kind is float and type(value) is int) or value is self.default
            if not fits:
                raise ValueError(f"{source} has {self.key} = {value!r}, but it must be of type {kind.__name__}")
            if kind is int and value is not None and value < self.least:
                raise ValueError(f"{source} has {self.key} = {value}, but it must be {self.least} or more")
        if self.allowed is not None and value not in self.allowed:
            raise ValueError(
                f"{source} has {self.key} = {value!r}, which is not supported: {format_name} models are read with "
                f"{_list_text(self.allowed)}"
            )

    def _our_name(self, name: str, source: str) -> str:
        assert self.names is not None
        for ours, theirs in self.names.items():
            if theirs == SYNONYMS.get(name, name):
                return ours
        raise ValueError(
            f"{source} has {self.key} = {name!r}, which is not supported: known are {_list_text(self.names.values())}"
        )


def constant(value: Any) -> Callable[[ModelConfig], Any]:
    """Return a `Setting.write` that writes `value` whatever the configuration."""
    return lambda config: value


def read_tying(head: str, embedding: str) -> Callable[[Pretrained], bool]:
    """Return a `Setting.read` of tie_word_embeddings: whether the output matrix is the embedding.

    In transformers, too, a tensor `head` that differs from the embedding overrides the setting.
    """
    return lambda given: given.settings["tie_word_embeddings"] and not has_own_head(given, head, embedding)


def has_own_head(given: Pretrained, head: str, embedding: str) -> bool:
    """Return whether there is an output matrix `head` that differs from the embedding."""
    tensors = given.tensors
    return head in tensors and not (embedding in tensors and torch.equal(tensors[head], tensors[embedding]))


@dataclass(frozen=True)
class Entry:
    """A tensor of the format and our tensors in it, stacked by rows.

    With several `groups` the rows interleave: GPT-NeoX has query, key and value of each head together. `transposed`
    formats store (inputs, outputs). With `paired_heads`, the two components that rotary positions rotate together are
    neighbours in each head of the format, while ours are half a head apart.
    """

    theirs: str
    ours: tuple[str, ...]
    groups: int = 1
    transposed: bool = False
    paired_heads: int = 0
    """Number of heads whose components are in pairs; 0: none are"""

    def pack(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the format's tensor from ours."""
        rows = torch.cat([weights[name].unflatten(0, (self.groups, -1)) for name in self.ours], dim=1).flatten(0, 1)
        if self.paired_heads:
            rows = rows.unflatten(0, (self.paired_heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        return (rows.T if self.transposed else rows).contiguous()

    def unpack(self, tensor: Tensor) -> dict[str, Tensor]:
        """Return our tensors, all of one shape, from the format's."""
        rows = tensor.T if self.transposed else tensor
        if self.paired_heads:
            rows = rows.unflatten(0, (self.paired_heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        parts = rows.unflatten(0, (self.groups, -1)).chunk(len(self.ours), dim=1)
        return {name: part.flatten(0, 1).contiguous() for name, part in zip(self.ours, parts, strict=True)}

    def checked(self, tensor: Tensor, expected: Mapping[str, Tensor], source: str = "config.json") -> dict[str, Tensor]:
        """Return our tensors in float32. `expected` are tensors of our model, on any device.

        Raises ValueError, by name, for a tensor of another shape, not floating-point or not finite.
        """
        shape = tuple(self.pack(expected).shape)
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{self.theirs} has the shape {tuple(tensor.shape)}, but {source} makes it {shape}: they are of two "
                "models"
            )
        if not tensor.is_floating_point():
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(f"{self.theirs} is {dtype}, not floating-point: use the model from before quantization")
        if not bool(tensor.float().isfinite().all()):
            raise ValueError(
                f"{self.theirs} holds values that are NaN or infinite in float32: use another copy of the weights"
            )
        return {name: part.float() for name, part in self.unpack(tensor).items()}


def layer(theirs: str, *ours: str, bias: bool = True, groups: int = 1, transposed: bool = False) -> Iterator[Entry]:
    """Yield the entries of a layer's weight and, if it has one, its bias."""
    yield Entry(f"{theirs}.weight", tuple(f"{name}.weight" for name in ours), groups, transposed)
    if bias:
        yield Entry(f"{theirs}.bias", tuple(f"{name}.bias" for name in ours), groups)


@dataclass(frozen=True, kw_only=True)
class Format:
    """One model family of `transformers`, or one architecture of llama.cpp."""

    name: str
    model_type: str
    """model_type of config.json."""
    auto_class: str
    """Class of transformers that opens the model."""
    prefix: str
    """Prefix of tensor names, which a file of the bare model leaves out."""
    head: str = "lm_head."
    """Start of the tensor names that never have the prefix."""
    fixed: Mapping[str, Any]
    """Fields of `ModelConfig` of which the format has one value only."""
    settings: tuple[Setting, ...]
    """Rows of config.json, in the order in which they are written."""
    entries: Callable[[ModelConfig], Iterable[Entry]]
    """Tensor map."""
    zeros: Callable[[ModelConfig], dict[str, tuple[int, ...]]] = field(default=lambda config: {})
    """Shapes of tensors that the format has and our model lacks: they are zero and change nothing."""
    copies: Callable[[ModelConfig], dict[str, str]] = field(default=lambda config: {})
    """Tensors that repeat another tensor of the format; files may leave them out."""
    written_copies: Callable[[ModelConfig], tuple[str, ...]] = field(default=lambda config: ())
    """Copies that an export writes."""
    conflicts: Callable[[ModelConfig], list[str]] = field(default=lambda config: [])
    """Combinations of fields that the format cannot express, phrased as in `objections`."""
    check_combination: Callable[[Mapping[str, Any]], None] = field(default=lambda settings: None)
    """Raises ValueError for settings that exclude each other in our models."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Patterns in tensor names of older or newer files, with their replacements."""
    superfluous: tuple[str, ...] = ()
    """Patterns of tensor names that no model reads: buffers."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Parts that our model does not have: patterns of their tensor names, each with the name of the part."""

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings of a config.json that leaves everything out."""
        return {setting.key: setting.default for setting in self.settings if setting.default is not ABSENT}

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Return the settings of config.json."""
        return {key: value for setting in self.settings for key, value in setting.settings_from(config).items()}

    def read(self, given: Pretrained) -> dict[str, Any]:
        """Return the fields of `ModelConfig`. Raises ValueError, by name, for a setting that we cannot express."""
        for setting in self.settings:
            setting.check(given.settings.get(setting.key), self.name, given.source)
        self.check_combination(given.settings)
        decided = {name: value for setting in self.settings for name, value in setting.fields_from(given).items()}
        return {**self.fixed, **decided}

    def objections(self, config: ModelConfig) -> list[str]:
        """Return a phrase for each field of `config` that the format cannot express."""
        expressed: dict[str, tuple[Any, ...] | None] = {name: (value,) for name, value in self.fixed.items()}
        allowed: tuple[Any, ...] | None  # None: every value
        for setting in self.settings:
            names = (setting.fields,) if isinstance(setting.fields, str) else setting.fields
            allowed = None if setting.names is None else tuple(setting.names)
            for name in names:
                expressed[name] = allowed
        mixers = {"mixer": "attention" if config.attention_only else config.mixer_names, "mixers": ()}
        found = []
        for option in fields(ModelConfig):
            # Without a setting only the default can be expressed.
            allowed = expressed.get(option.name, (option.default,))
            value = mixers.get(option.name, getattr(config, option.name))
            if allowed is None or value in allowed or option.name in POSITION_FIELDS | TRAINING_FIELDS:
                continue
            filled_in = {"kv_heads": config.heads, "head_width": config.width / config.heads}  # the same as 0
            filled_in["rotary_width"] = config.head_features
            if value == filled_in.get(option.name):
                continue
            found.append(f"model.{option.name} = {_list_text(allowed)}, not {value!r}")
        return found + self.conflicts(config)

    def canonical(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Return the tensors that the model needs, under the names of the complete model, and the parts left out."""
        bare = not any(name.startswith(self.prefix) for name in tensors)
        found, left_out = {}, set()
        for name, tensor in tensors.items():
            for pattern, replacement in self.renamed.items():
                name = re.sub(pattern, replacement, name)
            if bare and not name.startswith(self.head):
                name = self.prefix + name
            if part := next((part for pattern, part in self.left_out.items() if re.search(pattern, name)), None):
                left_out.add(part)
            elif not any(re.search(pattern, name) for pattern in self.superfluous):
                found[name] = tensor
        return found, [part for part in dict.fromkeys(self.left_out.values()) if part in left_out]


def _list_text(values: Collection[Any]) -> str:
    return " or ".join(map(repr, values))

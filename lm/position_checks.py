"""Kinds of positions, and checks of their fields in a model's configuration. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lm.config import ModelConfig

IN_SCORES = ("relative", "relative-keys", "alibi")
"""Positions that are added to attention scores."""
BIASES = ("relative", "alibi")
"""Members of IN_SCORES whose bias is shared by all layers."""
UNBOUNDED = (*IN_SCORES, "none")
"""Positions without a table of the context's length: any length works."""
_OWN_FIELDS = {
    "rotary_base": ("rotary",),
    "rotary_width": ("rotary",),
    "rotary_scaling": ("rotary",),
    "rotary_factor": ("rotary",),
    "rotary_original_length": ("rotary",),
    "relative_buckets": ("relative",),
    "relative_distance": ("relative", "relative-keys"),
    "position_offset": ("learned",),
}
"""Fields that only some kinds of positions use, with the names of these kinds."""
_MOST_DISTANCE = 10**6  # of relative keys, which have a row for each distance


def relative_rows(config: ModelConfig) -> int:
    """Return the number of relative keys: one for each distance back and for 0; outside decoders, also for each ahead.

    The decoder of an encoder-decoder has as many keys as its encoder, but never uses those for positions ahead.
    """
    return config.relative_distance * (1 if config.architecture == "decoder" else 2) + 1


def fitting_width(config: ModelConfig) -> str:
    """Return advice: the next width that heads divide, into even parts if positions pair features."""
    multiple = config.heads * (2 if config.positions in ("rotary", "sinusoidal") else 1)
    return f"try model.width={-(-config.width // multiple) * multiple}"


def check_positions(config: ModelConfig) -> None:
    """Raise ValueError, which names the field, for positions that the model cannot have."""
    if config.positions == "rotary" and config.rotary_features % 2:
        if config.rotary_width:
            raise ValueError(
                f"model.rotary_width is {config.rotary_width}, but rotary positions rotate pairs: try "
                f"model.rotary_width={max(2, config.rotary_width - 1)}"
            )
        if config.head_width:
            raise ValueError(
                f"model.head_width is {config.head_width}, and rotary positions rotate pairs: try "
                f"model.head_width={config.head_width + 1}"
            )
        raise ValueError(
            f"model.width={config.width} over model.heads={config.heads} gives heads of {config.head_features} "
            f"components, and rotary positions rotate pairs: {fitting_width(config)}"
        )
    if config.positions == "sinusoidal" and config.width % 2:
        raise ValueError(
            f"model.width is {config.width}, and sinusoidal positions pair a sine with a cosine: "
            f"{fitting_width(config)}"
        )
    for field, kinds in _OWN_FIELDS.items():
        value, default = getattr(config, field), getattr(type(config), field)
        if config.positions not in kinds and value != default:
            raise ValueError(
                f"model.{field} is {value!r}, but model.positions is {config.positions!r}: leave it at {default!r}, or "
                f"give model.positions={' or '.join(kinds)}"
            )
    if config.positions == "rotary":
        _check_rotary(config)
    if config.positions == "relative":
        _check_relative(config)
    if config.positions == "relative-keys" and not 1 <= config.relative_distance <= _MOST_DISTANCE:
        raise ValueError(
            f"model.relative_distance is {config.relative_distance}: relative keys need 1 to {_MOST_DISTANCE:,}, such "
            "as 16"
        )


def check_pattern(config: ModelConfig) -> None:
    """Raise ValueError, which names the field, for a sparse pattern of attention that cannot be."""
    kind = config.attention_pattern
    used = () if kind == "none" else ("pattern_size", "pattern_count")[: 1 if kind in ("dilated", "strided") else 2]
    for field in ("pattern_size", "pattern_count"):
        value, default = getattr(config, field), getattr(type(config), field)
        if field not in used and value != default:
            raise ValueError(
                f"model.{field} is {value}, but model.attention_pattern is {kind!r}, which has none: leave it at "
                f"{default}"
            )
        if value < 1:
            raise ValueError(f"model.{field} is {value}: give at least 1")
    if kind == "fixed" and config.pattern_count > config.pattern_size:
        raise ValueError(
            f"model.pattern_count is {config.pattern_count}, more than the {config.pattern_size} tokens of a block: "
            f"give at most model.pattern_count={config.pattern_size}"
        )


def check_sinks(config: ModelConfig, sinks: int, capacity: int) -> None:
    """Raise ValueError unless a cache of `capacity` tokens can keep `sinks` first tokens and the newest."""
    if not 0 <= sinks < capacity:
        raise ValueError(
            f"`sinks` is {sinks}, but must be from 0 to {capacity - 1}: the cache holds {capacity} tokens, the newest "
            "among them"
        )
    mixer = "attention" if config.attention_only else config.mixer_names  # model.mixers may name other mixers
    needed = {"architecture": "decoder", "mixer": "attention", "window": 0, "attention_pattern": "none"}
    for field, value in needed.items():
        found = mixer if field == "mixer" else getattr(config, field)
        if found != value:
            raise ValueError(
                f"`sinks` is {sinks}, but the model has model.{field}={found!r}: only a model with "
                f"model.{field}={value!r} needs a cache with sinks, so leave it out"
            )
    if config.positions in ("learned", "sinusoidal"):
        raise ValueError(
            f"`sinks` is {sinks}, but the model has positions={config.positions!r}, which are part of the embeddings, "
            "and a key in the cache cannot change its position: leave it out, or take a model with rotary positions, "
            "ALiBi, a relative bias, relative keys or none"
        )


def _check_rotary(config: ModelConfig) -> None:
    if config.rotary_width > config.head_features:
        raise ValueError(
            f"model.rotary_width is {config.rotary_width}, more than the {config.head_features} components of a head: "
            f"give at most model.rotary_width={config.head_features}"
        )
    if not config.rotary_base > 1.0:
        raise ValueError(f"model.rotary_base is {config.rotary_base}: give a number above 1, such as 10000")
    if not config.rotary_factor >= 1.0:
        raise ValueError(f"model.rotary_factor is {config.rotary_factor}: give 1 or more, such as 4")
    if config.rotary_scaling == "none" and config.rotary_factor != 1.0:
        raise ValueError(
            f"model.rotary_factor is {config.rotary_factor}, but model.rotary_scaling is 'none': leave it at 1, or "
            "choose a scaling, such as model.rotary_scaling=yarn"
        )
    if config.rotary_scaling != "none" and config.rotary_factor == 1.0:
        raise ValueError(
            f"model.rotary_scaling is {config.rotary_scaling!r}, but model.rotary_factor is 1, which scales nothing: "
            "give a factor, such as model.rotary_factor=4, or leave it at 'none'"
        )
    if config.rotary_scaling in ("yarn", "llama3") and not config.rotary_original_length:
        raise ValueError(
            f"model.rotary_scaling is {config.rotary_scaling!r}, which needs model.rotary_original_length: "
            "give the context length that was trained on"
        )
    if config.rotary_scaling in ("none", "linear") and config.rotary_original_length:
        raise ValueError(
            f"model.rotary_original_length is {config.rotary_original_length}, but model.rotary_scaling is "
            f"{config.rotary_scaling!r}: leave it at 0, or give model.rotary_scaling=yarn or llama3"
        )


def _check_relative(config: ModelConfig) -> None:
    if config.relative_buckets < 4 or config.relative_buckets % 4:
        raise ValueError(
            f"model.relative_buckets is {config.relative_buckets}: give a multiple of 4, such as 32, since a "
            "quarter of them are single distances of one direction"
        )
    if config.relative_distance <= config.relative_buckets // 2:
        raise ValueError(
            f"model.relative_distance is {config.relative_distance}: give more than half of "
            f"model.relative_buckets={config.relative_buckets}"
        )

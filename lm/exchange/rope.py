"""Rotary positions in config.json: a base, the share of rotated components, and the scaling for longer contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from lm.config import ModelConfig
from lm.exchange.format import Pretrained, Setting
from lm.positions import LLAMA3_HIGH, LLAMA3_LOW, YARN_FAST, YARN_SLOW

# Our rotation has these constants; None stands for the default of transformers.
CONSTANTS: dict[str, tuple[Any, ...]] = {
    "low_freq_factor": (None, LLAMA3_LOW),
    "high_freq_factor": (None, LLAMA3_HIGH),
    "beta_fast": (None, YARN_FAST),
    "beta_slow": (None, YARN_SLOW),
    "truncate": (None, True),
    "attention_factor": (None,),
    "mscale": (None,),
    "mscale_all_dim": (None,),
}
KINDS = {"default": "none", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}


def rope_setting(base: str, share: str = "") -> Setting:
    """Return the row of rope_scaling, which transformers 5 calls rope_parameters.

    `base` and `share` name the settings beside it that hold the base and the share of rotated components. Without
    `share`, transformers rotates all components.
    """
    fields: tuple[str, ...] = ("rotary_base", "rotary_scaling", "rotary_factor", "rotary_original_length")
    fields += ("rotary_width",) if share else ()
    return Setting("rope_scaling", fields, write=_write, read=partial(read_rope, base=base, share=share))


def rope_conflicts(config: ModelConfig) -> list[str]:
    """Return phrases as in `Format.objections`.

    Given the original length, transformers 4 ignores YaRN's factor and takes the ratio of the two lengths; transformers
    5 takes the factor.
    """
    if config.rotary_scaling != "yarn":
        return []
    ratio = config.context_length / config.rotary_original_length
    if config.rotary_factor == ratio:
        return []
    return [
        f"model.rotary_factor = {ratio!r} (model.context_length / model.rotary_original_length, which transformers 4 "
        f"takes instead), not {config.rotary_factor!r}"
    ]


def _write(config: ModelConfig) -> dict[str, Any] | None:
    if config.rotary_scaling == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": config.rotary_scaling, "factor": config.rotary_factor}
    if config.rotary_scaling == "llama3":
        scaling |= {"low_freq_factor": LLAMA3_LOW, "high_freq_factor": LLAMA3_HIGH}
    if config.rotary_scaling != "linear":
        scaling["original_max_position_embeddings"] = config.rotary_original_length
    return scaling


def rotary_share(config: ModelConfig) -> float:
    """Return the share of rotated components, from which transformers computes their number: int(D x share)."""
    share = config.rotary_features / config.head_features
    return share if int(config.head_features * share) == config.rotary_features else math.nextafter(share, 1.0)


def read_rope(given: Pretrained, base: str, share: str = "") -> tuple[Any, ...]:
    """Return the rotary fields of `ModelConfig`; `base` and `share` as in `rope_setting`.

    Raises ValueError for a kind of scaling, or a constant of it, that differs from ours, and for a value that is not a
    number or out of range.
    """
    settings = given.settings
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"config.json has rope_scaling = {rope!r}, but it must be an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in tuple(KINDS):
        raise ValueError(f"config.json has rope_type = {kind!r}, which is not supported: known are {', '.join(KINDS)}")
    for name, allowed in CONSTANTS.items():
        value = rope.get(name)
        if value not in allowed:
            raise ValueError(
                f"config.json has {name} = {value!r} of rotary positions: only {allowed[-1]!r} is supported"
            )
    width = _rotary_width(given, rope, share)
    theta = float(_number(rope, "rope_theta", settings[base]))
    factor = 1.0 if kind == "default" else float(_number(rope, "factor"))
    if factor == 1.0:
        return theta, "none", 1.0, 0, *width
    if kind == "linear":
        return theta, KINDS[kind], factor, 0, *width
    original = _number(rope, "original_max_position_embeddings", settings["max_position_embeddings"], kinds=(int,))
    return theta, KINDS[kind], factor, original, *width


def _rotary_width(given: Pretrained, rope: Mapping[str, Any], setting: str) -> tuple[int, ...]:
    """Return `rotary_width`, 0 for all components, or nothing for a format that has no partial rotation."""
    name = "partial_rotary_factor"
    if not setting:
        if rope.get(name) not in (None, 1.0):
            raise ValueError(f"config.json has {name} = {rope[name]!r} of rotary positions: only 1.0 is supported")
        return ()
    name = name if rope.get(name) is not None else setting
    share = _number(rope, name, given.settings[setting])
    if not 0.0 < share <= 1.0:
        raise ValueError(f"config.json has {name} = {share!r}, but it must be above 0 and at most 1")
    components = given.settings["hidden_size"] // given.settings["num_attention_heads"]
    rotated = int(components * share)  # as in transformers
    if rotated == components:
        return (0,)
    if rotated % 2 or not rotated:
        raise ValueError(
            f"config.json has {name} = {share!r}, which rotates {rotated} of the {components} components of a head: "
            "bytelm rotates an even number, at least 2"
        )
    return (rotated,)


def _number(
    rope: Mapping[str, Any], name: str, default: float | None = None, kinds: tuple[type, ...] = (int, float)
) -> Any:
    """Return a setting of rotary positions, or `default` if it is left out."""
    value = rope.get(name)
    value = default if value is None else value
    if type(value) not in kinds:
        expected = "a number" if float in kinds else "a whole number"
        raise ValueError(f"config.json has {name} = {value!r} of rotary positions, but it must be {expected}")
    return value

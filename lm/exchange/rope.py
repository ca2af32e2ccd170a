"""Rotary positions in config.json: a base, and how it is scaled for longer contexts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lm.config import ModelConfig
from lm.positions import LLAMA3_HIGH, LLAMA3_LOW, YARN_FAST, YARN_SLOW

# What these say by default is what ours do; anything else is another rotation.
FIXED: dict[str, tuple[Any, ...]] = {
    "low_freq_factor": (None, LLAMA3_LOW),
    "high_freq_factor": (None, LLAMA3_HIGH),
    "beta_fast": (None, YARN_FAST),
    "beta_slow": (None, YARN_SLOW),
    "truncate": (None, True),
    "attention_factor": (None,),
    "mscale": (None,),
    "mscale_all_dim": (None,),
    "partial_rotary_factor": (None, 1.0),
}
KINDS = {"default": "none", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}


def rope_scaling(config: ModelConfig) -> dict[str, Any] | None:
    """The setting rope_scaling, which transformers reads since version 4."""
    if config.rotary_scaling == "none":
        return None
    scaling: dict[str, Any] = {"rope_type": config.rotary_scaling, "factor": config.rotary_factor}
    if config.rotary_scaling == "llama3":
        scaling |= {"low_freq_factor": LLAMA3_LOW, "high_freq_factor": LLAMA3_HIGH}
    if config.rotary_scaling != "linear":
        scaling["original_max_position_embeddings"] = config.rotary_original_length
    return scaling


def rope_conflicts(config: ModelConfig) -> list[str]:
    """Phrases as in `Format.objections`. Beside the original length transformers 4 ignores YaRN's factor and takes the
    ratio of the two lengths; 5 takes the factor."""
    if config.rotary_scaling != "yarn":
        return []
    ratio = config.context_length / config.rotary_original_length
    if config.rotary_factor == ratio:
        return []
    return [
        f"model.rotary_factor = {ratio!r} (model.context_length / model.rotary_original_length, which transformers 4 "
        f"takes instead), not {config.rotary_factor!r}"
    ]


def rotary_fields(settings: Mapping[str, Any], base: float, share: float | None = None) -> dict[str, Any]:
    """The rotary fields of `ModelConfig` from a config.json of transformers 4 (rope_scaling) or 5 (rope_parameters).

    `base` and `share`, of the components that are rotated: as its other settings say. ValueError for a kind of scaling,
    or a constant of one, that ours is not, and for what is no number where one is needed.
    """
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"config.json has rope_scaling = {rope!r}, but it must be an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in tuple(KINDS):
        raise ValueError(f"config.json has rope_type = {kind!r}, which is not supported: known are {', '.join(KINDS)}")
    for name, allowed in FIXED.items():
        value = rope.get(name, share if name == "partial_rotary_factor" else None)
        if value not in allowed:
            raise ValueError(
                f"config.json has {name} = {value!r} of rotary positions: only {allowed[-1]!r} is supported"
            )
    fields = {"positions": "rotary", "rotary_base": float(_number(rope, "rope_theta", base))}
    if kind == "default":
        return fields
    factor = float(_number(rope, "factor"))
    if factor == 1.0:  # once as long is as long as it was
        return fields
    fields |= {"rotary_scaling": KINDS[kind], "rotary_factor": factor}
    if kind != "linear":
        original = _number(rope, "original_max_position_embeddings", settings["max_position_embeddings"], kinds=(int,))
        fields["rotary_original_length"] = original
    return fields


def _number(
    rope: Mapping[str, Any], name: str, default: float | None = None, kinds: tuple[type, ...] = (int, float)
) -> Any:
    """That setting of rotary positions, or `default` where it is left out."""
    value = rope.get(name)
    value = default if value is None else value
    if type(value) not in kinds:
        expected = "a number" if float in kinds else "a whole number"
        raise ValueError(f"config.json has {name} = {value!r} of rotary positions, but it must be {expected}")
    return value

"""A trained model that reads another number of tokens than in training. Imports no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from lm.config import ModelConfig

ContextScaling = Literal["none", "linear", "ntk", "yarn"]
"""Change of rotary frequencies: none, linear and yarn as in `ModelConfig.rotary_scaling`; ntk: a larger base."""


def with_context(config: ModelConfig, length: int, scaling: ContextScaling = "none") -> ModelConfig:
    """Return the configuration that reads `length` tokens with the weights of a model of `config`.

    With s = length / context_length, linear and yarn scale the frequencies of rotary positions by s. ntk replaces the
    base b by b s^(R / (R - 2)) for R rotated components: the fastest frequency stays, and the slowest is divided by s
    (bloc97 2023; `dynamic` of transformers at the longest text).

    Raises ValueError if the model cannot read so many tokens, or if it has no frequencies to scale.
    """
    trained = config.context_length
    if length < 1:
        raise ValueError(f"`context` is {length}: give at least 1 token")
    if length > trained and config.positions == "learned":
        raise ValueError(
            f"`context` is {length}, but the model has learned positions: a vector for each of the {trained} positions "
            f"of its training and none beyond. Give at most {trained}, or train a run from it with "
            f"`init_from` and model.context_length={length}"
        )
    if scaling == "none":
        return replace(config, context_length=length)
    if config.positions != "rotary":
        raise ValueError(
            f"`rotary_scaling` is {scaling!r}, but the model has positions={config.positions!r}: leave it out"
        )
    if config.rotary_scaling != "none":
        raise ValueError(
            f"`rotary_scaling` is {scaling!r}, but the model has rotary_scaling={config.rotary_scaling!r} from its "
            "training: leave it out"
        )
    if length <= trained:
        raise ValueError(
            f"`rotary_scaling` is {scaling!r}, which is for reading beyond the trained length of {trained} tokens: "
            f"give a longer `context`, such as {4 * trained}"
        )
    return replace(config, context_length=length, **_scaled(config, length / trained, scaling))


def _scaled(config: ModelConfig, factor: float, scaling: ContextScaling) -> dict[str, Any]:
    """Return the fields that scale rotary positions by `factor`."""
    if scaling != "ntk":
        original = config.context_length if scaling == "yarn" else 0
        return {"rotary_scaling": scaling, "rotary_factor": factor, "rotary_original_length": original}
    rotated = config.rotary_features
    if rotated == 2:
        raise ValueError("`rotary_scaling` is 'ntk', but a head rotates one pair: give 'linear' or 'yarn'")
    return {"rotary_base": config.rotary_base * factor ** (rotated / (rotated - 2))}

"""Cross-layer sharing: groups of consecutive blocks with the same weights (ALBERT, Lan et al. 2020, 3.1).

Imports no torch, because command lines are built from configurations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lm.config import ModelConfig


def first_of_group(config: ModelConfig, layer: int, layers: int) -> int:
    """Return the index of the first block in the group of block `layer`, in a stack of `layers` blocks.

    The weights of a group are saved under the name of this block.
    """
    size = layers // (config.layer_groups or layers)
    return layer - layer % size


def distinct_layers(config: ModelConfig, layers: int) -> range:
    """Return the index of the first block of each group in a stack of `layers` blocks. Other blocks add no weights."""
    return range(0, layers, layers // (config.layer_groups or layers))


def check_layer_groups(config: ModelConfig) -> None:
    """Raise ValueError, which names the field, unless all blocks of a group can have the same weights."""
    groups = config.layer_groups
    if not groups:
        return
    decoder_layers = {"decoder_layers": config.decoder_layers} if config.decoder_layers else {}
    for field, layers in {"layers": config.layers, **decoder_layers}.items():
        if layers % groups:
            fitting = max(count for count in range(1, min(groups, layers) + 1) if layers % count == 0)
            raise ValueError(
                f"model.layer_groups is {groups}, which does not divide model.{field}={layers}: try "
                f"model.layer_groups={fitting}"
            )
        for layer in range(layers):
            first = first_of_group(config, layer, layers)
            if config.mixer_of(layer) != config.mixer_of(first):
                raise ValueError(
                    f"model.layer_groups is {groups}, but with model.{field}={layers}, layers {first} and {layer} of "
                    f"one group have the mixers {config.mixer_of(first)!r} and {config.mixer_of(layer)!r}: give a "
                    "group one mixer"
                )
    differ = {
        "value_embeddings": config.value_embeddings > 0,
        "embedding_norm": config.embedding_norm and config.norm_places.before,
    }
    for field, differs in differ.items():
        if differs and groups < config.layers:
            raise ValueError(
                f"model.layer_groups is {groups}, but with model.{field}={getattr(config, field)!r} blocks of one "
                f"group have different parts: leave model.layer_groups or model.{field} out"
            )

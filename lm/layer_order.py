"""The layers of a model from the lowest to the highest. Fine-tuning may treat layers differently.

In an encoder-decoder, the blocks of the decoder are above the blocks of the encoder.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lm.initialization import Initializer
from lm.model import Stack
from lm.task_model import TrainedModel


def layers(model: TrainedModel) -> list[list[nn.Parameter]]:
    """Return the parameters of each layer: the embedding with positions, each block, and everything above the blocks.

    Every parameter of the model is in exactly one layer. Blocks that share weights are one layer. A tied output matrix
    is in the embedding. In an encoder-decoder, the final norm of the encoder belongs to the encoder's highest block.
    """
    blocks, above = [], list(model.head.parameters())
    for stack in _stacks(model):
        blocks += [list(block.parameters()) for block in stack.distinct_blocks]
        top = above if stack is model.stack else blocks[-1]
        top += stack.final_norm.parameters()
    known = {id(parameter) for layer in (*blocks, above) for parameter in layer}
    below = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return [below, *blocks, above]


def rate_factors(model: TrainedModel, decay: float) -> dict[Tensor, float]:
    """Return the learning-rate factor of each parameter: decay^(N - l) in block l of N, decay^N below the blocks.

    Howard and Ruder 2018, 3.2; Clark et al. 2020. Parameters above the blocks have the factor 1.
    """
    order = layers(model)
    top = len(order) - 2
    return {parameter: decay ** max(0, top - place) for place, layer in enumerate(order) for parameter in layer}


def freeze(model: TrainedModel, blocks: int | Literal["all"]) -> None:
    """Freeze the embedding and the lowest `blocks` blocks, or with "all" everything but the head. 0: no change."""
    if blocks == "all":
        model.requires_grad_(False)
        model.head.requires_grad_(True)
        return
    for layer in layers(model)[: blocks + 1] if blocks else ():
        for parameter in layer:
            parameter.requires_grad_(False)


@torch.no_grad()
def reinitialize(model: TrainedModel, blocks: int, seed: int) -> None:
    """Fill the highest `blocks` blocks with random weights, a function of the configuration and `seed`."""
    initializer = Initializer(model.config, torch.Generator().manual_seed(seed))
    found = [block for stack in _stacks(model) for block in stack.distinct_blocks]
    for block in found[len(found) - blocks :]:
        block.initialize(initializer)


def _stacks(model: TrainedModel) -> list[Stack]:
    """Return the stacks of the model, the lower one first."""
    return list(dict.fromkeys(stack for stack in (model.encoder, model.stack) if stack is not None))

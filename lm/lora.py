"""Low-rank adapters: small matrices that train beside the frozen weights of linear layers (Hu et al. 2021).

A new adapter changes nothing, because its second matrix is 0. `merge_lora` merges trained adapters into the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.blocks import Block
from lm.initialization import Initializer
from lm.layers import Linear
from lm.lora_config import ALL, LoraConfig
from lm.model import Stack
from lm.shared_weights import share_weights
from lm.task_model import TaskModel, TrainedModel

A, B = ".lora_a", ".lora_b"
"""Suffixes of the names of an adapter's matrices in a `state_dict`"""


class LoraLinear(Linear):
    """Computes x W^T + b + (alpha / rank) (x A^T) B^T, in the dtype of x.

    A (rank, inputs) and B (outputs, rank) train; W and b do not.
    """

    def __init__(self, layer: Linear, config: LoraConfig) -> None:
        """Share the weight and the bias of `layer`."""
        outputs, inputs = layer.weight.shape
        super().__init__(0, 0, False, layer.residual_writes, layer.gain)
        self.weight, self.bias = layer.weight, layer.bias
        self.lora_a = nn.Parameter(torch.empty(config.rank, inputs, device=layer.weight.device))
        self.lora_b = nn.Parameter(torch.empty(outputs, config.rank, device=layer.weight.device))
        self.dropout, self.scale, self.operations = nn.Dropout(config.dropout), config.scale, layer.operations

    def forward(self, x: Tensor) -> Tensor:
        narrow = F.linear(self.dropout(x), self.lora_a.to(x.dtype))
        return super().forward(x) + F.linear(narrow, self.lora_b.to(x.dtype)) * self.scale

    @property
    def matrix(self) -> Tensor:
        return self.weight + self.scale * self.lora_b @ self.lora_a

    def reset_parameters(self, initializer: Initializer) -> None:
        super().reset_parameters(initializer)
        self.reset_adapter(initializer.generator)

    @torch.no_grad()
    def reset_adapter(self, generator: torch.Generator) -> None:
        """Fill A uniformly in +-1 / sqrt(inputs) (Kaiming's with a = sqrt(5)) and B with 0, as in peft."""
        limit = self.lora_a.shape[1] ** -0.5
        self.lora_a.uniform_(-limit, limit, generator=generator)
        self.lora_b.zero_()

    @torch.no_grad()
    def merge(self) -> None:
        """Replace W by `matrix` and B by 0, as new parameters: other layers that share W and B do not change."""
        self.weight = nn.Parameter(self.matrix)
        self.lora_b = nn.Parameter(torch.zeros_like(self.lora_b))

    def flops(self, rows: float) -> float:
        """Return the training FLOPs of `rows` rows."""
        return super().flops(rows) + 6 * (self.lora_a.numel() + self.lora_b.numel()) * rows


def add_lora(model: TrainedModel, config: LoraConfig, seed: int = 0) -> None:
    """Add adapters to the linear layers that `config` names. Freeze all other weights except the head of a task.

    The adapters are a function of the shapes, `config` and `seed`. With rank 0, nothing changes. Raises ValueError for
    a target that no block has.
    """
    if not config.rank:
        return
    layers = list(_linear_layers(model))
    names = dict.fromkeys(name for _, name, _ in layers)
    if unknown := [target for target in config.targets if target not in (*names, ALL)]:
        raise ValueError(
            f"`lora.targets` names {unknown[0]!r}, but the linear layers of the blocks are {', '.join(names)}: name "
            f"some of them, or {ALL}"
        )
    model.requires_grad_(False)
    if isinstance(model, TaskModel):
        model.head.requires_grad_(True)
    for layer in [module for module in model.modules() if isinstance(module, Linear)]:
        layer.operations = 6 if layer.weight.requires_grad else 4
    generator = torch.Generator().manual_seed(seed)
    for parent, name, layer in layers:
        if name in config.targets or ALL in config.targets:
            adapted = LoraLinear(layer, config)
            adapted.reset_adapter(generator)
            setattr(parent, name, adapted)
    for stack in [module for module in model.modules() if isinstance(module, Stack)]:
        share_weights(stack)


def merge_lora(weights: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Return the weights of the equivalent plain model: W + scale B A instead of W, A and B."""
    merged = {name: tensor for name, tensor in weights.items() if not name.endswith((A, B))}
    for name in [name.removesuffix(A) for name in weights if name.endswith(A)]:
        low_rank = weights[name + B] @ weights[name + A]
        merged[f"{name}.weight"] = merged[f"{name}.weight"] + scale * low_rank
    return merged


def _linear_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, Linear]]:
    """Yield (parent, name in the parent, layer) of each linear layer inside a block."""
    for block in [module for module in model.modules() if isinstance(module, Block)]:
        for parent in block.modules():
            for name, layer in parent.named_children():
                if isinstance(layer, Linear):
                    yield parent, name, layer

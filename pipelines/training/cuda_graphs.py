"""CUDA graphs of a compiled model: one launch for all kernels of a pass.

The kernels of a small model take less time than their launches. Off by default, because it has not run on a GPU.

A graph overwrites its outputs at its next call. The loss and the backward pass read them before that. Gradients outlive
the call, so they have memory that no graph writes to.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from pipelines.recipes.config import TrainConfig


def uses_graphs(config: TrainConfig, device: torch.device, kind: str, one_shape: bool) -> bool:
    """Return whether the model runs as CUDA graphs: compiled, on one GPU, and only if all batches have one shape.

    `kind` is that of the training strategy.
    """
    return config.cuda_graphs and config.compile and device.type == "cuda" and kind == "none" and one_shape


def compile_to_graphs(model: nn.Module) -> Callable[..., Tensor]:
    """Return the model compiled to CUDA graphs. Each call overwrites the output of the call before."""
    compiled = torch.compile(model, mode="reduce-overhead")

    def forward(**tensors: Tensor) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        hidden: Tensor = compiled(**tensors)
        return hidden

    return forward


def own_gradients(parameters: Iterable[Tensor]) -> None:
    """Give every parameter without a gradient one of zeros.

    Autograd adds to a gradient that exists. Otherwise it keeps the first one without a copy, and the graph's next
    backward pass would overwrite it (https://github.com/pytorch/pytorch/issues/96693).
    """
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)

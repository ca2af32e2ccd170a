"""Who gets what at the start: one function, whose docstring is the table."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

STANDARD_DEVIATION = 0.02
WRITING = ("attention.output.weight", "mlp.down.weight")  # cross_attention's too
ONES = ("norm.weight", "residual_scales")
ZEROS = ("bias", "embedding_scales")


@torch.no_grad()
def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Fill every parameter of a model with a `config`, as its `initialization` says.

    gpt2 (Radford et al. 2019, 2.3) and xavier (Glorot and Bengio 2010, uniform, as the original Transformer's code).
    R: how often a stack writes to its residual stream, 2 a block, 3 with cross-attention.

    | parameter                                              | gpt2                        | xavier                    |
    |--------------------------------------------------------|-----------------------------|---------------------------|
    | embeddings, learned positions, relative bias           | normal, std 0.02            | normal, std 1/sqrt(width) |
    | untied output matrix                                   | normal, std 0.02            | normal, std 1/sqrt(width) |
    | query, key, value; mlp.up, mlp.gate; heads' matrices   | normal, std 0.02            | U(-a, a), a = sqrt(6 /    |
    |                                                        |                             | (inputs + outputs))       |
    | attention.output, mlp.down: they write to the residual | normal, std 0.02 / sqrt(R), | the same                  |
    | stream R times, and its variance stays put             | so that it does             |                           |
    | the same with `zero_projections`                       | 0                           | 0                         |
    | weights of norms; what a block keeps of the stream     | 1                           | 1                         |
    | what a block takes of the embedding                    | 0                           | 0                         |
    | scale of value embeddings                              | 0.5                         | 0.5                       |
    | biases                                                 | 0                           | 0                         |

    (GPT-2's released code draws learned positions with std 0.01; everybody after it uses 0.02.) A gate is one matrix
    beside `up` and is drawn alike. Parameters are drawn in the order of `named_parameters`, so the generator's seed
    decides all of them.
    """
    config = model.config
    draw = _gpt2 if config.initialization == "gpt2" else _xavier
    for name, parameter in model.named_parameters():
        if name.endswith(ZEROS) or (config.zero_projections and name.endswith(WRITING)):
            parameter.zero_()
        elif name.endswith(ONES):
            parameter.fill_(1.0)
        elif name.endswith("value_scale"):
            parameter.fill_(0.5)
        else:
            draw(model, name, parameter, generator)


def _gpt2(model: nn.Module, name: str, parameter: Tensor, generator: torch.Generator) -> None:
    deviation = STANDARD_DEVIATION
    if name.endswith(WRITING):
        deviation /= math.sqrt(_writes(model, name))
    parameter.normal_(0.0, deviation, generator=generator)


def _xavier(model: nn.Module, name: str, parameter: Tensor, generator: torch.Generator) -> None:
    if _is_table(model, name):
        parameter.normal_(0.0, model.config.width**-0.5, generator=generator)
    else:
        limit = math.sqrt(6.0 / sum(parameter.shape))
        parameter.uniform_(-limit, limit, generator=generator)


def _is_table(model: nn.Module, name: str) -> bool:
    """Whether rows of the parameter belong to tokens, positions or distances, rather than its columns to inputs."""
    owner = model.get_submodule(name.rpartition(".")[0])
    return type(owner).__name__ in ("Embedding", "RelativeBias", "NextTokenHead", "MaskedTokenHead")


def _writes(model: nn.Module, name: str) -> int:
    """How often the stack of this parameter writes to its residual stream."""
    config = model.config
    decoding = ".cross_attention." in name or "decoder." in name
    layers = (config.decoder_layers or config.layers) if decoding else config.layers
    sublayers = 1 + config.mlp + (decoding and config.architecture == "encoder-decoder")
    return sublayers * layers

"""Who gets what at the start: one function, whose docstring is the table."""

from __future__ import annotations

import math

import torch
from torch import nn

STANDARD_DEVIATION = 0.02


@torch.no_grad()
def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Fill every parameter of a LanguageModel as GPT-2 does (Radford et al. 2019, 2.3). N: layers.

    | parameter                                              | value                       |
    |--------------------------------------------------------|-----------------------------|
    | token embedding, learned positions, untied output      | normal, std 0.02            |
    | query, key, value; mlp.up, mlp.gate; the head's dense  | normal, std 0.02            |
    | attention.output, mlp.down (they write to the residual | normal, std 0.02 / sqrt(2N) |
    | stream 2N times, and its variance stays put)           |                             |
    | weights of norms                                       | 1                           |
    | biases, of linear layers, norms and the head           | 0                           |

    (GPT-2's released code draws learned positions with std 0.01; everybody after it uses 0.02.)
    Parameters are drawn in the order of `named_parameters`, so the generator's seed decides all of them.
    """
    residual = STANDARD_DEVIATION / math.sqrt(2 * model.config.layers)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif name.endswith("norm.weight"):
            parameter.fill_(1.0)
        elif name.endswith(("attention.output.weight", "mlp.down.weight")):
            parameter.normal_(0.0, residual, generator=generator)
        else:
            parameter.normal_(0.0, STANDARD_DEVIATION, generator=generator)

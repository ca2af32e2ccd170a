"""Initial values of parameters: the two schemes that modules draw from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm.config import ModelConfig

STANDARD_DEVIATION = 0.02


class Initializer:
    """Fills parameters by the scheme that `config.initialization` names, with one generator.

    gpt2 follows Radford et al. 2019, 2.3. xavier follows Glorot and Bengio 2010, uniform, as the code of the original
    Transformer. R is the number of sub-layers that write to a residual stream: 2 a block, 3 with cross-attention.

    | kind                                                  | gpt2                        | xavier                     |
    |-------------------------------------------------------|-----------------------------|----------------------------|
    | table: embeddings, learned positions, relative bias,  | normal, std 0.02            | normal, std 1/sqrt(width)  |
    | untied output matrix                                  |                             |                            |
    | matrix: every linear layer                            | normal, std 0.02            | U(-a, a),                  |
    |                                                       |                             | a = sqrt(6 / (in + out))   |
    | matrix that writes to the residual stream             | normal, std 0.02 / sqrt(R): | as any matrix              |
    |                                                       | the variance stays constant |                            |
    | the same with `zero_projections`                      | 0                           | 0                          |

    Modules set the rest themselves: 1 for the weights of norms, 0 for biases, and their own scales. GPT-2's released
    code draws learned positions with std 0.01; later code uses 0.02.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        self.config = config
        self.generator = generator

    def table(self, parameter: Tensor) -> None:
        """Fill a table whose rows belong to tokens, positions or distances."""
        xavier = self.config.initialization == "xavier"
        deviation = self.config.width**-0.5 if xavier else STANDARD_DEVIATION
        parameter.normal_(0.0, deviation, generator=self.generator)

    def matrix(self, parameter: Tensor, residual_writes: int = 0) -> None:
        """Fill a weight (outputs, inputs); `residual_writes`: R if it writes to a residual stream, else 0."""
        if residual_writes and self.config.zero_projections:
            parameter.zero_()
        elif self.config.initialization == "xavier":
            limit = math.sqrt(6.0 / sum(parameter.shape))
            parameter.uniform_(-limit, limit, generator=self.generator)
        else:
            deviation = STANDARD_DEVIATION / math.sqrt(residual_writes or 1)
            parameter.normal_(0.0, deviation, generator=self.generator)

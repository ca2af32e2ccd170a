"""Initial values of parameters: the schemes that modules draw from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lm.config import ModelConfig

STANDARD_DEVIATION = 0.02


class Initializer:
    """Fills parameters by the scheme that `config.initialization` names, with one generator.

    gpt2 follows Radford et al. 2019, 2.3. xavier follows Glorot and Bengio 2010, uniform, as the code of the original
    Transformer. t5 follows the code of Raffel et al. 2020: the outputs of every layer have variance 1, and so have the
    attention scores, although T5 does not divide them by sqrt(D). R is the number of sub-layers that write to a
    residual stream: 2 per block, 3 with cross-attention. D is the width of an attention head.

    | kind                                        | gpt2                 | xavier                | t5                  |
    |---------------------------------------------|----------------------|-----------------------|---------------------|
    | embedding: tokens, learned positions        | normal, std 0.02     | normal,               | normal, std 1       |
    |                                             |                      | std 1/sqrt(width)     |                     |
    | table: relative bias, untied output matrix  | normal, std 0.02     | normal,               | normal,             |
    |                                             |                      | std 1/sqrt(width)     | std 1/sqrt(width)   |
    | matrix: every linear layer                  | normal, std 0.02     | U(-a, a),             | normal,             |
    |                                             |                      | a = sqrt(6/(in+out))  | std 1/sqrt(in)      |
    | query matrix of unscaled attention          | as any matrix        | as any matrix         | normal,             |
    |                                             |                      |                       | std 1/sqrt(in D)    |
    | matrix that writes to the residual stream   | normal, std          | as any matrix         | as any matrix       |
    |                                             | 0.02/sqrt(R): the    |                       |                     |
    |                                             | variance stays       |                       |                     |
    | the same with `zero_projections`            | 0                    | 0                     | 0                   |

    Modules set the rest themselves: 1 for the weights of norms, 0 for biases, and their own scales. GPT-2's released
    code draws learned positions with std 0.01; later code uses 0.02.
    """

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        self.config = config
        self.generator = generator

    def embedding(self, parameter: Tensor) -> None:
        """Fill a table whose rows are added to the residual stream, or to values."""
        if self.config.initialization == "t5":
            parameter.normal_(0.0, 1.0, generator=self.generator)
        else:
            self.table(parameter)

    def table(self, parameter: Tensor) -> None:
        """Fill a table whose rows belong to tokens or distances."""
        small = self.config.initialization == "gpt2"
        deviation = STANDARD_DEVIATION if small else self.config.width**-0.5
        parameter.normal_(0.0, deviation, generator=self.generator)

    def matrix(self, parameter: Tensor, residual_writes: int = 0, gain: float = 1.0) -> None:
        """Fill a weight (outputs, inputs).

        residual_writes: R if it writes to a residual stream, else 0. gain: factor on the standard deviation, t5 and
        xavier only.
        """
        if residual_writes and self.config.zero_projections:
            parameter.zero_()
        elif self.config.initialization == "xavier":
            limit = gain * math.sqrt(6.0 / sum(parameter.shape))
            parameter.uniform_(-limit, limit, generator=self.generator)
        elif self.config.initialization == "t5":
            parameter.normal_(0.0, gain * parameter.shape[1] ** -0.5, generator=self.generator)
        else:
            deviation = STANDARD_DEVIATION / math.sqrt(residual_writes or 1)
            parameter.normal_(0.0, deviation, generator=self.generator)


def deepnorm_scales(config: ModelConfig, cross: bool) -> tuple[float, float]:
    """Return DeepNorm's factor of the residual stream, and its gain; 1 and 1 for other norm positions.

    With depth the factor grows and the gain falls, so that updates stay small (Wang et al. 2022, figure 2). The gain
    belongs to the matrices of values and attention outputs and to the MLP. `cross`: whether the stack has
    cross-attention.
    """
    if config.norm_position != "deepnorm":
        return 1.0, 1.0
    n, m = config.layers, config.decoder_layers or config.layers
    if config.architecture != "encoder-decoder":
        return (2 * n) ** 0.25, (8 * n) ** -0.25
    if cross:
        return (3 * m) ** 0.25, (12 * m) ** -0.25
    return 0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)

"""What a model costs: parameters, FLOPs and memory. Imports no torch."""

from dataclasses import replace
from typing import TypedDict

from lm.config import ModelConfig
from lm.config_costs import (
    ITEMSIZE,
    activation_bytes,
    cache_bytes,
    flops_per_token,
    matrix_parameters,
    non_embedding_parameters,
    parameter_table,
    training_bytes,
)
from lm.optim.optimizer_settings import OPTIMIZERS, OptimizerKind

ASSUMED_VOCABULARY = 8192
"""Entries of a model without a vocabulary size, such as that of a recipe."""


class ModelCosts(TypedDict):
    """Costs of a model; sizes are in bytes."""

    vocab_size: int
    parameters: dict[str, int]
    """By component, and in total."""
    parameters_tied: dict[str, int]
    parameters_untied: dict[str, int]
    non_embedding: int
    """Parameters without embeddings, positions and output matrix."""
    biases_and_norms: int
    flops_per_token: float
    """Forward and backward pass."""
    training_bytes: dict[str, int]
    """`weights`, `gradients`, the optimizer's `moments`, and about the `activations` of one sequence."""
    cache_bytes_per_token: int
    cache_bytes: int
    """KV cache, or the state of another mixer, of a full context."""
    cache_bytes_on_cpu: int
    """The same on a CPU, where a cache of bfloat16 is float32."""
    generation_bytes: int
    """Weights and `cache_bytes`."""
    dtype: str
    optimizer: str
    optimizers: list[str]
    """Names of the optimizers that share the parameters"""


def model_costs(model: ModelConfig, dtype: str, optimizer: OptimizerKind) -> ModelCosts:
    """Return the costs of `model`.

    `dtype` is that of activations, and in generation of weights and cache. Weights in training are float32.
    """
    table = parameter_table(model)
    # Costs do not depend on the initialization, but a tied head refuses "t5", and DeepNorm all but "xavier".
    other = parameter_table(replace(model, tied_head=not model.tied_head, initialization="xavier"))
    tied, untied = (table, other) if model.tied_head else (other, table)
    length = model.context_length
    cache = cache_bytes(model, dtype, length, source_length=length)
    return {
        "vocab_size": model.vocab_size,
        "parameters": table,
        "parameters_tied": tied,
        "parameters_untied": untied,
        "non_embedding": non_embedding_parameters(model),
        "biases_and_norms": table["total"] - matrix_parameters(model),
        "flops_per_token": flops_per_token(model),
        "training_bytes": {**training_bytes(model, optimizer), "activations": activation_bytes(model, dtype)},
        "cache_bytes_per_token": cache_bytes(model, dtype, 1) - cache_bytes(model, dtype, 0),
        "cache_bytes": cache,
        "cache_bytes_on_cpu": cache_bytes(model, dtype, length, source_length=length, on_cpu=True),
        "generation_bytes": ITEMSIZE[dtype] * table["total"] + cache,
        "dtype": dtype,
        "optimizer": optimizer,
        "optimizers": [OPTIMIZERS[kind].label for kind in dict.fromkeys(("adamw", optimizer))],
    }


def shares(table: dict[str, int]) -> dict[str, str]:
    """Return each row of a parameter table as a percentage of its total, such as "31.7 %"."""
    return {name: f"{count / table['total']:.1%}".replace("%", " %") for name, count in table.items()}

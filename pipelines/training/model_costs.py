"""What a model costs: parameters, FLOPs and memory."""

from dataclasses import replace
from typing import TypedDict

import torch

from lm.config import ModelConfig
from lm.costs import (
    activation_bytes,
    cache_bytes,
    cache_bytes_per_token,
    flops_per_token,
    matrix_parameters,
    meta_model,
    non_embedding_parameters,
    parameter_table,
    training_bytes,
)
from lm.decoding.cache import storage_dtype
from lm.optim.optimizer_settings import OptimizerKind
from lm.optim.optimizers import optimizer_classes


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
    kind: torch.dtype = getattr(torch, dtype)
    built = meta_model(model)
    table = parameter_table(built)
    # Costs do not depend on the initialization, but "t5" is refused for a tied head.
    swapped = replace(model, tied_head=not model.tied_head, initialization="gpt2")
    other = parameter_table(meta_model(swapped))
    tied, untied = (table, other) if model.tied_head else (other, table)
    length = model.context_length
    cache = cache_bytes(built, kind, length, source_length=length)
    cpu_dtype = storage_dtype(kind, torch.device("cpu"))
    return {
        "vocab_size": model.vocab_size,
        "parameters": table,
        "parameters_tied": tied,
        "parameters_untied": untied,
        "non_embedding": non_embedding_parameters(built),
        "biases_and_norms": table["total"] - matrix_parameters(built),
        "flops_per_token": flops_per_token(built),
        "training_bytes": {**training_bytes(built, optimizer), "activations": activation_bytes(model, kind)},
        "cache_bytes_per_token": cache_bytes_per_token(built, kind),
        "cache_bytes": cache,
        "cache_bytes_on_cpu": cache_bytes(built, cpu_dtype, length, source_length=length),
        "generation_bytes": kind.itemsize * table["total"] + cache,
        "dtype": dtype,
        "optimizer": optimizer,
        "optimizers": [kind.label for kind in optimizer_classes(optimizer)],
    }

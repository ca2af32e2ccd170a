"""`bytelm params`: what a model costs before it is built: parameters, FLOPs, memory."""

import json
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lm.config import ModelConfig
from pipelines.cli.errors import UsageError
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.run.recipe import load_recipe, recipe_names
from pipelines.training.config import OptimizerKind

COMPONENTS = ("embedding", "positions", "attention", "mlp", "norms", "head", "total")
OPTIMIZERS = {"adamw": "AdamW's", "muon": "Muon's and AdamW's"}


@verb
def params(
    model: ModelConfig,
    *,
    dtype: Literal["float32", "bfloat16"] = "bfloat16",
    optimizer: OptimizerKind = "adamw",
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> dict[str, Any]:
    """Print and return what a model costs; every field of its shape can be given here.

    Returns `parameters` by component, `parameters_tied` and `parameters_untied` likewise, `non_embedding`,
    `biases_and_norms`, `flops_per_token` of training, `training_bytes` (`weights`, `gradients`, `moments` of the
    optimizer, and an estimate of the `activations` of one sequence), `cache_bytes_per_token`, `cache_bytes` of a full
    context, `cache_bytes_on_cpu`, where bfloat16 is kept as float32, and `generation_bytes`, weights and `cache_bytes`.

    Args:
        dtype: Of activations, and of weights and cache in generation; in training weights are float32.
        optimizer: What trains it.
        as_json: Whether to print JSON.
    """
    if not model.vocab_size:
        raise ValueError("model.vocab_size is 0: a recipe takes it from a dataset; give --model.vocab-size 50257, say")
    costs = count(model, dtype, optimizer)
    if as_json:
        from pipelines.cli.display import write

        write(json.dumps(costs))
    else:
        _print(model, dtype, costs)
    return costs


def count(model: ModelConfig, dtype: str, optimizer: OptimizerKind) -> dict[str, Any]:
    """The numbers that `params` returns."""
    import torch

    from lm.analysis.memory import activation_bytes, cache_bytes, cache_bytes_per_token, training_bytes
    from lm.analysis.size import (
        flops_per_token,
        matrix_parameters,
        meta_model,
        non_embedding_parameters,
        parameter_table,
    )
    from lm.decoding.cache import storage_dtype

    kind = getattr(torch, dtype)
    built = meta_model(model)
    table = parameter_table(built)
    other = parameter_table(meta_model(replace(model, tied_head=not model.tied_head)))
    tied, untied = (table, other) if model.tied_head else (other, table)
    length = model.context_length
    cache = cache_bytes(built, kind, length, source_length=length)
    kept_on_cpu = storage_dtype(kind, torch.device("cpu"))
    return {
        "parameters": table,
        "parameters_tied": tied,
        "parameters_untied": untied,
        "non_embedding": non_embedding_parameters(built),
        "biases_and_norms": table["total"] - matrix_parameters(built),
        "flops_per_token": flops_per_token(built),
        "training_bytes": {**training_bytes(built, optimizer), "activations": activation_bytes(model, kind)},
        "cache_bytes_per_token": cache_bytes_per_token(built, kind),
        "cache_bytes": cache,
        "cache_bytes_on_cpu": cache_bytes(built, kept_on_cpu, length, source_length=length),
        "generation_bytes": kind.itemsize * table["total"] + cache,
        "dtype": dtype,
        "optimizer": optimizer,
    }


def described(name: str) -> tuple[ModelConfig, OptimizerKind]:
    """The shape of a preset, of a run's folder, or of a recipe, by name or in a TOML file; and the optimizer of the run
    or the recipe, AdamW of a preset.

    Raises ValueError, with the nearest name, when there is none, and for the folder of a classifier.
    """
    from lm.presets import PRESETS
    from pipelines.run.folder import Run

    if name in PRESETS:
        return PRESETS[name], "adamw"
    if (Path(name) / "config.toml").is_file():
        recipe = Run(name).recipe
        return recipe.model, recipe.train.optimizer
    if name in recipe_names() or Path(name).is_file():
        recipe = load_recipe(name)
        return recipe.model, recipe.train.optimizer
    known = [*PRESETS, *(recipe for recipe in recipe_names() if recipe not in PRESETS)]
    nearest = get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise ValueError(f"there is no model {name!r}: {hint}give {', '.join(known)}, a .toml file or a run's folder")


def _print(model: ModelConfig, dtype: str, costs: dict[str, Any]) -> None:
    from pipelines.cli.display import answer, quantity, table

    answer(_shape(model))
    marks = (" (as it is)", "") if model.tied_head else ("", " (as it is)")
    columns = ("component", f"tied{marks[0]}", f"untied{marks[1]}")
    tables = costs["parameters_tied"], costs["parameters_untied"]
    table(columns, [(name, *(f"{each[name]:,}" for each in tables)) for name in COMPONENTS])
    answer(
        f"{costs['non_embedding']:,} without embeddings, positions and output matrix; "
        f"{costs['biases_and_norms']:,} are biases and norms"
    )
    training, length = costs["training_bytes"], f"{model.context_length:,}"
    answer(f"FLOPs per token, forward and backward: {quantity(costs['flops_per_token'], 'FLOP')}")
    answer(
        f"training: {quantity(training['weights'], 'B')} weights, {quantity(training['gradients'], 'B')} gradients, "
        f"{quantity(training['moments'], 'B')} {OPTIMIZERS[costs['optimizer']]} moments (float32), and about "
        f"{quantity(training['activations'], 'B')} of activations a sequence of {length} ({dtype})"
    )
    if costs["cache_bytes_per_token"]:
        both = " and as long a source" if model.architecture == "encoder-decoder" else ""
        wider = costs["cache_bytes_on_cpu"] != costs["cache_bytes"]
        on_cpu = f"; on a CPU the cache is float32, {quantity(costs['cache_bytes_on_cpu'], 'B')}" if wider else ""
        answer(
            f"generation: {quantity(costs['cache_bytes_per_token'], 'B')} of KV cache a token, "
            f"{quantity(costs['cache_bytes'], 'B')} for {length}{both}; with the weights "
            f"{quantity(costs['generation_bytes'], 'B')} ({dtype}){on_cpu}"
        )


def _shape(model: ModelConfig) -> str:
    layers = f"{model.layers}"
    if model.architecture == "encoder-decoder":
        layers += f" + {model.decoder_layers or model.layers}"
    heads = f"{model.heads} heads of {model.head_width}"
    if model.key_value_heads != model.heads:
        heads += f" ({model.key_value_heads} of keys and values)"
    return (
        f"{model.architecture}: {layers} layers of width {model.width}, {heads}, context {model.context_length:,}, "
        f"vocabulary {model.vocab_size:,}"
    )


def main(arguments: list[str]) -> None:
    (shape, trained_by), rest = (ModelConfig(), "adamw"), arguments
    if arguments and not arguments[0].startswith("-"):
        (shape, trained_by), rest = described(arguments[0]), arguments[1:]
    elif not {"-h", "--help"} & set(arguments):
        raise UsageError("name a model first: a preset such as gpt2, a recipe, a .toml file or a run's folder")

    def command(
        model: ModelConfig = shape,
        *,
        dtype: Literal["float32", "bfloat16"] = "bfloat16",
        optimizer: OptimizerKind = trained_by,
        as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
    ) -> None:
        """Print what a model costs: parameters by component, FLOPs per token, memory of training and generation.

        Args:
            dtype: Of activations, and of weights and cache in generation; in training weights are float32.
            optimizer: What trains it; by default what the recipe or the run says, AdamW for a preset.
            as_json: Whether to print JSON.
        """
        params(model, dtype=dtype, optimizer=optimizer, as_json=as_json)

    if rest is not arguments:
        parse(command, rest, f"params {arguments[0]}")
    else:
        from lm.presets import PRESETS

        known = f"a preset ({', '.join(PRESETS)}), a recipe ({', '.join(recipe_names())})"
        parse(command, rest, "params MODEL", more=f"MODEL is {known}, a recipe's .toml file or a run's folder.")

"""Training: print the parameters, FLOPs and memory of a model.

Examples:
    bytelm params gpt2
    bytelm params gpt-tiny --model.layers 8 --model.vocab-size 8192
"""

import json
from dataclasses import replace
from typing import Annotated, Literal

import tyro

from lm.config import OPTIONAL, ModelConfig
from lm.config import SUBJECTS as MODEL_SUBJECTS
from lm.optim.optimizer_settings import OptimizerKind
from lm.position_checks import IN_SCORES
from lm.presets import PRESETS
from pipelines.cli.arguments import AsJson
from pipelines.cli.display import answer, quantity, table, write
from pipelines.cli.errors import UsageError
from pipelines.cli.help import FLAGS, prefixed
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.recipes.recipe import recipe_names
from pipelines.training.model_costs import ASSUMED_VOCABULARY, ModelCosts, model_costs, shares

ActivationDtype = Annotated[
    Literal["float32", "bfloat16"],
    tyro.conf.arg(
        help="Dtype of activations, and in generation of weights and cache; weights in training are float32."
    ),
]

# Options by subject: in --help, and only in --help-all.
HELP = {**prefixed("model", MODEL_SUBJECTS), "Numbers": ("dtype optimizer json", "")}


@verb
def params(
    model: ModelConfig,
    *,
    dtype: ActivationDtype = "bfloat16",
    optimizer: OptimizerKind = "adamw",
    as_json: AsJson = False,
) -> ModelCosts:
    """Print the parameters of a model by component, its FLOPs per token, and its memory in training and generation.

    A model without a vocabulary size, such as that of a recipe, gets 8,192 entries.

    Returns the numbers; their names are the fields of `pipelines.training.model_costs.ModelCosts`.

    Args:
        optimizer: Optimizer of the training; by default that of the recipe or run, AdamW for a preset.
        as_json: Print JSON.
    """
    if _may_be_impossible(model):
        from lm.mixers.mixer import check_mixers  # imports PyTorch, which takes seconds

        check_mixers(model)
    assumed = not model.vocab_size
    if assumed:
        model = replace(model, vocab_size=ASSUMED_VOCABULARY)
    costs = model_costs(model, dtype, optimizer)
    if as_json:
        write(json.dumps(costs))
    else:
        _print(model, costs)
        if assumed:
            answer(
                "A recipe takes its vocabulary from the dataset. "
                f"These numbers are for {ASSUMED_VOCABULARY:,} entries: `model.vocab_size` sets another number."
            )
    return costs


def _may_be_impossible(model: ModelConfig) -> bool:
    """Return whether the model has a field that not all of its mixers may support. Attention supports every field."""
    changed = any(getattr(model, field) != getattr(ModelConfig, field) for field in OPTIONAL)
    one_way = "hopfield" in model.mixer_pattern and model.architecture != "decoder"
    return not model.attention_only and (changed or one_way or model.positions in IN_SCORES)


def _print(model: ModelConfig, costs: ModelCosts) -> None:
    answer(_shape(model))
    marks = (" (this model)", "") if model.tied_head else ("", " (this model)")
    columns = ("component", f"tied{marks[0]}", "share", f"untied{marks[1]}", "share")
    tables = costs["parameters_tied"], costs["parameters_untied"]
    cells = [({name: f"{count:,}" for name, count in each.items()}, shares(each)) for each in tables]
    table(columns, [(name, *(column[name] for pair in cells for column in pair)) for name in tables[0]])
    answer(
        f"{costs['non_embedding']:,} without embeddings, positions and output matrix; "
        f"{costs['biases_and_norms']:,} in biases and norms"
    )
    training, length, dtype = costs["training_bytes"], f"{model.context_length:,}", costs["dtype"]
    owners = " and ".join(f"{optimizer}'s" for optimizer in costs["optimizers"])
    answer(f"FLOPs per token, forward and backward: {quantity(costs['flops_per_token'], 'FLOP')}")
    answer(
        f"training: {quantity(training['weights'], 'B')} weights, {quantity(training['gradients'], 'B')} gradients, "
        f"{quantity(training['moments'], 'B')} {owners} moments (float32), and about "
        f"{quantity(training['activations'], 'B')} activations per sequence of {length} ({dtype})"
    )
    if costs["cache_bytes"]:
        both = " and a source of that length" if model.architecture == "encoder-decoder" else ""
        wider = costs["cache_bytes_on_cpu"] != costs["cache_bytes"]
        cache = "KV cache" if model.attention_only else "state"
        on_cpu = f"; on a CPU the {cache.split()[-1]} is float32, {quantity(costs['cache_bytes_on_cpu'], 'B')}"
        answer(
            f"generation: {quantity(costs['cache_bytes_per_token'], 'B')} of {cache} per token, "
            f"{quantity(costs['cache_bytes'], 'B')} for {length}{both}; with the weights "
            f"{quantity(costs['generation_bytes'], 'B')} ({dtype}){on_cpu if wider else ''}"
        )


def _shape(model: ModelConfig) -> str:
    layers = f"{model.layers}"
    if model.architecture == "encoder-decoder":
        layers += f" + {model.decoder_layers or model.layers}"
    heads = f"{model.heads} heads of {model.head_features}" if model.attention_only else f"mixer {model.mixer_names}"
    if model.key_value_heads != model.heads:
        heads += f" ({model.key_value_heads} of keys and values)"
    return (
        f"{model.architecture}: {layers} layers of width {model.width}, {heads}, context {model.context_length:,}, "
        f"vocabulary {model.vocab_size:,}"
    )


def main(arguments: list[str]) -> None:
    """Run `bytelm params` with command-line arguments."""
    if arguments and not arguments[0].startswith("-"):
        from pipelines.run.named_models import named_model

        model, optimizer = named_model(arguments[0])
        parse(params, arguments[1:], f"params {arguments[0]}", defaults={"model": model, "optimizer": optimizer})
    elif FLAGS & set(arguments):
        names = {"a preset": ", ".join(PRESETS), "a recipe": f"{', '.join(recipe_names())}, or a .toml file"}
        models = {"MODEL": {**names, "a run": "its folder"}}
        parse(params, arguments, "params MODEL", models, defaults={"model": ModelConfig()})
    else:
        raise UsageError("name a model first: a preset such as gpt2, a recipe, a .toml file or a run's folder")

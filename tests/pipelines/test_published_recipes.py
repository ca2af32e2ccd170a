"""Recipes that follow papers have the published settings and sizes, or say why not."""

import runpy
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from lm.config_costs import parameter_table
from lm.presets import PRESETS
from pipelines.recipes.published import PUBLISHED, value_of
from pipelines.recipes.recipe import load_recipe

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = [name for name, published in PUBLISHED.items() if not published.without_recipe]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_has_the_values_of_its_table_of_settings(name):
    for field, published, place, note in PUBLISHED[name].settings:
        assert place, field
        if note:
            assert value_of(name, field) != published, field
        elif published is not None:
            assert value_of(name, field) == published, field
    named = [setting.field for setting in PUBLISHED[name].settings]
    assert len(named) == len(set(named)) >= 12


@pytest.mark.parametrize("name", [name for name in RECIPES if PUBLISHED[name].preset])
def test_a_recipe_has_the_model_of_its_preset_except_where_its_table_says_so(name):
    recipe, preset = load_recipe(name).model, PRESETS[PUBLISHED[name].preset]
    differing = {f.name for f in fields(preset) if getattr(recipe, f.name) != getattr(preset, f.name)}
    noted = {setting.field.removeprefix("model.") for setting in PUBLISHED[name].settings if setting.note}
    assert differing - noted == {"vocab_size"}  # a recipe takes its vocabulary from the dataset


# Class and configuration in transformers, with all sizes spelled out.
PEERS = {
    "gpt2-124m": ("GPT2LMHeadModel", {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12}),
    "transformer-base": (
        "MarianMTModel",
        {
            **{
                f"{side}_{size}": n for side in ("encoder", "decoder") for size, n in (("layers", 6), ("ffn_dim", 2048))
            },
            "vocab_size": 37000,
            "decoder_vocab_size": 37000,
            "d_model": 512,
            "pad_token_id": 0,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "max_position_embeddings": 512,
        },
    ),
    "bert-base": ("BertForMaskedLM", {"vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12}),
    "t5-small": (
        "T5ForConditionalGeneration",
        {"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8},
    ),
    "llama": (
        "LlamaForCausalLM",
        {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    ),
}
TRAINABLE = {
    "gpt2-124m": 124_439_808,
    "transformer-base": 63_082_496,
    "bert-base": 109_514_298,
    "t5-small": 60_506_624,
    "llama": 6_738_415_616,
}


@pytest.mark.parametrize("name", PEERS)
def test_published_models_are_exactly_as_large_as_those_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    kind, options = PEERS[name]
    family = getattr(transformers, kind)
    with torch.device("meta"):
        peer = family(family.config_class(**options))
    # Marian keeps its sinusoids among the parameters, without gradients.
    trained = {id(p): p.numel() for module, p in peer.named_parameters() if "embed_positions" not in module}
    preset = PRESETS[PUBLISHED[name].preset]
    assert parameter_table(preset)["total"] == sum(trained.values()) == TRAINABLE[name]
    if name in RECIPES:
        model = replace(load_recipe(name).model, vocab_size=preset.vocab_size, token_types=preset.token_types)
        assert parameter_table(model)["total"] == TRAINABLE[name]


def rates(name, steps):
    """Return the learning rate of a recipe at each of these steps, which count from 1."""
    train = load_recipe(name).train
    return [train.lr * train.lr_multiplier((step - 1) * train.batch_tokens, train.batch_tokens) for step in steps]


def test_the_original_transformer_has_its_learning_rate_at_every_step():
    """Vaswani et al. 2017, equation 3."""
    steps = (1, 100, 3999, 4000, 4001, 100_000)
    expected = [512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in steps]
    assert rates("transformer-base", steps) == pytest.approx(expected, rel=2e-4)


def test_the_learning_rate_of_bert_falls_in_a_line():
    train = load_recipe("bert-base").train
    warmup, total = (tokens // train.batch_tokens for tokens in (train.warmup_tokens, train.tokens))
    peak, half = rates("bert-base", (warmup + 1, warmup + (total - warmup) // 2))
    assert (peak, half) == pytest.approx((1e-4, 5e-5), rel=1e-3)


def test_the_page_of_published_recipes_is_current():
    writer = runpy.run_path(str(DOCS / "published_recipes.py"))
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")
    assert writer["page"](text) == text

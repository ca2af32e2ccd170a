"""Every recipe at its own shape, or a smaller one, on datasets with blocks of 32 tokens."""

from dataclasses import replace

from pipelines.recipes.recipe import load_recipe, recipe_names
from pipelines.training.data import open_training_data
from pipelines.training.mixture import Mixture, fit_to_data, open_dataset
from tokenizer import Tokenizer

VARIANTS = {
    "gpt-tiny, document mask": ("gpt-tiny", {"document_mask": True}, {}),
    "gpt-tiny, mamba2 with document mask": ("gpt-tiny", {"mixer": "mamba2", "document_mask": True}, {}),
    "gpt-tiny, gru and attention": ("gpt-tiny", {"mixers": ("gru", "attention")}, {}),
    "gpt-tiny, gru": ("gpt-tiny", {"mixer": "gru"}, {}),
    "gpt-tiny, mingru": ("gpt-tiny", {"mixer": "mingru"}, {}),
    "gpt-tiny, window": ("gpt-tiny", {"window": 8}, {}),
    "gpt-tiny, AdamW": ("gpt-tiny", {}, {"optimizer": "adamw"}),
    "gpt-tiny, averaged": ("gpt-tiny", {}, {"average": 0.99}),
    "gpt-tiny, all options of the loss": ("gpt-tiny", {"soft_cap": 30.0}, {"label_smoothing": 0.1, "z_loss": 1e-4}),
    "bert-tiny, document mask": ("bert-tiny", {"document_mask": True}, {}),
    "bert-tiny, stochastic depth": ("bert-tiny", {"stochastic_depth": 0.1}, {}),
    "gpt-small, value embeddings and skips": ("gpt-small", {"value_embeddings": 2, "embedding_skips": True}, {}),
}
LARGE = {"t5-small", "transformer-base", "textbook"}
"""Recipes of the same kinds as smaller ones"""
CASES = [*(name for name in recipe_names() if name not in LARGE), *VARIANTS]


def adapted(case, context_length=32):
    """Return a recipe, or a variant of one, with at most 4 layers for small batches of `context_length` tokens."""
    name, model, train = VARIANTS.get(case, (case, {}, {}))
    recipe = load_recipe(name)
    around = recipe.edges
    layers = min(4, recipe.model.layers)
    model = replace(recipe.model, layers=layers, context_length=context_length + around, **model)
    train = {"batch_tokens": min(recipe.train.batch_tokens, 2048), **train}
    return replace(recipe, model=model, train=replace(recipe.train, **train))


def opened(recipe, stream_folder, pair_folder):
    """Return the recipe with the vocabulary of the dataset that it reads, and its training data."""
    folder = pair_folder if recipe.objective == "sequence-pairs" else stream_folder
    dataset = open_dataset(folder, recipe.objective)
    recipe = fit_to_data(recipe, dataset)
    return recipe, open_training_data(recipe, Mixture([dataset]), Tokenizer.load(folder))

"""The model and the loss of every recipe compile to whole graphs, and to no more of them after its second step.

Tensors are on the `meta` device, so the code takes the branches of a GPU and computes nothing.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

from lm.costs import meta_model
from pipelines.training.loop import Trainer
from tests.pipelines.recipe_cases import CASES, adapted, opened

# Their graphs are among those of gpt-tiny: its model, its loss and Muon.
SAME_GRAPHS = ("gpt-tiny, AdamW", "gpt-tiny, averaged")
# One for each objective, with the options that add the most code. The others are slow tests.
SAMPLE = (
    "gpt-small, value embeddings and skips",
    "gpt-tiny, all options of the loss",
    "bert-tiny, stochastic depth",
    "t5-tiny",
    "translate-tiny",
)


@pytest.fixture
def whole_graphs(monkeypatch):
    """Let torch.compile refuse code that it cannot trace, and run the graphs uncompiled."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, fullgraph=True, backend="eager"))
    yield
    torch._dynamo.reset()


def compiled_trainer(case, sentinel_dataset, pair_dataset, **train):
    recipe = adapted(case)
    shape = recipe.model
    differ = shape.value_embeddings or shape.embedding_skips or shape.stochastic_depth or shape.mixers
    sizes = {"layers": 2 if differ else 1, "width": 64, "heads": 2}  # each layer is traced anew
    value_embeddings = min(1, recipe.model.value_embeddings)
    model = replace(recipe.model, **sizes, mlp_width=0, value_embeddings=value_embeddings)
    train = replace(recipe.train, compile=True, batch_tokens=256, micro_batch=8, **train)
    recipe, data = opened(replace(recipe, model=model, train=train), sentinel_dataset, pair_dataset)
    model = meta_model(recipe.model)
    model.compute_dtype = torch.bfloat16
    return Trainer(None, model, data, recipe.train)


def train_a_step(trainer):
    with pytest.raises(RuntimeError, match="meta tensor"):
        trainer.step()  # reads the loss after all work is queued
    trainer.optimizers.zero_grad()


@torch.no_grad()
def validate(trainer):
    trainer.model.eval()
    [source] = trainer.data.shares
    for batch in trainer.data.validation(
        source, 800, trainer.micro_batch
    ):  # 25 blocks: 3 whole micro-batches, and 1 block
        trainer.loss(trainer._to_one_shape(batch))
    trainer.model.train()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in SAMPLE else pytest.mark.slow) for case in CASES if case not in SAME_GRAPHS],
)
def test_a_recipe_is_traced_whole_and_no_further_after_two_steps(case, sentinel_dataset, pair_dataset, whole_graphs):
    trainer = compiled_trainer(case, sentinel_dataset, pair_dataset)
    for _ in range(2):
        train_a_step(trainer)
        validate(trainer)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(4):
            train_a_step(trainer)
        validate(trainer)
    trainer.batches.close()

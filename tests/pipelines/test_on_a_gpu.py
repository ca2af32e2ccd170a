"""On a GPU, models and recipes compute what they compute on a CPU, uncompiled and compiled."""

from dataclasses import replace

import pytest
import torch

from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.model import LanguageModel
from pipelines.training.loop import Trainer
from tests.lm.mixer_cases import MIXERS, SMALL, random_ids, random_model
from tests.pipelines.recipe_cases import CASES, adapted, opened

pytestmark = pytest.mark.gpu
STEPS = 3


def gradients(model, ids):
    """Return the logits of ids (B, T) and the gradients of their sum of squares, on the CPU."""
    model.train()  # cuDNN has no backward pass of a GRU or LSTM in evaluation mode
    logits = model.logits(model(ids))
    logits.square().sum().backward()
    return [logits.detach().cpu(), *(weight.grad.cpu() for weight in model.parameters() if weight.grad is not None)]


@pytest.mark.parametrize("mixer", ["attention", *MIXERS])
def test_a_mixer_has_the_outputs_and_gradients_of_the_cpu(mixer):
    model, ids = random_model(mixer), random_ids(2, SMALL.context_length)
    expected = gradients(model, ids)
    model.zero_grad()
    found = gradients(model.cuda(), ids.cuda())
    assert len(found) == len(expected) > 5
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8 * float(theirs.abs().max()))


@pytest.mark.parametrize("mixer", ["attention", *MIXERS])
def test_a_mixer_generates_the_ids_of_the_cpu(mixer):
    model, ids = random_model(mixer), random_ids(2, 70)
    there = generate(prepare(model, 2), ids, 30, temperature=0)
    here = generate(prepare(model.cuda(), 2), ids.cuda(), 30, temperature=0)
    assert here.tolist() == there.tolist()


@pytest.mark.parametrize("static", [False, True])
def test_both_caches_generate_the_ids_of_the_cpu(static):
    model, ids = random_model("attention", torch.float32), random_ids(3, 20)
    there = generate(prepare(model, 3), ids, 40, temperature=0)
    here = generate(prepare(model.cuda(), 3), ids.cuda(), 40, temperature=0, static=static)
    assert here.tolist() == there.tolist()


def losses(case, device, dtype, sentinel_dataset, pair_dataset, **train):
    """Return the losses of the first steps of a recipe without random parts, in nats."""
    recipe, data = opened(adapted(case), sentinel_dataset, pair_dataset)
    model = LanguageModel(replace(recipe.model, dropout=0.0, stochastic_depth=0.0), seed=0).to(device)
    model.compute_dtype = dtype
    trainer = Trainer(None, model, data, replace(recipe.train, batch_tokens=512, micro_batch=8, **train))
    found = [trainer.step().loss for _ in range(STEPS)]
    trainer.batches.close()
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_has_the_losses_of_the_cpu(case, sentinel_dataset, pair_dataset):
    data = sentinel_dataset, pair_dataset
    expected = losses(case, "cpu", torch.float32, *data, compile=False)
    assert losses(case, "cuda", torch.float32, *data, compile=False) == pytest.approx(expected, rel=2e-3)
    assert losses(case, "cuda", torch.bfloat16, *data, compile=False) == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_recipe_has_the_losses_of_the_cpu(case, sentinel_dataset, pair_dataset):
    data = sentinel_dataset, pair_dataset
    expected = losses(case, "cpu", torch.float32, *data, compile=False)
    torch._dynamo.reset()
    assert losses(case, "cuda", torch.bfloat16, *data, compile=True) == pytest.approx(expected, rel=2e-2)

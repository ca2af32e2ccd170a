"""Layer-wise learning rates, frozen blocks and fresh blocks: which parameters of a model they are."""

from dataclasses import replace

import pytest
import torch

from lm.config import ModelConfig
from lm.costs import flops_per_token
from lm.head_config import HeadConfig
from lm.layer_order import freeze, layers, rate_factors, reinitialize
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers
from lm.task_model import build_model

SMALL = ModelConfig(layers=3, width=32, heads=2, context_length=16, vocab_size=61)
MODELS = {
    "decoder": SMALL,
    "encoder": replace(SMALL, architecture="encoder", norm_position="post", positions="learned"),
    "encoder-decoder": replace(SMALL, architecture="encoder-decoder", positions="relative", decoder_layers=2),
}
HEADS = {"task": HeadConfig(kind="sequence", outputs=3), "language": None}


@pytest.fixture(params=[(name, head) for name in MODELS for head in HEADS], ids="-".join)
def model(request):
    return build_model(MODELS[request.param[0]], HEADS[request.param[1]], seed=1)


def test_every_parameter_is_in_one_layer(model):
    found = [id(parameter) for layer in layers(model) for parameter in layer]
    assert sorted(found) == sorted(id(parameter) for parameter in model.parameters())


def test_the_rate_of_block_l_of_n_is_decay_to_the_power_of_n_minus_l(model):
    factors = {name: rate_factors(model, 0.5)[parameter] for name, parameter in model.named_parameters()}
    blocks = 5 if model.config.architecture == "encoder-decoder" else 3
    for name, factor in factors.items():
        inner = name.removeprefix("body.")
        if ".blocks." in inner:
            stack, _, number = inner.split(".")[:3]
            below = 3 if stack == "decoder" and blocks == 5 else 0
            assert factor == 0.5 ** (blocks - below - int(number) - 1), name
        elif inner.startswith(("embedding.", "token_types.", "encoder.positional", "encoder.relative")):
            assert factor == 0.5**blocks, name
        elif name.startswith("head."):
            assert factor == 1, name


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("shares", [1, 3])
def test_groups_with_layer_rates_are_a_partition_and_follow_the_schedule(model, kind, shares):
    optimizers = build_optimizers(model, OptimizerSettings(kind=kind, lr=0.2, muon_lr=0.4), shares=shares)
    before = {id(p): group["lr"] for group in optimizers.param_groups for p in group["params"]}
    factors = rate_factors(model, 0.8)
    optimizers.scale_rates(factors)
    found = [id(p) for group in optimizers.param_groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
    optimizers.schedule(0.5)
    for group in optimizers.param_groups:
        for parameter in group["params"]:
            assert group["lr"] == pytest.approx(0.5 * factors[parameter] * before[id(parameter)])
            assert group["weight_decay"] == (0.1 if parameter.ndim >= 2 else 0.0)


def test_a_step_of_sgd_like_size_is_scaled_by_the_factor(model):
    """The first update of AdamW is the learning rate times the sign of the gradient."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizers = build_optimizers(model, OptimizerSettings(lr=1e-2, weight_decay=0.0, eps=1e-12))
    factors = rate_factors(model, 0.5)
    optimizers.scale_rates(factors)
    optimizers.schedule(1.0)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step()
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old - 1e-2 * factors[new], rtol=0, atol=1e-6)


def test_frozen_are_the_embedding_and_the_lowest_blocks(model):
    freeze(model, 2)
    frozen = {name.removeprefix("body.") for name, p in model.named_parameters() if not p.requires_grad}
    assert "embedding.weight" in frozen
    assert {name.split(".")[2] for name in frozen if ".blocks." in name} == {"0", "1"}
    assert not any(name.startswith("head.") for name in frozen)
    stacks = {name.split(".")[0] for name in frozen if ".blocks." in name}
    assert len(stacks) == 1 and stacks != {"decoder" if model.encoder else "encoder"}


def test_a_linear_probe_trains_the_head_alone():
    model = build_model(MODELS["encoder"], HEADS["task"], seed=1)
    freeze(model, "all")
    assert all(p.requires_grad == name.startswith("head.") for name, p in model.named_parameters())
    model.loss(model(torch.arange(24).reshape(2, 12)).flatten(0, -2), torch.tensor([0, 2])).backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        name for name, _ in model.head.named_parameters(prefix="head")
    }


def test_frozen_blocks_cost_a_forward_pass():
    whole, frozen = (build_model(MODELS["encoder"], HEADS["task"], seed=1) for _ in range(2))
    freeze(frozen, 2)
    block = whole.stack.blocks[0].flops(16, 16, 0, 16) / 16
    assert flops_per_token(frozen) == pytest.approx(flops_per_token(whole) - 2 * block * 2 / 3)


def test_fresh_blocks_are_the_highest_and_drawn_by_the_seed(model):
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    reinitialize(model, 1, seed=7)
    changed = {n.removeprefix("body.") for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    top = "decoder.blocks.1." if model.config.architecture == "encoder-decoder" else ".blocks.2."
    assert changed and all(top in name for name in changed)
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    reinitialize(model, 1, seed=7)
    assert all(torch.equal(parameter, first[name]) for name, parameter in model.named_parameters())
    reinitialize(model, 0, seed=8)
    assert all(torch.equal(parameter, first[name]) for name, parameter in model.named_parameters())

"""Optimizer groups, the schedule, and what a model costs."""

import math

import pytest
import torch

from lm.config import ModelConfig
from lm.counting import flops_per_token, model_without_memory, parameter_table
from lm.model import build_model
from lm.optimizers import build_adamw, parameter_groups
from lm.schedules import warmup_cosine

GPT2 = ModelConfig(
    vocab_size=50257,
    context_length=1024,
    layers=12,
    width=768,
    heads=12,
    positions="learned",
    activation="gelu_tanh",
)
BERT_BASE = ModelConfig(
    architecture="encoder",
    vocab_size=30522,
    context_length=512,
    layers=12,
    width=768,
    heads=12,
    positions="learned",
    norm_position="post",
    norm_eps=1e-12,
)


def test_gpt2_has_its_published_number_of_parameters():
    table = parameter_table(model_without_memory(GPT2))
    assert table["total"] == 124_439_808
    assert table["embedding"] == 50257 * 768
    assert table["positions"] == 1024 * 768
    assert table["attention"] == 12 * 4 * (768 * 768 + 768)
    assert table["mlp"] == 12 * (2 * 768 * 3072 + 3072 + 768)
    assert table["norms"] == 25 * 2 * 768
    assert table["head"] == 0  # tied


def test_bert_base_lacks_only_the_two_token_types():
    table = parameter_table(model_without_memory(BERT_BASE))
    assert table["total"] == 109_514_298 - 2 * 768
    assert table["head"] == 768 * 768 + 768 + 2 * 768 + 30522


@pytest.mark.parametrize("tied", [True, False])
def test_the_table_adds_up_to_the_model(tied):
    config = ModelConfig(vocab_size=99, tied_head=tied, norm="rmsnorm", activation="swiglu", bias=False)
    model = build_model(config, seed=0)
    table = parameter_table(model)
    assert table.pop("total") == sum(table.values()) == sum(p.numel() for p in model.parameters())
    assert table["head"] == (0 if tied else 99 * 256)


def test_flops_per_token_follow_the_definition():
    matrices = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50257 * 768
    assert flops_per_token(model_without_memory(GPT2)) == 6 * matrices + 12 * 12 * 768 * 1024
    trunk, head = 12 * (4 * 768 * 768 + 2 * 768 * 3072), 768 * 768 + 30522 * 768
    expected = 6 * (trunk + 0.15 * head) + 12 * 12 * 768 * 128
    assert flops_per_token(model_without_memory(BERT_BASE), length=128) == pytest.approx(expected)


def test_groups_partition_the_parameters_and_only_matrices_decay():
    model = build_model(ModelConfig(vocab_size=50, positions="learned"), seed=0)
    decayed, kept = parameter_groups(model, weight_decay=0.1)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed_names = {names[id(parameter)] for parameter in decayed["params"]}
    kept_names = {names[id(parameter)] for parameter in kept["params"]}
    assert decayed_names | kept_names == set(names.values())
    assert not decayed_names & kept_names
    assert all("norm" in name or name.endswith("bias") for name in kept_names)
    assert {"trunk.embedding.weight", "trunk.blocks.0.mlp.up.weight"} <= decayed_names


def test_first_adamw_step_has_the_size_of_the_learning_rate_and_decays_matrices():
    """Adam's first step is lr * sign(gradient); decay takes lr * weight_decay of a matrix besides."""
    model = build_model(ModelConfig(vocab_size=50, layers=1, width=16, heads=2), seed=0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    build_adamw(model, learning_rate=0.01, weight_decay=0.5).step()
    for name, parameter in model.named_parameters():
        decay = 0.5 if parameter.ndim >= 2 else 0.0
        expected = before[name] * (1 - 0.01 * decay) - 0.01
        torch.testing.assert_close(parameter.detach(), expected, atol=1e-6, rtol=0)


def test_schedule_climbs_in_a_line_and_falls_in_half_a_cosine():
    def multiplier(step):
        return warmup_cosine(step, warmup_steps=10, total_steps=110, final=0.1)

    assert [multiplier(step) for step in range(10)] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert multiplier(10) == 1.0
    assert multiplier(60) == pytest.approx(0.55)
    assert multiplier(35) == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert multiplier(110) == multiplier(500) == pytest.approx(0.1)
    falling = [multiplier(step) for step in range(10, 111)]
    assert falling == sorted(falling, reverse=True)


def test_schedule_without_warm_up_starts_at_the_peak():
    assert warmup_cosine(0, warmup_steps=0, total_steps=5) == 1.0
    assert warmup_cosine(3, warmup_steps=4, total_steps=4) == 1.0

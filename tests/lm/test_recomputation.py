"""Blocks that are computed again in the backward pass: the same gradients from less memory."""

from dataclasses import replace

import pytest
import torch

from lm.config import ModelConfig
from lm.lora import LoraLinear, add_lora
from lm.lora_config import LoraConfig
from lm.model import LanguageModel, Stack

SMALL = ModelConfig(layers=3, width=32, heads=2, context_length=16, vocab_size=50, dropout=0.0)
CASES = {
    "decoder": {},
    "dropout": {"dropout": 0.2, "stochastic_depth": 0.4},
    "relative keys": {"positions": "relative-keys", "layer_groups": 1},
    "modern": {"qk_norm": True, "embedding_skips": True, "value_embeddings": 1, "norm": "rmsnorm", "window": 5},
    "gpt-neox": {"rotary_width": 4, "residual": "parallel", "dropout": 0.2, "stochastic_depth": 0.4},
    "encoder": {"architecture": "encoder"},
    "encoder-decoder": {"architecture": "encoder-decoder", "positions": "relative"},
}


def recomputing(model, recompute):
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        stack.recompute = recompute
    return model


@pytest.mark.parametrize("case", CASES)
def test_recomputed_blocks_have_the_same_loss_and_gradients_bit_for_bit(case):
    assert_recomputation_changes_nothing(LanguageModel(replace(SMALL, **CASES[case]), seed=0))


def test_recomputed_adapters_drop_the_same_inputs():
    model = LanguageModel(SMALL, seed=0)
    add_lora(model, LoraConfig(rank=2, dropout=0.5))
    generator = torch.Generator().manual_seed(1)
    for layer in (module for module in model.modules() if isinstance(module, LoraLinear)):
        layer.lora_b.data.normal_(generator=generator)
    assert_recomputation_changes_nothing(model)


def assert_recomputation_changes_nothing(model):
    ids = torch.randint(50, (4, 16), generator=torch.Generator().manual_seed(1))
    source = ids.flip(1) if model.config.architecture == "encoder-decoder" else None
    results = []
    for recompute in (False, True):
        torch.manual_seed(2)  # dropout draws the same masks, in both passes
        recomputing(model, recompute).zero_grad()
        loss = model(ids, source, rows=torch.arange(0, 60, 7)).square().sum()
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) > 10
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_recomputed_blocks_save_only_their_inputs_for_the_backward_pass():
    ids = torch.zeros(4, 16, dtype=torch.int64)
    saved = {
        (layers, recompute): saved_elements(
            recomputing(LanguageModel(replace(SMALL, layers=layers), seed=0), recompute), ids
        )
        for layers in (2, 6)
        for recompute in (False, True)
    }
    inputs = 4 * ids.numel() * SMALL.width  # of four blocks
    assert saved[6, True] - saved[2, True] == inputs
    assert saved[6, False] - saved[2, False] > 10 * inputs


def saved_elements(model, ids):
    """Return the elements of tensors that autograd saves in the forward pass."""
    saved = []

    def save(tensor):
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        model(ids)
    return sum(saved)

"""Deleting parts of a model: means and zeros in the place of what they write."""

from dataclasses import replace

import pytest
import torch

from lm.introspection.activations import observed
from lm.introspection.deletion import all_parts, deletions, mean_activations
from lm.introspection.trace import Trace
from lm.model import LanguageModel
from tests.lm.introspection_cases import TINY, copying_induction_model, randomised, some_ids
from tests.lm.mixer_cases import random_model


def hidden(model, ids, parts, means=None):
    with torch.no_grad(), observed(model, edits=deletions(model, parts, means)):
        return model(ids)


SILENCED = {
    "mlp.1": lambda block: [block.mlp.down.weight, block.mlp.down.bias],
    "attention.1": lambda block: [block.attention.output.weight, block.attention.output.bias],
    "heads.1.0 heads.1.2": lambda block: [block.attention.output.weight[:, :4], block.attention.output.weight[:, 8:12]],
}


@pytest.mark.parametrize(("parts", "weights"), SILENCED.items(), ids=SILENCED)
def test_a_part_deleted_to_zero_is_a_part_with_zeros_in_its_matrix(parts, weights):
    model, ids = randomised(TINY), some_ids(TINY)
    deleted = hidden(model, ids, parts.split())
    with torch.no_grad():
        for weight in weights(model.stack.blocks[1]):
            weight.zero_()
        torch.testing.assert_close(deleted, model(ids))


def test_without_a_layer_the_stream_passes_it_unchanged():
    model, ids = randomised(TINY), some_ids(TINY)
    trace = Trace(model, ids, edits=deletions(model, ["layers.0"], None))
    assert torch.equal(trace["blocks.1.hook_resid_pre"], trace["blocks.0.hook_resid_pre"])


def test_means_are_over_all_positions_of_all_batches():
    model, ids = randomised(TINY), some_ids(TINY, (4, 11))
    means = mean_activations(model, [{"ids": ids[:3]}, {"ids": ids[3:]}], ["layers.1", "heads.0.2"])
    assert means.keys() == {"blocks.1.hook_attn_out", "blocks.1.hook_mlp_out", "blocks.0.attn.hook_z"}
    trace = Trace(model, ids)
    for name, mean in means.items():
        torch.testing.assert_close(mean, trace[name].mean(dim=(0, 1)).float())
    assert means["blocks.0.attn.hook_z"].shape == (4, 4)


def test_a_constant_part_costs_nothing_when_its_mean_replaces_it():
    model, ids = randomised(TINY), some_ids(TINY)
    with torch.no_grad():
        model.stack.blocks[0].mlp.down.weight.zero_()
        model.stack.blocks[1].attention.value.weight[4:8] = 0  # head 1 has one value, its bias
        plain = model(ids)
    parts = ["mlp.0", "heads.1.1"]
    means = mean_activations(model, [{"ids": ids}], parts)
    torch.testing.assert_close(hidden(model, ids, parts, means), plain, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(hidden(model, ids, parts), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("ablation", ["mean", "zero"])
def test_the_induction_head_needs_both_of_its_heads_and_no_other(ablation):
    model = copying_induction_model()
    draws = [torch.randperm(20, generator=torch.Generator().manual_seed(i))[:18] for i in range(8)]
    ids = torch.stack(draws).repeat(1, 2)
    heads = [f"heads.{layer}.{head}" for layer in (0, 1) for head in (0, 1)]
    means = mean_activations(model, [{"ids": ids}], heads) if ablation == "mean" else None

    def loss(parts):
        logits = model.logits(hidden(model, ids, parts, means))[:, 18:-1]  # in the second copy
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 19:].flatten()).item()

    lost = {part: loss([part]) - loss([]) for part in heads}
    assert min(lost["heads.0.0"], lost["heads.1.0"]) > 1  # nats
    assert lost["heads.0.1"] == pytest.approx(0, abs=1e-5) == lost["heads.1.1"]


def test_a_model_has_layers_attention_heads_and_mlps():
    model = LanguageModel(replace(TINY, layers=1, heads=2), seed=0)
    assert all_parts(model) == ["layers.0", "attention.0", "heads.0.0", "heads.0.1", "mlp.0"]
    assert all_parts(random_model("mamba2", layers=1)) == ["layers.0", "attention.0", "mlp.0"]
    assert all_parts(LanguageModel(replace(TINY, layers=1, heads=2, mlp=False), seed=0))[-1] == "heads.0.1"


@pytest.mark.parametrize(
    ("model", "part", "words"),
    [
        (LanguageModel(TINY, seed=0), "layers.2", "it has layers.0 to layers.1"),
        (LanguageModel(TINY, seed=0), "heads.0.4", "it has heads.0.0 to heads.1.3"),
        (LanguageModel(TINY, seed=0), "head.0.1", "'head.0.1' is no part of a model"),
        (LanguageModel(replace(TINY, mlp=False), seed=0), "mlp.0", "model.mlp is false"),
        (random_model("gru"), "heads.0.0", "its mixer is gru"),
        (LanguageModel(replace(TINY, architecture="encoder-decoder"), seed=0), "mlp.0", "'encoder-decoder'"),
    ],
)
def test_unknown_parts_are_named(model, part, words):
    with pytest.raises(ValueError, match=words):
        deletions(model, [part], None)

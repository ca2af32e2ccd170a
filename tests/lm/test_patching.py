"""Activation patching: maps against patches made one by one, and closed forms."""

from dataclasses import replace

import pytest
import torch

from lm.introspection.activations import observed
from lm.introspection.patching import estimated_maps, patching_maps
from lm.introspection.trace import Trace
from lm.model import LanguageModel
from tests.lm.introspection_cases import PEERS, TINY, copying_induction_model, randomised, some_ids
from tests.lm.mixer_cases import random_ids, random_model

CLEAN, CORRUPT = torch.tensor([3, 8, 12, 16, 4, 8]), torch.tensor([3, 8, 17, 16, 4, 8])


def one_by_one(model, clean, corrupt, target, against, name, where):
    """Return the effect of patching the part `where` of the activation `name`, in a forward pass of its own."""
    value = Trace(model, clean[None])[name]

    def patch(x):
        x = x.clone()
        x[where] = value[where]
        return x

    def difference(ids, edits):
        with torch.no_grad(), observed(model, edits=edits):
            logits = model.logits(model(ids[None]))[0, -1]
        return logits[target] - logits[against]

    base = difference(corrupt, {})
    return (difference(corrupt, {name: patch}) - base) / (difference(clean, {}) - base)


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "llama"])
def test_maps_are_those_of_patches_made_one_by_one(kind):
    model = randomised(replace(TINY, **PEERS[kind]))
    clean, corrupt = some_ids(TINY)
    maps = patching_maps(model, clean, corrupt, 3, 5)
    for layer in range(2):
        for position in range(len(clean)):
            for values, short in ((maps.stream, "hook_resid_pre"), (maps.mlp, "hook_mlp_out")):
                name, where = f"blocks.{layer}.{short}", (slice(None), position)
                expected = one_by_one(model, clean, corrupt, 3, 5, name, where)
                assert values[layer, position].item() == pytest.approx(expected.item(), abs=1e-8)
        for head in range(4):
            where = (slice(None), slice(None), head)
            expected = one_by_one(model, clean, corrupt, 3, 5, f"blocks.{layer}.attn.hook_z", where)
            assert maps.heads[layer, head].item() == pytest.approx(expected.item(), abs=1e-8)


def test_the_only_different_token_restores_everything_in_the_first_layer_and_the_last_position_after_all():
    model = randomised(TINY)
    clean = some_ids(TINY)[0]
    corrupt = clean.clone()
    corrupt[4] = (corrupt[4] + 1) % 23
    maps = patching_maps(model, clean, corrupt, 3, 5)
    expected = torch.zeros(11, dtype=torch.float64)
    expected[4] = 1.0
    torch.testing.assert_close(maps.stream[0], expected)
    reverse = patching_maps(model, corrupt, clean, 3, 5)
    assert (reverse.clean, reverse.corrupt) == pytest.approx((maps.corrupt, maps.clean))


def test_the_path_of_the_induction_head_is_found():
    """The prompts differ in the token after the first h: head 1.0 reads it there and writes it at the end."""
    maps = patching_maps(copying_induction_model(), CLEAN, CORRUPT, 12, 17)
    torch.testing.assert_close(
        maps.stream[1], torch.tensor([0, 0, 1, 0, 0, 0.0], dtype=torch.float64), atol=0.02, rtol=0
    )
    assert maps.heads[1, 0] == pytest.approx(1, abs=0.02)
    assert maps.heads.abs().sum() - maps.heads[1, 0].abs() < 0.05
    assert maps.attention[1, -1] == pytest.approx(1, abs=0.02)
    assert maps.mlp is None
    assert maps.clean > 0 > maps.corrupt


def test_other_mixers_have_maps_of_positions():
    maps = patching_maps(random_model("gru"), random_ids(7), random_ids(7, seed=1), 3, 5)
    assert maps.heads is None and maps.stream.shape == maps.attention.shape == (2, 7)


@pytest.mark.parametrize("mixers", ["attention + gru", "gru + attention"])
def test_only_layers_of_attention_have_effects_of_heads(mixers):
    model, clean, corrupt = random_model(mixers), random_ids(7), random_ids(7, seed=1)
    own = mixers.split(" + ").index("attention")
    measured, estimated = (find(model, clean, corrupt, 3, 5) for find in (patching_maps, estimated_maps))
    for maps in (measured, estimated):
        assert maps.heads.isnan().all(dim=1).tolist() == maps.heads.isnan().any(dim=1).tolist() == [own != 0, own != 1]
        assert maps.stream.isfinite().all() and maps.attention.isfinite().all() and maps.mlp.isfinite().all()
    for head in range(3):
        where = (slice(None), slice(None), head)
        expected = one_by_one(model, clean, corrupt, 3, 5, f"blocks.{own}.attn.hook_z", where)
        assert measured.heads[own, head].item() == pytest.approx(expected.item(), abs=1e-8)


def test_prompts_that_cannot_be_compared_are_refused():
    model, (clean, corrupt) = LanguageModel(TINY, seed=0), some_ids(TINY)
    with pytest.raises(ValueError, match="the prompts have 11 and 10 tokens"):
        patching_maps(model, clean, corrupt[:-1], 3, 5)
    with pytest.raises(ValueError, match="too close to measure"):
        patching_maps(model, clean, clean, 3, 5)
    with pytest.raises(ValueError, match="needs a decoder"):
        patching_maps(LanguageModel(replace(TINY, architecture="encoder"), seed=0), clean, corrupt, 3, 5)


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox", "llama"])
def test_estimates_are_the_effects_of_small_patches(kind):
    """A small step from the corrupt to the clean activation has its share of the estimated effect."""
    model = randomised(replace(TINY, **PEERS[kind]))
    clean, corrupt = some_ids(TINY)
    found = estimated_maps(model, clean, corrupt, 3, 5)
    own, other = Trace(model, clean[None]), Trace(model, corrupt[None])

    def effect(name, where):
        step = 1e-6 * (own[name] - other[name])[where]

        def patch(x):
            x = x.clone()
            x[where] += step
            return x

        with torch.no_grad(), observed(model, edits={name: patch}):
            logits = model.logits(model(corrupt[None]))[0, -1]
        return ((logits[3] - logits[5] - found.corrupt) / (found.clean - found.corrupt) / 1e-6).item()

    for layer in range(2):
        for values, short in ((found.stream, "hook_resid_pre"), (found.attention, "hook_attn_out")):
            got = effect(f"blocks.{layer}.{short}", (slice(None), 4))
            assert values[layer, 4].item() == pytest.approx(got, abs=1e-3, rel=1e-2)
        for head in range(4):
            got = effect(f"blocks.{layer}.attn.hook_z", (slice(None), slice(None), head))
            assert found.heads[layer, head].item() == pytest.approx(got, abs=1e-3, rel=1e-2)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_estimates_find_the_induction_head():
    model = copying_induction_model()
    found = estimated_maps(model, CLEAN, CORRUPT, 12, 17)
    assert found.heads.abs().argmax() == 2 and found.heads[1, 0] > 0.3  # head 1.0

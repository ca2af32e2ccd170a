"""Direct logit attribution: terms that add up to the logit, and that are what a part writes."""

import math
from dataclasses import replace

import pytest
import torch

from lm.config import ModelConfig
from lm.introspection.activations import observed
from lm.introspection.attribution import attribute
from lm.introspection.circuits import decompose_logits
from lm.model import LanguageModel
from tests.lm.introspection_cases import ONE_LAYER, OPTIONS, PEERS, TINY, copying_induction_model, randomised, some_ids
from tests.lm.mixer_cases import MIXERS, random_ids, random_model

DECODERS = {
    **{name: PEERS[name] for name in ("gpt2", "gpt-neox", "llama")},
    **OPTIONS,
    "sinusoidal": {"positions": "sinusoidal"},
    "alibi": {"positions": "alibi"},
    "value embeddings": {"value_embeddings": 1},
    "branch": {"norm_position": "branch"},
    "sandwich": {"norm_position": "sandwich", "mlp_norm": False},
    "rezero": {"norm_position": "rezero"},
    "deepnorm": {"norm_position": "deepnorm", "initialization": "xavier"},
    "no residual": {"residual": "none"},
    "soft cap": {"soft_cap": math.e},
    "scaled embedding": {"scaled_embedding": True, "positions": "learned"},
}


@pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("against", [None, 5])
def test_terms_add_up_to_the_logit(options, against):
    model, ids = randomised(replace(TINY, **options)), some_ids(TINY)[0]
    for position in (-1, 4):
        found = attribute(model, ids, 3, against, position)
        with torch.no_grad():
            logits = model.logits(model(ids[None]))[0, position]
        expected = logits[3] - (0.0 if against is None else logits[against])
        assert found.logit == pytest.approx(expected.item(), abs=1e-12)
        # A soft cap's term is what is missing, so it proves nothing: its size is tested below.
        assert sum(found.terms.values()) == pytest.approx(found.logit, abs=1e-9)


@pytest.mark.parametrize("mixer", MIXERS)
def test_terms_of_other_mixers_add_up(mixer):
    model, ids = random_model(mixer), random_ids(12)
    found = attribute(model, ids, 3)
    assert sum(found.terms.values()) == pytest.approx(found.logit, abs=1e-9)
    assert ("head 1.2" if mixer == "hopfield" else "mixer 1") in found.terms


def test_the_soft_cap_is_what_the_cap_takes_away():
    capped, ids = randomised(replace(TINY, soft_cap=2.0)), some_ids(TINY)[0]
    free = randomised(TINY)
    found, without = attribute(capped, ids, 3, 5), attribute(free, ids, 3, 5)
    assert {name: term for name, term in found.terms.items() if name != "soft cap"} == without.terms
    assert found.terms["soft cap"] == pytest.approx(found.logit - without.logit)


def test_terms_of_a_one_layer_model_are_its_paths():
    config = replace(ONE_LAYER, positions="learned")
    model, ids = randomised(config), some_ids(config)
    paths, found = decompose_logits(model, ids), attribute(model, ids[0], 3)
    direct = found.terms["embedding"] + found.terms["positions"]
    assert direct == pytest.approx(paths.direct[0, -1, 3].item(), abs=1e-9)
    for head in range(4):
        assert found.terms[f"head 0.{head}"] == pytest.approx(paths.heads[head, 0, -1, 3].item(), abs=1e-9)
    assert found.terms["biases"] == pytest.approx(paths.constant[0, -1, 3].item(), abs=1e-9)


def test_a_term_is_the_change_when_the_part_is_removed_and_the_scale_kept():
    model, ids = randomised(TINY), some_ids(TINY)[0]
    found = attribute(model, ids, 3)
    with torch.no_grad():
        with observed(model, ["ln_final.hook_scale"]) as kept:
            before = model.logits(model(ids[None]))[0, -1, 3]
        edits = {"ln_final.hook_scale": kept["ln_final.hook_scale"], "blocks.1.hook_mlp_out": torch.zeros(())}
        with observed(model, edits=edits):
            after = model.logits(model(ids[None]))[0, -1, 3]
    assert found.terms["mlp 1"] == pytest.approx((before - after).item(), abs=1e-9)
    assert found.frozen == ("ln_final.hook_scale",)


def test_frozen_scales_are_named():
    post = attribute(randomised(replace(TINY, norm_position="post")), some_ids(TINY)[0], 3)
    assert post.frozen == tuple(f"blocks.{layer}.ln{number}.hook_scale" for layer in (0, 1) for number in (1, 2))
    branch = attribute(randomised(replace(TINY, norm_position="branch")), some_ids(TINY)[0], 3)
    assert branch.frozen == ("blocks.0.ln1.hook_scale", "blocks.1.ln1.hook_scale", "ln_final.hook_scale")


def test_the_induction_head_raises_the_repeated_token():
    model = copying_induction_model()
    ids = torch.tensor([7, 3, 12, 5, 9, 3])
    found = attribute(model, ids, 12, 5)
    assert max(found.terms, key=found.terms.get) == "head 1.0"
    assert found.terms["head 1.0"] / found.logit > 0.99


def test_encoders_are_refused_by_name():
    model = LanguageModel(ModelConfig(**{**vars(TINY), "architecture": "encoder"}), seed=0)
    with pytest.raises(ValueError, match=r"model\.architecture is 'encoder', but attribution needs a decoder"):
        attribute(model, some_ids(TINY)[0], 3)

"""Sparse autoencoders: what they recover of a known mixture, exact and empty ones in a run, and a recomputation."""

import copy
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import bytelm
from lm.introspection.sparse_autoencoder import SILENT_STEPS, AutoencoderTraining, SparseAutoencoder
from pipelines.inspection.instruments.autoencoder import AutoencoderOfRun, measured
from pipelines.inspection.own_text import OwnText

NAME, WIDTH = "blocks.0.hook_resid_post", 32


@pytest.fixture(scope="module")
def gpt(trained_gpt):
    return bytelm.load_run(trained_gpt)


@pytest.fixture(scope="module")
def batches(gpt):
    return OwnText.of(gpt).validation(700)


def exact_autoencoder():
    """Return one whose features are both directions of each axis: it reconstructs everything."""
    made = SparseAutoencoder(WIDTH, 2 * WIDTH, WIDTH, torch.Generator())
    with torch.no_grad():
        made.decoder.copy_(torch.cat((torch.eye(WIDTH), -torch.eye(WIDTH))))
        made.encoder.copy_(made.decoder)
    return made


def test_training_recovers_the_directions_of_a_sparse_mixture():
    generator = torch.Generator().manual_seed(0)
    directions = F.normalize(torch.randn(24, 16, generator=generator), dim=-1)

    def draw(count):
        chosen = torch.rand(count, 24, generator=generator).topk(2, dim=-1).indices
        sizes = 1 + torch.rand(count, 2, generator=generator)
        return torch.zeros(count, 24).scatter(1, chosen, sizes) @ directions + 3

    made = SparseAutoencoder(16, 32, 2, generator)
    training = AutoencoderTraining(made)
    losses = [training.step(draw(512), i / 700) for i in range(700)]
    assert losses[-1] < 0.15 < losses[0]
    nearest = (directions @ made.decoder.detach().T).max(dim=-1).values
    assert (nearest > 0.95).float().mean() > 0.8
    assert made.decoder.norm(dim=-1).tolist() == pytest.approx([1] * 32, rel=1e-5)
    z = made.encode(draw(100))
    assert (z > 0).sum(dim=-1).max() <= 2 and (z >= 0).all()


def test_silent_features_are_revived():
    generator = torch.Generator().manual_seed(0)
    made = SparseAutoencoder(8, 16, 2, generator)
    training = AutoencoderTraining(made)
    x = torch.randn(256, 8, generator=generator)
    training.step(x, 0)
    with torch.no_grad():
        made.encoder_bias[:8] = -1.0
        made.encoder_bias[8:] = 1.0
    training.silent[:8] = SILENT_STEPS
    before = made.encoder[:8].detach().clone()
    training.step(x, 0)
    assert (made.encoder[:8] - before).abs().max() > 1e-4
    assert (training.silent >= 0).all()


def test_an_exact_autoencoder_recovers_all_and_an_empty_one_what_its_bias_does(gpt, batches):
    quality, activity = measured(gpt.model, exact_autoencoder(), NAME, batches)
    assert quality.explained_variance == pytest.approx(1, abs=1e-6)
    assert quality.loss_recovered == pytest.approx(1, abs=1e-4) and quality.spliced_bits == pytest.approx(
        quality.loss_bits
    )
    assert quality.mean_active == pytest.approx(WIDTH, abs=0.1) and quality.dead == int((activity.fired == 0).sum())
    empty = exact_autoencoder()
    with torch.no_grad():
        empty.decoder.zero_()
    quality, _ = measured(gpt.model, empty, NAME, batches)
    assert quality.spliced_bits == quality.zero_bits and quality.loss_recovered == 0
    with torch.no_grad():
        empty.bias.copy_(torch.cat([gpt_activations(gpt, batch) for batch in batches]).mean(dim=0))
    quality, _ = measured(gpt.model, empty, NAME, batches)
    assert quality.explained_variance == pytest.approx(0, abs=1e-6)
    assert quality.spliced_bits == pytest.approx(quality.mean_bits, rel=1e-5)


def test_numbers_without_a_divisor_are_undefined(gpt, batches):
    """The output of the layer is the same everywhere, and zero: the mean and zeros change nothing."""
    model = copy.deepcopy(gpt.model)
    model.stack.blocks[0].register_forward_hook(lambda _, inputs, output: 0 * output)
    made = SparseAutoencoder(WIDTH, 8, 2, torch.Generator().manual_seed(0))
    quality, _ = measured(model, made, NAME, batches)
    assert quality.explained_variance is None and quality.loss_recovered is None
    assert quality.zero_bits == quality.loss_bits
    found = AutoencoderOfRun(0, 8, 2, quality, (), 1, 1, 1, "data")
    cells = dict(found.parts()[0].rows)
    assert cells["explained variance"] == cells["loss recovered"] == ["undefined"]
    assert json.loads(json.dumps(found.to_json()))["quality"]["loss_recovered"] is None


def gpt_activations(gpt, batch):
    trace = gpt.trace("x")
    trace.ids = torch.from_numpy(batch.inputs)
    return trace[NAME].flatten(0, 1)


def test_the_numbers_of_a_run_are_those_of_a_direct_computation(gpt, batches):
    options = {"steps": 5, "validation_tokens": 700, "sae_features": 48, "sae_active": 6, "sae_show": (3,)}
    found = bytelm.inspect(gpt, instruments="autoencoder", **options)["autoencoder"][0]
    assert (found.layer, found.features, found.steps, found.trained_tokens) == (0, 48, 5, 5 * 1024)
    (picture,) = found.pictures()
    losses = [getattr(found.quality, f"{name}_bits") for name in ("loss", "spliced", "mean", "zero")]
    assert list(picture.values.values()) == losses
    own, generator = OwnText.of(gpt), np.random.default_rng(0)
    made = SparseAutoencoder(WIDTH, 48, 6, torch.Generator().manual_seed(0))
    training = AutoencoderTraining(made)
    for i in range(5):
        training.step(gpt_activations(gpt, own.training(generator, 1024)), i / 5)
    x = torch.cat([gpt_activations(gpt, batch) for batch in batches])
    with torch.no_grad():
        z = made.encode(x)
        error = (x - made.decode(z)).square().sum() / (x - x.mean(dim=0)).square().sum()
    assert found.quality.explained_variance == pytest.approx(1 - error.item(), rel=1e-3)
    assert found.quality.mean_active == pytest.approx((z > 0).sum().item() / len(x), rel=1e-3)
    assert found.quality.dead == int((z <= 0).all(dim=0).sum()) and found.tokens == len(x)
    with gpt.edit({NAME: made}) as edited:
        row = torch.from_numpy(batches[0].inputs[:1])
        trace = edited.trace("x")
        trace.ids = row
        with torch.no_grad():
            logits = gpt.model.logits(gpt.model.stack.final_norm(trace[NAME]))
    nats = F.cross_entropy(logits[0], torch.from_numpy(batches[0].targets[0])).item()
    quality, _ = measured(gpt.model, made, NAME, [next(iter(batches[0].split(1)))])
    assert quality.spliced_bits == pytest.approx(nats / math.log(2), rel=1e-4)
    (feature,) = found.shown
    assert feature.feature == 3 and feature.fires == pytest.approx((z[:, 3] > 0).float().mean().item(), abs=2e-3)
    strongest = [one.activation for one in feature.triggers]
    assert strongest == pytest.approx([v for v in z[:, 3].topk(5).values.tolist() if v > 0], rel=1e-2)


def test_options_that_do_not_fit_are_named(gpt):
    for words, options in {
        "`sae_layer` is 1, but the model has the layers 0 to 0": {"sae_layer": 1},
        "`sae_active` is 9, but must be from 1 to the number of features, 8": {"sae_active": 9, "sae_features": 8},
        "`sae_show` names 128, but features are 0 to 127": {"sae_show": (128,)},
        "`validation_tokens` is 0": {"validation_tokens": 0},
    }.items():
        with pytest.raises(ValueError, match=words):
            bytelm.inspect(gpt, instruments="autoencoder", **options)

"""Every parameter starts as the table in lm/initialization.py says."""

import math
from dataclasses import replace

import pytest
import torch

from lm.config import ModelConfig
from lm.model import LanguageModel
from tests.lm.test_blocks import projections

SHAPE = {"vocab_size": 600, "context_length": 128, "layers": 8, "width": 128, "heads": 4}
DECODER = ModelConfig(**SHAPE, activation="swiglu", qk_norm=True, tied_head=False)
ENCODER = ModelConfig(**SHAPE, architecture="encoder", positions="learned", token_types=200)
BOTH = ModelConfig(**SHAPE, architecture="encoder-decoder", positions="relative", decoder_layers=3)


def check(key, parameter, deviation):
    """Check that `parameter` has mean 0 and the standard deviation `deviation`, within sampling error."""
    slack = 5 * deviation / math.sqrt(2 * parameter.numel())  # standard error: std / sqrt(2n) for a normal one
    assert parameter.std().item() == pytest.approx(deviation, abs=slack), key
    assert abs(parameter.mean().item()) < 5 * deviation / math.sqrt(parameter.numel()), key


def random_parameters(model):
    """Yield (name, parameter) of each random parameter, and check that biases are 0 and norms 1."""
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            assert parameter.count_nonzero() == 0, key
        elif key.endswith("norm.weight"):
            assert (parameter == 1).all(), key
        else:
            yield key, parameter


@pytest.mark.parametrize("config", [DECODER, ENCODER, BOTH], ids=lambda config: config.architecture)
def test_gpt2_draws_with_a_small_deviation_and_smaller_where_the_residual_stream_is_written(config):
    for key, parameter in random_parameters(LanguageModel(config, seed=0)):
        deviation = 0.02
        if key.endswith(("attention.output.weight", "mlp.down.weight")):
            both = config.architecture == "encoder-decoder" and key.startswith("decoder")
            deviation /= math.sqrt(3 * 3 if both else 2 * 8)
        check(key, parameter, deviation)


def test_a_block_without_an_mlp_writes_to_the_residual_stream_once():
    for key, parameter in random_parameters(LanguageModel(replace(DECODER, mlp=False), seed=0)):
        check(key, parameter, 0.02 / math.sqrt(8) if key.endswith("attention.output.weight") else 0.02)


@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder-decoder"])
def test_xavier_keeps_variances_in_both_directions(architecture):
    config = ModelConfig(**SHAPE, architecture=architecture, initialization="xavier", positions="sinusoidal")
    for key, parameter in random_parameters(LanguageModel(config, seed=0)):
        if key == "embedding.weight":
            check(key, parameter, 128**-0.5)
            continue
        limit = math.sqrt(6 / sum(parameter.shape))
        assert parameter.abs().max() <= limit, key
        check(key, parameter, limit / math.sqrt(3))


def test_t5_gives_every_layer_and_the_unscaled_scores_unit_variance():
    config = replace(BOTH, initialization="t5", scaled_attention=False, scaled_head=True, activation="relu", bias=False)
    model = LanguageModel(config, seed=0)
    for key, parameter in random_parameters(model):
        deviation = 1.0 if key == "embedding.weight" else 128**-0.5
        if key.endswith("query.weight"):
            deviation = (128 * 32) ** -0.5
        elif key.endswith("down.weight"):
            deviation = 512**-0.5
        check(key, parameter, deviation)
    x = torch.nn.functional.rms_norm(torch.randn(1, 200, 128, generator=torch.Generator().manual_seed(0)), (128,))
    for block in model.decoder.blocks:
        q, k, v = projections(block.attention, x)
        assert (q @ k.transpose(-1, -2)).std().item() == pytest.approx(1, abs=0.1)
        assert v.std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("config", [ENCODER, replace(DECODER, tied_head=True)], ids=lambda config: config.architecture)
def test_t5_gives_the_logits_of_a_scaled_head_unit_variance(config):
    model = LanguageModel(replace(config, initialization="t5", scaled_head=True), seed=0)
    ids = torch.randint(600, (2, 32), generator=torch.Generator().manual_seed(1))
    assert model.logits(model(ids)).std().item() == pytest.approx(1, abs=0.1)


def test_t5_divides_queries_only_where_attention_does_not_scale_scores():
    model = LanguageModel(replace(DECODER, initialization="t5"), seed=0)
    for key, parameter in random_parameters(model):
        if key.endswith("query.weight"):
            check(key, parameter, 128**-0.5)


def test_t5_refuses_a_tied_head_without_scaling():
    with pytest.raises(ValueError, match=r"model.initialization is 't5'.*model.scaled_head=true"):
        ModelConfig(**SHAPE, initialization="t5")


def test_zero_projections_make_every_block_the_identity_at_first():
    config = ModelConfig(**SHAPE, zero_projections=True, embedding_skips=True, value_embeddings=2)
    model = LanguageModel(config, seed=0)
    for block in model.stack.blocks:
        assert block.attention.output.weight.count_nonzero() == block.mlp.down.weight.count_nonzero() == 0
    assert (model.stack.residual_scales == 1).all()
    assert (model.stack.embedding_scales == 0).all()
    scales = [block.attention.value_scale for block in model.stack.blocks]
    assert [None if scale is None else scale.item() for scale in scales] == [0.5, 0.5, None, None, None, None, 0.5, 0.5]

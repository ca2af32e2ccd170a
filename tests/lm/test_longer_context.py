"""A trained model reads longer texts: the frequencies are those of `transformers`, and the weights stay."""

import math

import pytest
import torch

from lm.config import ModelConfig
from lm.longer_context import with_context
from lm.model import LanguageModel
from lm.positions import rotary_frequencies
from lm.task_model import reconfigured

SHAPE = {"vocab_size": 50, "layers": 2, "width": 64, "heads": 2}
TRAINED = ModelConfig(context_length=64, **SHAPE)


@pytest.mark.parametrize("rotary_width", [0, 8])
@pytest.mark.parametrize("scaling", ["linear", "ntk", "yarn"])
def test_scaled_frequencies_are_those_of_transformers(scaling, rotary_width):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = ModelConfig(context_length=64, rotary_width=rotary_width, **SHAPE)
    kind = {"ntk": "dynamic"}.get(scaling, scaling)
    # The base of `dynamic` grows with the text: at the longest text it is that of ntk.
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 1.0 if scaling == "ntk" else 4.0}
    rope |= {"original_max_position_embeddings": 64, "partial_rotary_factor": (rotary_width or 32) / 32}
    peer = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=2, max_position_embeddings=64, rope_parameters=rope
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](peer, torch.device("cpu"), seq_len=256)
    frequencies, factor = rotary_frequencies(with_context(config, 256, scaling))
    torch.testing.assert_close(frequencies.float(), expected, rtol=1e-5, atol=0.0)
    assert factor == pytest.approx(expected_factor)


def test_ntk_keeps_the_fastest_frequency_and_divides_the_slowest():
    before, after = (rotary_frequencies(config)[0] for config in (TRAINED, with_context(TRAINED, 256, "ntk")))
    assert after[0] == before[0] == 1.0
    assert after[-1].item() == pytest.approx(before[-1].item() / 4)
    assert bool((after[1:-1] < before[1:-1]).all() and (after[1:-1] > before[1:-1] / 4).all())


def test_linear_scaling_reads_every_position_in_the_trained_range():
    longer = LanguageModel(with_context(TRAINED, 256, "linear")).stack.rotary
    trained = LanguageModel(TRAINED).stack.rotary
    assert longer is not None and trained is not None
    torch.testing.assert_close(longer.cosine[::4], trained.cosine)
    torch.testing.assert_close(longer.sine[::4], trained.sine)


@pytest.mark.parametrize(
    "kind",
    [
        {"positions": "rotary"},
        {"positions": "sinusoidal"},
        {"positions": "relative"},
        {"positions": "alibi"},
        {"positions": "relative-keys"},
        {"positions": "none"},
        {"positions": "none", "mixer": "gru"},
        {"positions": "rotary", "mixer": "retention"},
        {"positions": "none", "mixer": "mamba2"},
    ],
)
def test_a_longer_context_keeps_the_weights_and_the_hidden_states_of_the_beginning(kind):
    config = ModelConfig(context_length=16, **SHAPE, **kind)
    model = LanguageModel(config, seed=3).eval()
    longer = reconfigured(model, with_context(config, 64))
    ids = torch.randint(50, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(longer(ids)[:, :16], model(ids[:, :16]), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in longer.state_dict().items())
    assert not math.isnan(longer(ids).sum().item())


@pytest.mark.parametrize(
    ("fields", "length", "scaling", "words"),
    [
        (
            {"positions": "learned"},
            65,
            "none",
            "learned positions: a vector for each of the 64 .*none beyond.*init_from",
        ),
        ({"positions": "alibi"}, 128, "yarn", "positions='alibi': leave it out"),
        ({"rotary_scaling": "linear", "rotary_factor": 2.0}, 128, "ntk", "rotary_scaling='linear' from its training"),
        ({}, 64, "yarn", "the trained length of 64 tokens: give a longer `context`, such as 256"),
        ({"rotary_width": 2}, 128, "ntk", "rotates one pair: give 'linear' or 'yarn'"),
        ({}, 0, "none", "`context` is 0: give at least 1"),
    ],
)
def test_a_context_that_the_model_cannot_read_is_refused_with_the_remedy(fields, length, scaling, words):
    with pytest.raises(ValueError, match=words):
        with_context(ModelConfig(context_length=64, **SHAPE, **fields), length, scaling)


def test_learned_positions_read_a_shorter_context():
    assert with_context(ModelConfig(context_length=64, positions="learned", **SHAPE), 32).context_length == 32

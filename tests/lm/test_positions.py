"""Position encodings equal the formulas of their papers and the results of `transformers`."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.config import ModelConfig
from lm.decoding.generation import generate
from lm.model import LanguageModel
from lm.positions import (
    LinearBias,
    RelativeBias,
    RotaryTables,
    alibi_slopes,
    relative_buckets,
    rotary_frequencies,
    rotate,
    sinusoidal_table,
    with_resized_positions,
)

FEW = settings(max_examples=25, deadline=None)


def tables(length, head_width, base=10000.0):
    return RotaryTables(ModelConfig(context_length=length, width=head_width, heads=1, rotary_base=base))


@FEW
@given(first=st.integers(0, 60), second=st.integers(0, 60), shift=st.integers(0, 60), seed=st.integers(0, 2**32))
def test_rotary_scores_depend_on_the_offset_alone(first, second, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(16, generator=generator, dtype=torch.float64) for _ in range(2))
    cosine, sine = tables(121, 16)(slice(0, 121), torch.float64)

    def score(i, j):
        return rotate(q, cosine[i], sine[i]) @ rotate(k, cosine[j], sine[j])

    assert abs(score(first, second) - score(first + shift, second + shift)).item() < 1e-5


def test_rotation_keeps_lengths_and_leaves_position_zero_alone():
    x = torch.randn(2, 3, 9, 8)
    turned = rotate(x, *tables(9, 8, base=100.0)(slice(0, 9), torch.float32))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])


def test_positions_per_sequence_rotate_like_a_shifted_slice():
    x, rotary = torch.randn(2, 3, 4, 8), tables(20, 8)
    positions = torch.tensor([[0, 1, 2, 3], [7, 8, 9, 10]])
    turned = rotate(x, *rotary(positions, torch.float32))
    for row, start in enumerate((0, 7)):
        expected = rotate(x[row], *rotary(slice(start, start + 4), torch.float32))
        torch.testing.assert_close(turned[row], expected)


@pytest.mark.parametrize("scaling", ["none", "linear", "yarn", "llama3"])
def test_rotary_frequencies_are_those_of_transformers(scaling):
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = ModelConfig(
        context_length=8192,
        width=256,
        heads=4,
        rotary_base=500000.0,
        rotary_scaling=scaling,
        rotary_factor=1.0 if scaling == "none" else 8.0,
        rotary_original_length=1024 if scaling in ("yarn", "llama3") else 0,
    )
    rope = {"rope_type": scaling, "rope_theta": 500000.0, "factor": 8.0, "original_max_position_embeddings": 1024}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if scaling == "llama3" else {}
    frequencies, factor = rotary_frequencies(config)
    if scaling == "none":
        expected, expected_factor = 500000.0 ** (-torch.arange(0, 64, 2).double() / 64), 1.0
    else:
        peer = transformers.LlamaConfig(
            hidden_size=256, num_attention_heads=4, max_position_embeddings=8192, rope_parameters=rope
        )
        expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling](peer, device="cpu")
    torch.testing.assert_close(frequencies, expected.double(), rtol=1e-5, atol=0)
    assert factor == pytest.approx(expected_factor)


def test_sinusoids_are_those_of_the_original_transformer():
    table = sinusoidal_table(50, 6)
    for t in (0, 1, 49):
        for i in range(3):
            angle = t / 10000 ** (2 * i / 6)
            assert table[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("shift", [1, 5, 30])
def test_shifting_sinusoids_is_one_linear_map_for_all_positions(shift):
    """PE(t + k) = M_k PE(t) (Vaswani et al. 2017, 3.5): M_k turns each sine and cosine by k times its frequency."""
    table = sinusoidal_table(100, 16).double()
    angles = shift / 10000 ** (torch.arange(0, 16, 2).double() / 16)
    turns = [torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]) for a in angles.tolist()]
    linear_map = torch.block_diag(*turns).double()
    torch.testing.assert_close(table[: 100 - shift] @ linear_map.T, table[shift:], atol=1e-5, rtol=0)


@FEW
@given(
    causal=st.booleans(),
    quarter=st.integers(1, 16),
    more=st.integers(1, 300),
    offsets=st.lists(st.integers(-2000, 2000), min_size=1, max_size=50),
)
def test_relative_buckets_are_those_of_t5(causal, quarter, more, offsets):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    buckets, farthest, offsets = 4 * quarter, 2 * quarter + more, torch.tensor([offsets])
    expected = t5.T5Attention._relative_position_bucket(offsets, not causal, buckets, farthest)
    assert torch.equal(relative_buckets(offsets, buckets, farthest, causal), expected)


def test_relative_bias_depends_on_the_offset_alone():
    config = ModelConfig(positions="relative", heads=3, width=24)
    bias = RelativeBias(config, causal=False)
    torch.nn.init.normal_(bias.weight)
    table = bias(slice(0, 40), 40)[0]
    assert table.shape == (3, 40, 40)
    for offset in (-7, 0, 13):
        diagonal = table.diagonal(offset, dim1=1, dim2=2)
        torch.testing.assert_close(diagonal, diagonal[:, :1].expand_as(diagonal))
    torch.testing.assert_close(bias(slice(30, 40), 40)[0], table[:, 30:])


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 16, 25, 32, 71, 112])
def test_alibi_slopes_are_those_of_bloom_and_mpt(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    slopes = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), slopes)
    torch.testing.assert_close(alibi_slopes(heads), -mpt.build_mpt_alibi_tensor(heads, 2).flatten(1)[:, 0])


def test_alibi_reproduces_the_example_of_the_paper():
    """Press et al. 2022, figure 3: with 8 heads, slopes 1/2 to 1/256 times -4 to 0 before the last of 5 positions."""
    bias = LinearBias(8)(slice(4, 5), 5)
    expected = torch.outer(0.5 ** torch.arange(1, 9), torch.arange(-4.0, 1.0))
    torch.testing.assert_close(bias, expected[None, :, None])


@pytest.mark.parametrize("architecture", ["decoder", "encoder", "encoder-decoder"])
def test_alibi_reads_past_the_context_length_and_makes_order_matter(architecture):
    config = ModelConfig(
        architecture=architecture, vocab_size=30, context_length=8, layers=2, width=24, heads=3, positions="alibi"
    )
    model = LanguageModel(config, seed=0).double()
    model.compute_dtype = torch.float64
    ids, order = torch.arange(20)[None], torch.randperm(20, generator=torch.Generator().manual_seed(0))
    source = (ids,) if architecture == "encoder-decoder" else ()
    hidden, moved = model(ids, *source), model(ids[:, order], *source)
    assert hidden.shape == (1, 20, 24)
    assert (hidden[:, order] - moved).abs().max() > 1e-3
    if architecture == "encoder":  # the symmetric form knows distances, not directions
        torch.testing.assert_close(model(ids.flip(1)).flip(1), hidden)
    assert sum(p.numel() for p in model.stack.parameters()) == sum(p.numel() for p in model.stack.state_dict().values())


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"kv_heads": 3}], ids=str)
def test_alibi_generates_the_same_with_and_without_a_cache(options):
    config = ModelConfig(vocab_size=30, context_length=12, layers=2, width=48, heads=6, positions="alibi", **options)
    model = LanguageModel(config, seed=1).double()
    model.compute_dtype = torch.float64
    with torch.no_grad():
        for parameter in model.stack.blocks.parameters():
            parameter *= 20  # the output of a fresh model would repeat one token
    prompts = torch.tensor([[0, 0, 5, 7], [1, 2, 3, 4]])
    present = torch.tensor([[False, False, True, True], [True] * 4])
    cached, plain = (
        generate(model, prompts, 20, present=present, temperature=0.0, use_cache=choice) for choice in (True, False)
    )
    assert torch.equal(cached, plain)
    assert torch.equal(cached[0], generate(model, prompts[0, 2:], 20, temperature=0.0))
    assert len(cached.unique()) > 3


@FEW
@given(
    old=st.integers(1, 40),
    new=st.integers(1, 90),
    offset=st.integers(0, 2),
    architecture=st.sampled_from(["decoder", "encoder"]),
)
def test_learned_positions_are_cut_or_repeated_for_another_context(old, new, offset, architecture):
    shape = {"architecture": architecture, "positions": "learned", "vocab_size": 9, "layers": 1, "width": 8, "heads": 2}
    shape["position_offset"] = offset
    given = LanguageModel(ModelConfig(context_length=old, **shape), seed=0).state_dict()
    model = LanguageModel(ModelConfig(context_length=new, **shape), seed=1)
    resized = with_resized_positions(given, model)
    model.load_state_dict(resized)
    name = f"{architecture}.positional.learned.weight"
    assert torch.equal(resized[name][:offset], given[name][:offset])
    assert all(torch.equal(resized[name][offset + i], given[name][offset + i % old]) for i in range(new))
    assert all(resized[key] is given[key] for key in given if key != name)


@pytest.mark.parametrize("positions", ["rotary", "learned", "sinusoidal", "relative", "relative-keys", "alibi", "none"])
@pytest.mark.parametrize("length", [8, 48])
def test_another_context_does_not_change_the_logits_of_short_texts(positions, length):
    shape = {"positions": positions, "vocab_size": 50, "layers": 2, "width": 32, "heads": 2}
    first = LanguageModel(ModelConfig(context_length=16, **shape), seed=0).eval()
    second = LanguageModel(ModelConfig(context_length=length, **shape), seed=1).eval()
    second.load_state_dict(with_resized_positions(first.state_dict(), second))
    ids = torch.randint(50, (3, 8), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(second.logits(second(ids)), first.logits(first(ids)), rtol=1e-6, atol=1e-6)

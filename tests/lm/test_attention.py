"""Every backend means the same attention."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.attention import BACKENDS
from lm.positions import rotary_tables, rotate, sinusoidal_table

FEW = settings(max_examples=25, deadline=None)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}


def by_loops(q, k, v, causal):
    """Softmax-weighted means, one query at a time, in Python floats."""
    length, keys = q.shape[-2], k.shape[-2]
    out = torch.zeros_like(q)
    for t in range(length):
        seen = keys - length + t + 1 if causal else keys
        scores = [sum(a * b for a, b in zip(q[t].tolist(), k[s].tolist(), strict=True)) for s in range(seen)]
        scores = [score / math.sqrt(q.shape[-1]) for score in scores]
        exponentials = [math.exp(score - max(scores)) for score in scores]
        for s, weight in enumerate(exponentials):
            out[t] += weight / sum(exponentials) * v[s]
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_backend_computes_the_textbook_sum(name, causal):
    torch.manual_seed(0)
    q, k, v = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 4)
    got = BACKENDS[name](q[None, None], k[None, None], v[None, None], causal=causal)[0, 0]
    torch.testing.assert_close(got, by_loops(q, k, v, causal), atol=1e-5, rtol=1e-5)


@FEW
@given(
    name=st.sampled_from(sorted(set(BACKENDS) - {"reference"})),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
    length=st.integers(1, 300),
    past=st.integers(0, 40),
    heads=st.integers(1, 3),
    causal=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_backends_agree_with_the_reference_forward_and_backward(name, dtype, length, past, heads, causal, seed):
    generator = torch.Generator().manual_seed(seed)
    exact = [
        torch.randn(2, heads, n, 8, dtype=torch.float64, generator=generator).to(dtype)
        for n in (length, length + past, length + past)
    ]
    upstream = torch.randn(2, heads, length, 8, dtype=torch.float64, generator=generator).to(dtype)
    results = []
    for backend, wide in ((BACKENDS["reference"], torch.float64), (BACKENDS[name], dtype)):
        inputs = [x.to(wide).requires_grad_() for x in exact]
        out = backend(*inputs, causal=causal)
        gradients = torch.autograd.grad(out, inputs, upstream.to(wide))
        results.append([out, *gradients])
    for expected, got in zip(*results, strict=True):
        assert got.dtype == dtype
        scale = max(1.0, expected.abs().max().item())
        assert (expected - got.double()).abs().max().item() <= TOLERANCE[dtype] * scale


@FEW
@given(first=st.integers(0, 60), second=st.integers(0, 60), shift=st.integers(0, 60), seed=st.integers(0, 2**32))
def test_rotary_scores_depend_on_the_offset_alone(first, second, shift, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(16, generator=generator, dtype=torch.float64) for _ in range(2))
    cosine, sine = (table.double() for table in rotary_tables(121, 16, base=10000.0))

    def score(i, j):
        return rotate(q, cosine[i], sine[i]) @ rotate(k, cosine[j], sine[j])

    assert abs(score(first, second) - score(first + shift, second + shift)).item() < 1e-5


def test_rotation_keeps_lengths_and_leaves_position_zero_alone():
    x = torch.randn(2, 3, 9, 8)
    cosine, sine = rotary_tables(9, 8, base=100.0)
    turned = rotate(x, cosine, sine)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])


def test_sinusoids_are_those_of_the_original_transformer():
    table = sinusoidal_table(50, 6)
    for t in (0, 1, 49):
        for i in range(3):
            angle = t / 10000 ** (2 * i / 6)
            assert table[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)

"""Norms and activations with hand-written derivatives equal their formulas."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from lm import layers
from lm.layers import ACTIVATIONS, RMSNorm


def norm_of(width, eps, seed):
    norm = RMSNorm(width, eps).double()
    torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(seed))
    return norm


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([1e-12, 1e-5, 1.0]), st.integers(0, 9))
def test_an_rms_norm_and_its_gradients_equal_those_of_torch(shape, eps, seed):
    norm = norm_of(shape[-1], eps, seed)
    x, direction = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).unbind()
    found, expected = [], []
    for result, out in (
        (found, norm),
        (expected, lambda x: F.rms_norm(x, norm.weight.shape, norm.weight, eps)),
    ):
        given = x.clone().requires_grad_()
        y = out(given)
        result += [y, *torch.autograd.grad(y, (given, norm.weight), direction)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    with torch.no_grad():
        assert torch.equal(norm(x), found[0])


def test_an_rms_norm_passes_gradcheck_on_attention_heads():
    norm = norm_of(4, 1e-5, 0)
    x = torch.randn(2, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, weight: norm(x.transpose(1, 2)), (x, norm.weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_rms_norm_of_zeros_is_zero_and_that_of_large_numbers_finite(dtype):
    norm = RMSNorm(8, 1e-6)
    torch.nn.init.ones_(norm.weight)
    for x in (torch.zeros(3, 8, dtype=dtype), torch.full((3, 8), 1e18, dtype=dtype)):
        x.requires_grad_()
        y = norm(x)
        y.sum().backward()
        assert y.dtype == x.grad.dtype == dtype
        assert norm.weight.grad.dtype == torch.float32
        assert y.isfinite().all() and x.grad.isfinite().all() and norm.weight.grad.isfinite().all()
    assert torch.allclose(y.float(), torch.ones(3, 8))


def test_compiled_gelu_is_the_same_function():
    x = torch.linspace(-12, 12, 4801, dtype=torch.float64, requires_grad=True)
    traced = torch.compile(ACTIVATIONS["gelu_tanh"], fullgraph=True, backend="eager")
    expected = F.gelu(x, approximate="tanh")
    torch.testing.assert_close(traced(x), expected)
    (gradient,) = torch.autograd.grad(traced(x).sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), x)[0])
    low = x.detach().bfloat16()
    torch.testing.assert_close(traced(low), F.gelu(low, approximate="tanh"))


PLAIN = {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu2": lambda x: F.relu(x).square()}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_hand_written_derivatives_equal_those_of_the_formulas(name, dtype, monkeypatch):
    monkeypatch.setattr(layers, "TILE", 1000)  # several tiles, the last of them not full
    x = torch.linspace(-12, 12, 4802, dtype=dtype).view(2, -1).T.requires_grad_()
    assert not x.is_contiguous()
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    ours, theirs = ACTIVATIONS[name](x), PLAIN[name](x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, x, upstream), torch.autograd.grad(theirs, x, upstream))
    with torch.no_grad():
        torch.testing.assert_close(ACTIVATIONS[name](x), theirs.detach())


@pytest.mark.parametrize("name", PLAIN)
def test_hand_written_derivatives_accept_empty_and_non_finite_input(name):
    nothing = torch.empty(0, 3, requires_grad=True)
    ACTIVATIONS[name](nothing).sum().backward()
    assert nothing.grad.shape == (0, 3)
    x = torch.tensor([1.0, torch.nan, 2.0], requires_grad=True)
    got = torch.autograd.grad(ACTIVATIONS[name](x).sum(), x)[0]
    assert got.isnan().tolist() == [False, True, False]

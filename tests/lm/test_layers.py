"""Layers whose derivatives are written out have those of their formulas."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from lm.layers import RMSNorm


def norm_of(width, eps, seed):
    norm = RMSNorm(width, eps).double()
    torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(seed))
    return norm


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from([1e-12, 1e-5, 1.0]), st.integers(0, 9))
def test_an_rms_norm_and_its_gradients_are_those_of_torch(shape, eps, seed):
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


def test_an_rms_norm_passes_gradcheck_on_heads_as_attention_has_them():
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

"""The nonlinearities: their derivatives by hand, and what a compiler is given instead."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from lm import activations
from lm.activations import ACTIVATIONS


def test_what_a_compiler_sees_of_gelu_is_the_same_function():
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
def test_derivatives_by_hand_are_those_of_the_formulas(name, dtype, monkeypatch):
    monkeypatch.setattr(activations, "TILE", 1000)  # several tiles, and one that is not full
    x = torch.linspace(-12, 12, 4802, dtype=dtype).view(2, -1).T.requires_grad_()
    assert not x.is_contiguous()
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    ours, theirs = ACTIVATIONS[name](x), PLAIN[name](x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, x, upstream), torch.autograd.grad(theirs, x, upstream))
    with torch.no_grad():
        torch.testing.assert_close(ACTIVATIONS[name](x), theirs.detach())


@pytest.mark.parametrize("name", PLAIN)
def test_derivatives_by_hand_of_nothing_and_of_what_is_not_finite(name):
    nothing = torch.empty(0, 3, requires_grad=True)
    ACTIVATIONS[name](nothing).sum().backward()
    assert nothing.grad.shape == (0, 3)
    x = torch.tensor([1.0, torch.nan, 2.0], requires_grad=True)
    got = torch.autograd.grad(ACTIVATIONS[name](x).sum(), x)[0]
    assert got.isnan().tolist() == [False, True, False]

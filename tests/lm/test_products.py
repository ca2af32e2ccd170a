"""Products of 8-bit floats give the loss of rounded factors, and gradients near those of exact ones."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lm.logit_loss import fused_score
from lm.losses import linear_cross_entropy
from lm.matmul import BACKWARD, FORWARD, Float8Products, quantize, require_float8


def problem(n, v, width):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(n, width, generator=generator).bfloat16()
    weight, bias = 0.3 * torch.randn(v, width, generator=generator), torch.randn(v, generator=generator)
    targets, weights = torch.randint(v, (n,), generator=generator), torch.rand(n, generator=generator).round()
    return rows.requires_grad_(), weight.requires_grad_(), targets, bias.requires_grad_(), weights


def rounded(x):
    values, scale = quantize(x)
    return values.float() * scale


def assert_near(ours, theirs, tolerance):
    assert (ours.float() - theirs.float()).norm() <= tolerance * theirs.float().norm()


@pytest.mark.parametrize("entries", [50, 64])
def test_products_are_those_of_rounded_factors(entries):
    generator = torch.Generator().manual_seed(0)
    rows, matrix, weighted, gradient = (
        torch.randn(*shape, generator=generator).bfloat16() for shape in ((48, 32), (entries, 32), (48, 32), (48, 64))
    )
    gradient[:, entries:] = 0.0
    bias = torch.randn(entries, generator=generator).bfloat16()
    products = Float8Products(rows, matrix, columns=64)
    logits = torch.empty(32, 64, dtype=torch.bfloat16)
    products.logits(slice(16, 48), logits, bias)
    exact = rounded(rows)[16:] @ rounded(matrix).T + bias
    torch.testing.assert_close(logits[:, :entries].float(), exact, rtol=2**-6, atol=2**-6)

    total = torch.ones(entries, 32)
    rows_gradient = products.backward(gradient, weighted, total, first=False)
    gradient8 = gradient[:, :entries].to(BACKWARD).float() / Float8Products.gradient_scale
    unscaled = gradient[:, :entries].float() / Float8Products.gradient_scale
    torch.testing.assert_close(total, 1.0 + unscaled.T @ weighted.float(), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(rows_gradient.float(), gradient8 @ rounded(matrix), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("n", [96, 85])
def test_chunks_and_the_compiled_formula_give_the_same_loss_and_gradients(n, monkeypatch):
    rows, weight, targets, bias, weights = problem(n, 50, 32)
    results = []
    for rows_a_chunk, fused in ((1024, None), (20, None), (1024, fused_score)):
        monkeypatch.setattr("lm.losses.CPU_NARROW_ROWS", rows_a_chunk)
        loss = linear_cross_entropy(rows, weight, targets, bias, weights, fused=fused, float8=True)
        results.append([loss.detach(), *torch.autograd.grad(loss, (rows, weight, bias))])
    for other in results[1:]:
        for ours, theirs in zip(other, results[0], strict=True):
            assert_near(ours, theirs, 0.05)


def test_loss_and_gradients_are_near_those_of_bfloat16():
    rows, weight, targets, bias, weights = problem(512, 1000, 64)
    rough, exact = (
        linear_cross_entropy(rows, weight, targets, bias, weights, float8=float8, z_loss=1e-4, soft_cap=30.0)
        for float8 in (True, False)
    )
    assert rough.item() != exact.item()
    assert rough.item() == pytest.approx(exact.item(), rel=1e-2)
    inputs = (rows, weight, bias)
    for ours, theirs in zip(torch.autograd.grad(rough, inputs), torch.autograd.grad(exact, inputs), strict=True):
        assert_near(ours, theirs, 0.1)


def test_without_gradients_the_loss_is_exact():
    problem_ = problem(64, 50, 32)
    with torch.no_grad():
        assert linear_cross_entropy(*problem_, float8=True) == linear_cross_entropy(*problem_)


@pytest.mark.parametrize("scale", [1.0, 3e4, 1e-20, 0.0])
def test_the_largest_magnitude_becomes_the_largest_of_the_format(scale):
    x = scale * torch.linspace(-1, 1, 32).reshape(2, 16)
    values, factor = quantize(x)
    assert values.dtype == FORWARD
    assert values.float().abs().max() == (448.0 if scale else 0.0)
    torch.testing.assert_close(values.float() * factor, x, rtol=2**-4, atol=scale * 2**-9)


class NoScalars(TorchDispatchMode):
    """Fails if the host reads a number of a tensor, for which it would wait for a GPU."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_a_step_reads_no_number_of_a_tensor():
    rows, weight, targets, bias, weights = problem(85, 50, 32)
    with NoScalars():
        linear_cross_entropy(rows, weight, targets, bias, weights, float8=True).backward()
    with NoScalars(), pytest.raises(AssertionError):
        weight.sum().item()


def test_training_without_8_bit_products_is_refused(monkeypatch):
    cpu = torch.device("cpu")
    with pytest.raises(ValueError, match=r"dtype is float32: give train\.dtype bfloat16"):
        require_float8(cpu, torch.float32, 64)
    with pytest.raises(ValueError, match=r"model\.width 40 is no multiple of 16"):
        require_float8(cpu, torch.bfloat16, 40)

    def refuse(*args, **kwargs):
        raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0\nmore")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    with pytest.raises(ValueError, match=r"cpu has no 8-bit products: leave it out \(torch\._scaled_mm is only"):
        require_float8(cpu, torch.bfloat16, 64)

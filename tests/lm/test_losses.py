"""The chunked output layer equals the plain one, and never holds all logits."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lm import logit_loss, losses
from lm.logit_loss import fused_score
from lm.losses import linear_cross_entropy


def problem(n, v, width, dtype=torch.float64, seed=0, bias=True):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    targets = torch.randint(0, v, (n,), generator=generator)
    weights = torch.rand(n, generator=generator, dtype=torch.float64)
    return normal(n, width), normal(v, width), targets, normal(v) if bias else None, weights


def plain(rows, weight, targets, bias, weights):
    return (F.cross_entropy(F.linear(rows, weight, bias), targets, reduction="none") * weights).sum()


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(0, 40),
    v=st.integers(1, 30),
    rows_a_chunk=st.integers(1, 45),
    bias=st.booleans(),
    fused=st.sampled_from([None, fused_score]),
    seed=st.integers(0, 2**32),
)
def test_value_and_gradients_equal_plain_cross_entropy(n, v, rows_a_chunk, bias, fused, seed):
    rows, weight, targets, offset, weights = problem(n, v, 5, seed=seed, bias=bias)
    inputs = [rows, weight] + ([offset] if bias else [])
    expected = plain(rows, weight, targets, offset, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(losses.CHUNK_ELEMENTS, "cpu", rows_a_chunk * v)
        got = linear_cross_entropy(rows, weight, targets, offset, weights, fused=fused)
        with torch.no_grad():
            ungraded = linear_cross_entropy(rows, weight, targets, offset, weights, fused=fused)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(ungraded, expected.detach())
    for gradient, other in zip(
        torch.autograd.grad(3.0 * got, inputs), torch.autograd.grad(3.0 * expected, inputs), strict=True
    ):
        torch.testing.assert_close(gradient, other)


def test_gradient_passes_gradcheck_in_float64(monkeypatch):
    monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cpu", 3 * 7)
    rows, weight, targets, bias, weights = problem(8, 7, 4)
    assert torch.autograd.gradcheck(
        lambda *inputs: linear_cross_entropy(inputs[0], inputs[1], targets, inputs[2], weights),
        (rows, weight, bias),
    )


VARIANTS = {"soft_cap": [0.0, 1.5], "label_smoothing": [0.0, 0.2], "z_loss": [0.0, 0.03]}


def plain_variant(rows, weight, targets, bias, weights, *, soft_cap, label_smoothing, z_loss):
    logits = F.linear(rows, weight, bias)
    logits = soft_cap * torch.tanh(logits / soft_cap) if soft_cap else logits
    nats = F.cross_entropy(logits, targets, reduction="none", label_smoothing=label_smoothing)
    return ((nats + z_loss * logits.logsumexp(-1) ** 2) * weights).sum()


@pytest.mark.parametrize("fused", [None, fused_score])
@pytest.mark.parametrize("v", [7, 64])
@pytest.mark.parametrize("variant", [dict(zip(VARIANTS, each, strict=True)) for each in product(*VARIANTS.values())])
def test_soft_cap_smoothing_and_z_loss_equal_the_plain_formulas(variant, v, fused, monkeypatch):
    monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cpu", 3 * v)
    rows, weight, targets, bias, weights = problem(8, v, 4)
    expected = plain_variant(rows, weight, targets, bias, weights, **variant)
    got = linear_cross_entropy(rows, weight, targets, bias, weights, **variant, fused=fused)
    with torch.no_grad():
        ungraded = linear_cross_entropy(rows, weight, targets, bias, weights, **variant, fused=fused)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(ungraded, expected.detach())
    inputs = (rows, weight, bias)
    for ours, theirs in zip(torch.autograd.grad(got, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("fused", [None, fused_score])
@pytest.mark.parametrize("variant", [{}, {"soft_cap": 3.0}, {"label_smoothing": 0.1, "z_loss": 0.01}])
@pytest.mark.parametrize(("rows_a_chunk", "rows_scored"), [(1024, 64), (40, 40), (23, 7)])
def test_bfloat16_rows_give_float32_nats_close_to_the_exact_ones(
    variant, rows_a_chunk, rows_scored, fused, monkeypatch
):
    monkeypatch.setattr(losses, "CPU_NARROW_ROWS", rows_a_chunk)
    monkeypatch.setattr(logit_loss, "CPU_SCORED_ROWS", rows_scored)
    rows, weight, targets, bias, weights = problem(100, 50, 16, dtype=torch.float32)
    weights = weights.float()
    exact = plain_variant(rows, weight, targets, bias, weights, **dict.fromkeys(VARIANTS, 0.0) | variant)
    rough_rows = rows.detach().bfloat16().requires_grad_()
    got = linear_cross_entropy(rough_rows, weight, targets, bias, weights, **variant, fused=fused)
    assert got.dtype == torch.float32
    assert got.item() == pytest.approx(exact.item(), rel=1e-2)
    with torch.no_grad():
        ungraded = linear_cross_entropy(rough_rows, weight, targets, bias, weights, **variant, fused=fused)
    assert ungraded.item() == got.item()
    for gradient, other in zip(
        torch.autograd.grad(got, [rough_rows, weight, bias]),
        torch.autograd.grad(exact, [rows, weight, bias]),
        strict=True,
    ):
        assert (gradient.float() - other).norm() < 2e-2 * other.norm()


@pytest.mark.parametrize("factor", [1 / 3000, 1 / 700])
def test_bfloat16_gradients_are_scaled_in_float32(factor):
    """In bfloat16, 1 / 3000 is 0.14 % too large: the gradients of rows and weight would have different scales."""
    rows, weight, targets, bias, _ = problem(64, 50, 16, dtype=torch.float32)
    rows = rows.detach().bfloat16().requires_grad_()

    def gradients(loss):
        return torch.autograd.grad(loss, [rows, weight, bias])

    def assert_scaled(scaled, unscaled):
        torch.testing.assert_close(scaled, (unscaled.double() * factor).to(scaled.dtype), rtol=1e-6, atol=0.0)

    unscaled = gradients(linear_cross_entropy(rows, weight, targets, bias))
    scaled = gradients(factor * linear_cross_entropy(rows, weight, targets, bias))
    for ours, theirs in zip(scaled, unscaled, strict=True):
        assert_scaled(ours, theirs)
    weighted = gradients(linear_cross_entropy(rows, weight, targets, bias, torch.full((64,), factor)))
    assert_scaled(weighted[0], unscaled[0])


@pytest.mark.parametrize("fused", [None, fused_score])
def test_extreme_logits_neither_overflow_nor_underflow(fused):
    rows = torch.tensor([[1.0], [1.0]], requires_grad=True)
    weight = torch.tensor([[1000.0], [-1000.0], [0.0]], requires_grad=True)
    loss = linear_cross_entropy(rows, weight, torch.tensor([0, 1]), fused=fused)
    assert loss.item() == 2000.0
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, [rows, weight]))


@pytest.mark.parametrize("fused", [None, fused_score])
@pytest.mark.parametrize("shift", [0.0, -100.0, 1000.0])
def test_nearly_certain_targets_have_the_loss_of_float64(shift, fused):
    """50,257 logits: one is 12 to 17 above all others, as far from 0 as `shift`."""
    weight = torch.zeros(50_257, 1).index_fill_(0, torch.tensor(7), 1.0).requires_grad_()
    bias = torch.full((50_257,), shift)
    for peak in (12.0, 14.0, 17.0):
        rows, targets = torch.full((9, 1), peak), torch.full((9,), 7)
        expected = plain(rows.double(), weight.double(), targets, bias.double(), torch.ones(9)).item()
        graded = linear_cross_entropy(rows, weight, targets, bias, fused=fused).item()
        with torch.no_grad():
            ungraded = linear_cross_entropy(rows, weight, targets, bias, fused=fused).item()
        # The rest of the exponentials is added to 1, so float32 resolves 1e-7 of a token's loss, 9 tokens here.
        assert graded == pytest.approx(expected, abs=2e-5), peak
        assert ungraded == pytest.approx(expected, abs=2e-5), peak


def test_a_row_of_weight_zero_adds_no_loss_and_no_gradient():
    rows, weight, targets, bias, weights = problem(6, 9, 4)
    weights[2] = 0.0
    loss = linear_cross_entropy(rows, weight, targets, bias, weights)
    keep = torch.tensor([0, 1, 3, 4, 5])
    torch.testing.assert_close(loss, plain(rows[keep], weight, targets[keep], bias, weights[keep]))
    assert torch.autograd.grad(loss, rows)[0][2].count_nonzero() == 0


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.elements = max(self.elements, leaf.numel())
        return result


def test_forward_and_backward_never_hold_all_logits(monkeypatch):
    monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cpu", 16 * 64)
    rows, weight, targets, bias, weights = problem(512, 64, 8)
    with LargestTensor() as largest:
        linear_cross_entropy(rows, weight, targets, bias, weights).backward()
    assert largest.elements == 512 * 8  # the rows themselves; the logits would be 512 x 64

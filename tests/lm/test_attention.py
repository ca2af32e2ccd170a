"""All attention backends agree with the reference, in values and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from lm.attention.backends import BACKENDS
from lm.config import WITHOUT_DROPOUT
from lm.masks import Mask
from tests.lm.attention_cases import cases, textbook, with_gradients

NAMES = sorted(BACKENDS)
FEW = settings(max_examples=25, deadline=None)
# Relative to the largest exact value: 100 roundings of float64 and float32, a few of bfloat16.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 5e-2}


@FEW
@given(case=cases(longest=5, most_past=3))
def test_the_reference_equals_the_textbook_formula(case):
    got = BACKENDS["reference"](case.q, case.k, case.v, case.mask, scale=case.scale)
    torch.testing.assert_close(got, textbook(case.q, case.k, case.v, case.mask, case.scale), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(set(BACKENDS) - {"reference"}))
@FEW
@given(case=cases(longest=300), dtype=st.sampled_from(sorted(TOLERANCE, key=str)))
def test_backends_agree_with_the_reference_forward_and_backward(name, case, dtype):
    for rounded in (case.q, case.k, case.v, case.upstream, case.mask.bias):
        if rounded is not None:
            rounded.copy_(rounded.to(dtype))
    exact = with_gradients(BACKENDS["reference"], case, torch.float64)
    cancelling = torch.finfo(dtype).eps * largest_term(case)
    for expected, got in zip(exact, with_gradients(BACKENDS[name], case, dtype), strict=True):
        assert got.dtype == dtype
        assert got.isfinite().all()
        scale = max(1.0, expected.abs().max().item())
        assert (expected - got.double()).abs().max().item() <= TOLERANCE[dtype] * scale + cancelling


def largest_term(case):
    """Return the size of the terms in the gradients of q and k. With one visible key they cancel up to rounding."""
    values = case.v.repeat_interleave(case.q.shape[1] // case.v.shape[1], dim=1)
    of_weights = (case.upstream @ values.mT).abs().max().item()
    scale = case.q.shape[-1] ** -0.5 if case.scale is None else case.scale
    return scale * of_weights * max(x.abs().max().item() for x in (case.q, case.k))


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(case=cases(longest=150))
def test_backends_agree_without_gradients(name, case):
    with torch.no_grad():
        got = BACKENDS[name](case.q, case.k, case.v, case.mask, scale=case.scale)
        expected = BACKENDS["reference"](case.q, case.k, case.v, case.mask, scale=case.scale)
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("length", [600, 2100])
@pytest.mark.parametrize("window", [0, 100])
def test_auto_agrees_with_the_reference_at_lengths_where_it_switches_backends(length, window):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, length, 16)
    mask = Mask(causal=True, window=window)
    expected = BACKENDS["reference"](q.double(), k.double(), v.double(), mask)
    for dtype in (torch.float32, torch.bfloat16):
        got = BACKENDS["auto"](q.to(dtype), k.to(dtype), v.to(dtype), mask)
        assert (expected - got.double()).abs().max().item() <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", NAMES)
def test_padding_rows_give_zeros_and_finite_gradients(name):
    q, k, v = (torch.randn(2, 2, 5, 8, requires_grad=True) for _ in range(3))
    mask = Mask(present=torch.tensor([[True] * 5, [False] * 5]))
    out = BACKENDS[name](q, k, v, mask)
    assert (out[1] == 0).all()
    assert (out[0] != 0).all()
    for gradient in torch.autograd.grad(out.square().sum() + out.sum(), (q, k, v)):
        assert (gradient[1] == 0).all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(length=st.integers(2, 140), window=st.sampled_from([0, 5]), data=st.data())
def test_future_tokens_do_not_change_the_output(name, length, window, data):
    query = data.draw(st.integers(0, length - 1))
    q, k, v = (torch.randn(1, 2, length, 4, requires_grad=True) for _ in range(3))
    out = BACKENDS[name](q, k, v, Mask(causal=True, window=window))
    for gradient in torch.autograd.grad(out[:, :, query].square().sum(), (k, v)):
        assert (gradient[:, :, query + 1 :] == 0).all()
        assert (gradient[:, :, : max(0, query - window + 1) if window else 0] == 0).all()


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(length=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_attention_without_positions_is_permutation_equivariant(name, length, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 1, 2, length, 8, dtype=torch.float64, generator=generator)
    order = torch.randperm(length, generator=generator)
    moved = BACKENDS[name](q[:, :, order], k[:, :, order], v[:, :, order], Mask())
    torch.testing.assert_close(moved, BACKENDS[name](q, k, v, Mask())[:, :, order], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("width", [4, 64, 256])
def test_scaled_scores_of_unit_variance_have_unit_variance(width):
    """With identity values the output is the weights, whose logarithms differ as the scores do."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 64, 1, 4, width, dtype=torch.float64)
    k = torch.cat((k, k.new_zeros(64, 1, 1, width)), dim=2)
    values = torch.eye(5, dtype=torch.float64).expand(64, 1, 5, 5)
    weights = BACKENDS["reference"](q, k, values, Mask())
    scores = (weights[..., :4] / weights[..., 4:]).log()
    assert scores.var().item() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_is_stable_at_extreme_scores(name, dtype):
    """Exponentials of scores of 10,000 and -10,000 are infinite and zero. Each query picks its key."""
    q = (torch.eye(4, dtype=dtype) * 200).expand(1, 1, 4, 4)
    k = (torch.eye(4, dtype=dtype) * 100 - 50).expand(1, 1, 4, 4)
    inputs = [q.clone().requires_grad_(), k.clone().requires_grad_(), torch.eye(4, dtype=dtype).expand_as(q).clone()]
    out = BACKENDS[name](*inputs, Mask(), scale=1.0)
    torch.testing.assert_close(out, inputs[2])
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), inputs[:2]))


@pytest.mark.parametrize("name", sorted(set(BACKENDS) - set(WITHOUT_DROPOUT)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_zeroes_its_share_of_weights_and_keeps_their_mean(name, dtype):
    torch.manual_seed(0)
    keys = 64
    q, k = torch.zeros(2, 8, 4, keys, 8, dtype=dtype)
    values = torch.eye(keys, dtype=dtype).expand(8, 4, keys, keys)
    weights = BACKENDS[name](q, k, values, Mask(), dropout=0.25).float() * keys
    kept = weights > 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.01)
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 4 / 3), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_heads_that_cannot_be_grouped_are_refused(name):
    q, k = torch.zeros(1, 3, 2, 4), torch.zeros(1, 2, 2, 4)
    with pytest.raises(ValueError, match="3 query heads over 2 key heads"):
        BACKENDS[name](q, k, k, Mask())


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask(causal=True),
        Mask(causal=True, window=100),
        Mask(causal=True, segments=torch.arange(300).div(90).long().expand(2, -1).cuda())
        if torch.cuda.is_available()
        else Mask(),
    ],
    ids=["all", "causal", "window", "documents"],
)
def test_backends_agree_on_a_gpu(name, dtype, width, mask):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 300, width, device="cuda").to(dtype) for heads in (4, 2, 2))
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    inputs = [x.requires_grad_() for x in (q, k, v)]
    expected, got = BACKENDS["reference"](*wide, mask), BACKENDS[name](*inputs, mask)
    pairs = [(expected, got)]
    gradients = [torch.autograd.grad(out.square().sum(), x) for out, x in ((expected, wide), (got, inputs))]
    tolerance = 8 * TOLERANCE[dtype] if dtype == torch.bfloat16 else 1e-2  # TF32 may be on
    for exact, found in [*pairs, *zip(*gradients, strict=True)]:
        assert (exact - found.double()).abs().max().item() <= tolerance * max(1.0, exact.abs().max().item())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(causal=True, window=100)])
def test_grouped_heads_on_a_gpu_never_hold_the_score_matrix(dtype, mask):
    q, k, v = (torch.randn(1, heads, 4096, 64, device="cuda", dtype=dtype) for heads in (16, 4, 4))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    BACKENDS["sdpa"](q, k, v, mask)
    assert torch.cuda.max_memory_allocated() - before < 16 * 4096**2 * dtype.itemsize / 2


class RecordedCall(TorchFunctionMode):
    """Records the number of key heads and `enable_gqa` of a call of PyTorch's attention."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.scaled_dot_product_attention:
            self.heads, self.grouped = args[1].shape[1], kwargs["enable_gqa"]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("dtype", "heads", "grouped"), [(torch.float32, 4, False), (torch.bfloat16, 2, True)])
def test_grouped_heads_on_a_gpu_use_a_fused_kernel_for_their_dtype(dtype, heads, grouped):
    with FakeTensorMode(), RecordedCall() as recorded:  # shapes on a GPU, without one
        q, k = (torch.empty(1, count, 60, 16, device="cuda", dtype=dtype) for count in (4, 2))
        assert BACKENDS["sdpa"](q, k, k, Mask(causal=True)).shape == q.shape
    assert (recorded.heads, recorded.grouped) == (heads, grouped)


def test_one_query_after_a_cache_equals_the_last_row_of_the_full_output():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 30, 8, dtype=torch.float64)
    for name in NAMES:
        for mask in (Mask(causal=True), Mask(causal=True, window=7)):
            whole = BACKENDS[name](q, k, v, mask)
            last = BACKENDS[name](q[:, :, -1:], k, v, mask)
            torch.testing.assert_close(last, whole[:, :, -1:], atol=1e-12, rtol=1e-12)


def test_the_default_scale_is_one_over_the_root_of_the_head_width():
    q, k, v = torch.randn(3, 1, 1, 5, 16, dtype=torch.float64)
    for name in NAMES:
        given_scale = BACKENDS[name](q, k, v, Mask(), scale=1 / math.sqrt(16))
        torch.testing.assert_close(BACKENDS[name](q, k, v, Mask()), given_scale)

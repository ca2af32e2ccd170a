"""FlexAttention applies our masks as the reference does."""

import pytest
import torch
from hypothesis import given, settings
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.flex_attention import flex_attention

from lm.attention import flex
from lm.attention.backends import BACKENDS, reference
from lm.masks import Mask
from tests.lm.attention_cases import cases

CPU = torch.device("cpu")
FEW = settings(max_examples=15, deadline=None)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@settings(max_examples=4, deadline=None)
@given(case=cases(longest=60))
def test_uncompiled_flex_attention_equals_the_reference(case):
    """Uncompiled FlexAttention evaluates the modifiers for every score."""
    q, k, v = case.q.float(), case.k.float(), case.v.float()
    mask, queries, keys = case.mask, q.shape[2], k.shape[2]
    got = flex_attention(
        q,
        k,
        v,
        score_mod=flex.score_modifier(mask),
        block_mask=flex.block_mask(mask, queries, keys, CPU),
        scale=case.scale,
        enable_gqa=True,
    )
    expected = reference(case.q, case.k, case.v, mask, scale=case.scale)
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=1e-4)


@FEW
@given(case=cases(longest=600, most_past=200))
def test_skipped_blocks_are_empty_and_unmasked_blocks_are_full(case):
    queries, keys = case.q.shape[2], case.k.shape[2]
    blocks = flex.block_mask(case.mask, queries, keys, CPU)
    visible = case.mask.visible(queries, keys, CPU)
    if blocks is None:
        assert visible is None or visible.all()
        return
    visible = torch.ones(1, 1, queries, keys, dtype=torch.bool) if visible is None else visible
    visible = visible.expand(-1, -1, queries, -1)
    taken = blocks.to_dense().bool()
    taken = taken.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :queries, :keys]
    assert not (visible & ~taken).any()
    for b in range(len(blocks.full_kv_num_blocks)):
        for row, count in enumerate(blocks.full_kv_num_blocks[b, 0].tolist()):
            for column in blocks.full_kv_indices[b, 0, row, :count].tolist():
                part = visible[:, :, row * 128 : (row + 1) * 128, column * 128 : (column + 1) * 128]
                assert part.shape[2:] == (128, 128)
                assert part.all()


def test_a_narrow_window_leaves_most_blocks_out():
    blocks = flex.block_mask(Mask(causal=True, window=128), 2048, 2048, CPU)
    assert blocks.sparsity() > 85


def test_training_can_save_the_blocks_that_an_evaluation_of_the_same_length_has_listed():
    mask = Mask(causal=True, window=77)
    with torch.inference_mode():
        flex.block_mask(mask, 333, 333, CPU)
    blocks = flex.block_mask(mask, 333, 333, CPU)
    x = torch.ones((), requires_grad=True)
    for table in (blocks.kv_num_blocks, blocks.kv_indices, blocks.q_num_blocks, blocks.q_indices):
        (x * table).sum().backward()  # raises for an inference tensor


def test_flex_falls_back_on_a_cpu_if_gradients_are_needed():
    q, k, v = (torch.randn(1, 1, 6, 8, requires_grad=True) for _ in range(3))
    out = BACKENDS["flex"](q, k, v, Mask(causal=True))
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


@pytest.mark.parametrize(("width", "wide_enough"), [(8, False), (16, True)])
def test_flex_falls_back_on_a_gpu_if_heads_are_too_narrow_to_compile(width, wide_enough):
    with FakeTensorMode():  # shapes on a GPU, without one
        q = torch.empty(1, 1, 600, width, device="cuda")
        assert flex.is_supported(q, q, q, Mask(causal=True)) == wide_enough
        if not wide_enough:
            assert BACKENDS["flex"](q, q, q, Mask(causal=True)).shape == q.shape


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_flex_attention_agrees_with_the_reference(dtype):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 600, 64), torch.randn(2, 2, 600, 64), torch.randn(2, 2, 600, 64)
    present = torch.rand(2, 600) < 0.7
    present[1] = False
    segments = torch.arange(600).div(190, rounding_mode="floor").expand(2, -1)
    for mask in (
        Mask(),
        Mask(causal=True, window=100),
        Mask(causal=True, segments=segments),
        Mask(present=present),
        Mask(causal=True, bias=torch.randn(1, 4, 600, 600)),
    ):
        with torch.no_grad():
            got = BACKENDS["flex"](q.to(dtype), k.to(dtype), v.to(dtype), mask)
        expected = reference(q.double(), k.double(), v.double(), mask)
        assert (got.double() - expected).abs().max().item() <= (5e-2 if dtype == torch.bfloat16 else 1e-4)

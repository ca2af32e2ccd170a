"""The hand-derived gradient of attention equals finite differences and autograd."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings

from lm.attention import closed_form as module
from lm.attention.backends import reference
from lm.attention.closed_form import closed_form, projected_attention
from lm.masks import Mask
from tests.lm.attention_cases import cases, with_gradients


def masks(batch, heads, length):
    segments = torch.tensor([0] * (length // 2) + [1] * (length - length // 2)).expand(batch, -1)
    present = torch.ones(batch, length, dtype=torch.bool)
    present[-1, : length // 2] = False  # under a causal mask its first queries see nothing
    return {
        "bidirectional": Mask(),
        "causal": Mask(causal=True),
        "window": Mask(window=2),
        "causal window": Mask(causal=True, window=2),
        "documents": Mask(causal=True, segments=segments),
        "padding": Mask(causal=True, present=present),
    }


NAMES = list(masks(1, 1, 2))


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_finite_differences_confirm_the_gradient(name, kv_heads):
    torch.manual_seed(0)
    q, k, v = random(2, 4, 5, 3), random(2, kv_heads, 5, 3), random(2, kv_heads, 5, 3)
    mask = masks(2, 4, 5)[name]
    assert torch.autograd.gradcheck(lambda *qkv: closed_form(*qkv, mask), (q, k, v))


@pytest.mark.parametrize("sequences", [1, 2])
def test_finite_differences_confirm_the_gradient_of_a_bias(sequences):
    torch.manual_seed(0)
    q, k, v, bias = random(2, 2, 3, 4), random(2, 2, 5, 4), random(2, 2, 5, 4), random(sequences, 2, 3, 5)

    def attention(q, k, v, bias):
        return closed_form(q, k, v, Mask(causal=True, bias=bias), scale=1.0)

    assert torch.autograd.gradcheck(attention, (q, k, v, bias))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_finite_differences_confirm_the_gradient_through_the_projections(name, biased):
    torch.manual_seed(0)
    mask = masks(2, 4, 5)[name]
    x, weights = random(2, 5, 6), [random(8, 6), random(4, 6), random(4, 6), random(6, 8)]
    biases = [random(len(weight)) for weight in weights] if biased else [None] * 4

    def sublayer(x, *parameters):
        return projected_attention(x, parameters[:4], parameters[4:] or biases, heads=4, mask=mask)

    parameters = [*weights, *biases] if biased else weights
    assert torch.autograd.gradcheck(sublayer, (x, *parameters))


def test_the_whole_sublayer_is_projections_around_attention():
    torch.manual_seed(0)
    x, weights, biases = random(2, 7, 6), [random(8, 6), random(4, 6), random(4, 6), random(6, 8)], [random(8)]
    biases += [random(4), random(4), random(6)]
    mask = Mask(causal=True)
    q, k, v = (
        F.linear(x, weight, bias).unflatten(-1, (-1, 2)).transpose(1, 2)
        for weight, bias in zip(weights[:3], biases[:3], strict=True)
    )
    expected = F.linear(reference(q, k, v, mask).transpose(1, 2).flatten(-2), weights[3], biases[3])
    got = projected_attention(x, weights, biases, heads=4, mask=mask)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)
    inputs = [x, *weights, *biases]
    for ours, theirs in zip(
        torch.autograd.grad(got.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("tile", [1, 2000, 30_000])
@settings(max_examples=20, deadline=None)
@given(case=cases(longest=30))
def test_tile_size_does_not_change_the_result(tile, case):
    before = module.CPU_TILE
    module.CPU_TILE = tile
    try:
        got = with_gradients(closed_form, case, torch.float64)
    finally:
        module.CPU_TILE = before
    for ours, exact in zip(got, with_gradients(reference, case, torch.float64), strict=True):
        torch.testing.assert_close(ours, exact, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
def test_autograd_saves_at_most_three_fifths_of_the_bytes(causal):
    """The promise is for T = 512, 8 heads of 64, batch 8, float32."""
    inputs = [torch.randn(8, 8, 512, 64, requires_grad=True) for _ in range(3)]
    kept = {}
    for backend in (reference, closed_form):
        storages = {}

        def pack(tensor, storages=storages):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = backend(*inputs, Mask(causal=causal))
        kept[backend] = sum(storages.values())
        del out
    assert kept[closed_form] == 4 * 8 * 8 * 512 * 64 * 4  # q, k, v and the output
    assert kept[closed_form] <= 0.6 * kept[reference]


def test_a_second_derivative_is_refused():
    q, k, v = (random(1, 1, 3, 2) for _ in range(3))
    (first,) = torch.autograd.grad(closed_form(q, k, v, Mask()).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()

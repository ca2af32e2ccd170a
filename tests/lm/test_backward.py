"""Backward passes by hand equal autograd and finite differences."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.backward import attention_backward, block_backward, linear_backward, mlp_backward, norm_backward
from lm.blocks import MLP
from lm.config import Activation, ModelConfig, Norm
from lm.layers import LayerNorm, Linear, RMSNorm
from lm.lora import add_lora
from lm.lora_config import LoraConfig
from lm.model import LanguageModel

FEW = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**32)
ACTIVATIONS = get_args(Activation)
SHAPES = st.lists(st.integers(1, 4), max_size=3)
SMALL = ModelConfig(vocab_size=10, context_length=8, layers=1, width=8, heads=2)


def filled(module, seed):
    """Return the module in float64 with random parameters, so that a missing weight or bias changes the gradients."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        torch.nn.init.normal_(parameter, 0.2, 0.5, generator=generator)
    return module


def random(seed, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_gradients_are_those_of_autograd(module, forward, backward, x, seed):
    """`backward` maps x and the gradient of the output to (gradient of x, gradients of the parameters by name)."""
    x = x.requires_grad_()
    out = forward(x)
    upstream = random(seed, *out.shape)
    names, parameters = zip(*module.named_parameters(), strict=True)
    expected = torch.autograd.grad(out, (x, *parameters), upstream)
    d_x, gradients = backward(x, upstream)
    assert gradients.keys() == set(names)
    for ours, exact in zip((d_x, *(gradients[name] for name in names)), expected, strict=True):
        torch.testing.assert_close(ours, exact, atol=1e-10, rtol=1e-10)


@FEW
@given(shape=SHAPES, inputs=st.integers(1, 5), outputs=st.integers(1, 5), bias=st.booleans(), seed=SEEDS)
def test_gradients_of_a_linear_layer_are_those_of_autograd(shape, inputs, outputs, bias, seed):
    layer, x = filled(Linear(inputs, outputs, bias), seed), random(seed, *shape, inputs)
    assert_gradients_are_those_of_autograd(layer, layer, lambda *given: linear_backward(layer, *given), x, seed)


@FEW
@given(
    shape=SHAPES,
    width=st.integers(1, 9),
    eps=st.sampled_from([1e-5, 0.1]),
    kind=st.sampled_from([RMSNorm, LayerNorm]),
    bias=st.booleans(),
    seed=SEEDS,
)
def test_gradients_of_norms_are_those_of_autograd(shape, width, eps, kind, bias, seed):
    norm = filled(LayerNorm(width, eps, bias) if kind is LayerNorm else RMSNorm(width, eps), seed)
    x = 3 * random(seed, *shape, width)
    assert_gradients_are_those_of_autograd(norm, norm, lambda *given: norm_backward(norm, *given), x, seed)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@settings(max_examples=10, deadline=None)
@given(shape=SHAPES, width=st.integers(1, 6), hidden=st.integers(1, 9), bias=st.booleans(), seed=SEEDS)
def test_gradients_of_an_mlp_are_those_of_autograd(activation, shape, width, hidden, bias, seed):
    config = replace(SMALL, width=width, heads=1, head_width=2, mlp_width=hidden, activation=activation, bias=bias)
    mlp, x = filled(MLP(config), seed), random(seed, *shape, width)
    assert_gradients_are_those_of_autograd(mlp, mlp, lambda *given: mlp_backward(mlp, *given), x, seed)


@st.composite
def block_configurations(draw):
    heads, half = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    return replace(
        SMALL,
        architecture=draw(st.sampled_from(["decoder", "encoder"])),
        width=2 * half * heads,
        heads=heads,
        kv_heads=draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0])),
        head_width=draw(st.sampled_from([0, 4])),
        mlp_width=draw(st.integers(1, 12)),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        norm=draw(st.sampled_from(get_args(Norm))),
        mlp_norm=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        bias=draw(st.booleans()),
        scaled_attention=draw(st.booleans()),
        window=draw(st.sampled_from([0, 2])),
        **draw(st.sampled_from([{"positions": "none"}, {"positions": "rotary"}, {"rotary_width": 2}])),
    )


def block_of(config, length, seed):
    """Return a block with random weights, its rotary tables and its mask."""
    model = filled(LanguageModel(config), seed).eval()
    rotary = None if model.stack.rotary is None else model.stack.rotary(slice(0, length), torch.float64)
    return model.stack.blocks[0], rotary, model.mask(model.stack)


@settings(max_examples=60, deadline=None)
@given(config=block_configurations(), batch=st.integers(1, 3), length=st.integers(1, 8), seed=SEEDS)
def test_gradients_of_a_pre_norm_block_are_those_of_autograd(config, batch, length, seed):
    block, rotary, mask = block_of(config, length, seed)
    x = random(seed, batch, length, config.width)
    assert_gradients_are_those_of_autograd(
        block,
        lambda x: block(x, rotary, block.mixer.parallel_form(mask)),
        lambda x, upstream: block_backward(block, x, rotary, mask, upstream),
        x,
        seed,
    )


class ByHand(torch.autograd.Function):
    """A forward pass whose gradient is the given backward pass: gradcheck compares it with finite differences."""

    @staticmethod
    def forward(ctx, module, forward, backward, x, *parameters):
        ctx.save_for_backward(x)
        ctx.backward, ctx.names = backward, [name for name, _ in module.named_parameters()]
        return forward(x)

    @staticmethod
    def backward(ctx, upstream):
        d_x, gradients = ctx.backward(*ctx.saved_tensors, upstream)
        return None, None, None, d_x, *(gradients[name] for name in ctx.names)


def finite_differences_confirm(module, forward, backward, x):
    def run(x, *parameters):
        return ByHand.apply(module, forward, backward, x, *parameters)

    return torch.autograd.gradcheck(run, (x.requires_grad_(), *module.parameters()))


@pytest.mark.parametrize("norm", [LayerNorm(5, 1e-5, bias=True), RMSNorm(5, 1e-5)], ids=["layernorm", "rmsnorm"])
def test_finite_differences_confirm_the_gradients_of_norms(norm):
    norm = filled(norm, seed=0)
    assert finite_differences_confirm(norm, norm, lambda *given: norm_backward(norm, *given), random(1, 2, 3, 5))


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "swiglu"])
def test_finite_differences_confirm_the_gradients_of_an_mlp(activation):
    mlp = filled(MLP(replace(SMALL, width=4, mlp_width=3, activation=activation, bias=True)), seed=0)
    assert finite_differences_confirm(mlp, mlp, lambda *given: mlp_backward(mlp, *given), random(1, 2, 2, 4))


def test_finite_differences_confirm_the_gradients_of_attention_with_rotary_positions_and_normalised_queries():
    config = replace(SMALL, width=4, kv_heads=1, positions="rotary", qk_norm=True, bias=True)
    block, rotary, mask = block_of(config, 3, seed=0)
    attention = block.mixer

    def backward(x, upstream):
        return attention_backward(attention, x, rotary, mask, upstream)

    forward = attention.parallel_form(mask)
    assert finite_differences_confirm(attention, lambda x: attention(x, rotary, forward), backward, random(1, 1, 3, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"norm_position": "post"},
        {"norm_position": "sandwich"},
        {"residual": "parallel"},
        {"mlp": False},
        {"mixer": "hopfield"},
        {"mixer": "linear"},
        {"value_embeddings": 1},
    ],
)
def test_blocks_of_other_kinds_are_refused(options):
    block, rotary, mask = block_of(replace(SMALL, **options), 3, seed=0)
    x = random(0, 1, 3, 8)
    with pytest.raises(ValueError, match="norm_position='pre'"):
        block_backward(block, x, rotary, mask, x)


def test_a_block_with_adapters_is_refused():
    model = LanguageModel(SMALL)
    add_lora(model, LoraConfig(rank=2))
    x = random(0, 1, 3, 8)
    with pytest.raises(ValueError, match=r"without .*adapters"):
        block_backward(model.stack.blocks[0], x.float(), None, model.mask(model.stack), x.float())


def test_gradients_of_a_block_ignore_dropout_even_in_training_mode():
    block, rotary, mask = block_of(replace(SMALL, dropout=0.5), 8, seed=0)
    x, upstream = random(1, 2, 8, 8), random(2, 2, 8, 8)
    expected, of_parameters = block_backward(block, x, rotary, mask, upstream)
    found, gradients = block_backward(block.train(), x, rotary, mask, upstream)
    assert torch.equal(found, expected)
    assert all(torch.equal(gradients[name], gradient) for name, gradient in of_parameters.items())

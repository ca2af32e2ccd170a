"""Costs counted from a configuration, without torch, equal those of the built model."""

import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from lm import config as choices
from lm import config_costs, costs
from lm.config import OPTIONAL, ModelConfig
from lm.masks import Mask
from lm.mixers.attention import Attention
from lm.mixers.hopfield import Hopfield
from lm.mixers.mixer import OF_ALL, OF_CROSS, OF_DOT, mixer_class
from lm.mixers.scan_costs import CHUNK
from lm.optim.adamw import AdamW
from lm.optim.muon import Muon
from lm.optim.optimizer_settings import OPTIMIZERS, OptimizerKind, OptimizerSettings
from lm.optim.optimizers import build_optimizers
from lm.position_checks import BIASES, IN_SCORES
from tests.lm.layer_groups import with_groups

LENGTHS = st.integers(2, 40)


def of(literal):
    return st.sampled_from(get_args(literal))


@st.composite
def configs(draw):
    """Draw every field of a model that its costs depend on."""
    heads, positions = draw(st.sampled_from([1, 2, 4, 6])), draw(of(choices.Positions))
    head_width = draw(st.sampled_from([0, 4, 10]))
    mixers = draw(st.just(["attention"]) | st.lists(of(choices.MixerKind), min_size=1, max_size=3))
    kinds = [mixer_class(mixer) for mixer in mixers]
    architecture = draw(of(choices.Architecture)) if all(kind.bidirectional for kind in kinds) else "decoder"
    residual = draw(of(choices.Residual))
    both = architecture == "encoder-decoder"
    parallel = residual == "parallel" and not both
    norm_position = "pre" if parallel else draw(of(choices.NormPosition))
    connected = norm_position in ("deepnorm", "rezero")
    mlp = parallel or draw(st.booleans())
    layers = len(mixers) * draw(st.integers(1, 4 // len(mixers)))
    decoder_layers = draw(st.integers(0, 3)) if both else 0
    if positions in IN_SCORES and not any("positions" in kind.fields for kind in kinds):
        positions = "none"
    if positions in BIASES and Hopfield in kinds:
        positions = "none"
    cross = draw(of(choices.CrossKind)) if both and heads == 1 else "dot"
    config = ModelConfig(
        architecture=architecture,
        cross=cross,
        vocab_size=draw(st.integers(1, 200)),
        context_length=draw(LENGTHS),
        layers=layers,
        decoder_layers=decoder_layers,
        width=heads * draw(st.sampled_from([2, 4, 8])),
        heads=heads,
        head_width=head_width,
        kv_heads=draw(st.sampled_from([count for count in range(heads + 1) if not count or heads % count == 0])),
        mlp=mlp,
        mlp_width=draw(st.sampled_from([0, 7])),
        mixers=mixers,
        attention="reference",
        window=draw(st.sampled_from([0, 5])),
        qk_norm=draw(st.booleans()),
        value_embeddings=0 if both else draw(st.integers(0, (layers + 1) // 2)),
        positions=positions,
        rotary_width=draw(st.sampled_from([0, 2])) if positions == "rotary" else 0,
        relative_distance=draw(st.integers(1, 9)) if positions == "relative-keys" else 128,
        position_offset=draw(st.integers(0, 3)) if positions == "learned" else 0,
        norm=draw(of(choices.Norm)),
        norm_position=norm_position,
        mlp_norm=parallel or not mlp or norm_position == "rezero" or draw(st.booleans()),
        embedding_norm=architecture == "encoder" and draw(st.booleans()),
        residual="parallel" if parallel else "none" if residual == "none" and not connected else "sequential",
        initialization="xavier" if norm_position == "deepnorm" else "gpt2",
        activation=draw(of(choices.Activation)),
        bias=draw(st.booleans()),
        tied_head=draw(st.booleans()),
        scaled_head=draw(st.booleans()),
        soft_cap=draw(st.sampled_from([0.0, 30.0])),
        token_types=draw(st.integers(0, 3)),
        embedding_skips=draw(st.booleans()),
    )
    of_cross = both * (OF_CROSS + (cross == "dot") * OF_DOT)
    read = {field: [field in kind.fields or field in of_cross for kind in kinds] for field in OPTIONAL}
    unread = {
        field: getattr(ModelConfig, field) for field in OPTIONAL if not (all if field in OF_ALL else any)(read[field])
    }
    return with_groups(replace(config, **unread), draw(st.integers(0, 2)))


@given(config=configs())
def test_parameters_and_moments_are_those_of_the_built_model(config):
    model = costs.meta_model(config)
    built = sorted(tuple(parameter.shape) for parameter in model.parameters())
    assert sorted(parameter.shape for parameter in config_costs.parameters(config)) == built
    table = config_costs.parameter_table(config)
    assert table == costs.parameter_table(model)
    for kind in get_args(OptimizerKind):
        optimizers = build_optimizers(model, OptimizerSettings(kind=kind))
        groups = [(part, group["params"]) for part in optimizers.parts for group in part.param_groups]
        moments = {AdamW: 2, Muon: 1}
        state = sum(4 * moments[type(part)] * parameter.numel() for part, group in groups for parameter in group)
        weights = 4 * table["total"]
        assert config_costs.training_bytes(config, kind) == {"weights": weights, "gradients": weights, "moments": state}


@given(config=configs(), length=LENGTHS, source=LENGTHS, selected=st.floats(0.01, 1.0))
def test_flops_are_those_of_the_modules(config, length, source, selected):
    built = costs.flops_per_token(costs.meta_model(config), length, selected, source)
    assert config_costs.flops_per_token(config, length, selected, source) == pytest.approx(built, rel=1e-12)


IN_STEPS = ("gru", "lstm")
CHUNKED = [
    ModelConfig(vocab_size=9, width=8, heads=2, mixer=m) for m in get_args(choices.MixerKind) if m not in IN_STEPS
]


def with_long_sequences(**options):
    """Add an example of several chunks for each mixer that reads chunks."""

    def add(test):
        for config in CHUNKED:
            test = example(config=replace(config, context_length=2 * CHUNK + 7), **options)(test)
        return test

    return add


@settings(max_examples=50, deadline=None)
@with_long_sequences(source=2)
@given(config=configs().filter(lambda config: not config.window), source=LENGTHS)
def test_forward_flops_are_those_that_torch_counts(config, source):
    model, length = costs.meta_model(config).eval(), config.context_length
    source = min(source, length)
    target, read = (torch.zeros(1, size, dtype=torch.int64, device="meta") for size in (length, source))
    both, selected = config.architecture == "encoder-decoder", math.ceil(length / 2)
    rows = torch.arange(selected, device="meta") if config.architecture == "encoder" else None
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.logits(model(target, read if both else None, rows=rows))
    per_token = config_costs.flops_per_token(config, length, selected / length, source)
    assert 3 * counter.get_total_flops() == pytest.approx(per_token * (length + source * both), rel=1e-12)


@settings(deadline=None, max_examples=50)
@with_long_sequences(dtype="float32", length=2 * CHUNK + 7)
@with_long_sequences(dtype="bfloat16", length=CHUNK + 1)
@given(config=configs(), dtype=st.sampled_from(["float32", "bfloat16"]), length=LENGTHS)
@example(config=ModelConfig(vocab_size=9, width=8, heads=1, rotary_width=2), dtype="float32", length=2)
def test_activations_are_the_tensors_that_autograd_saves(config, dtype, length):
    length = min(length, config.context_length)
    kind = getattr(torch, dtype)
    model = costs.meta_model(config).to(kind).eval()  # weights in `dtype`: no casts that autograd would save
    model.compute_dtype = kind
    kept = [_saved_bytes(model, batch, length) for batch in (1, 2)]  # copies of weights are saved once
    assert config_costs.activation_bytes(config, dtype, length) == kept[1] - kept[0]


def _saved_bytes(model, batch, length):
    """Return the bytes of distinct tensors that autograd saves for `batch` sequences, without weights."""
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    saved = {}  # by storage: views of a tensor count once

    def save(tensor):
        storage = tensor.untyped_storage()._cdata
        if storage not in weights:
            saved[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        predicted = model.head(_hidden(model, torch.zeros(batch, length, dtype=torch.int64, device="meta")))
    loss = predicted.numel() * predicted.dtype.itemsize  # the loss saves only the gradient of its rows
    return loss + sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def _hidden(model, ids):
    """Return the hidden states of the predicted positions of `ids`, which are an encoder-decoder's source too."""

    def read(stack, **options):
        mask = Mask(causal=stack.causal)
        mixes = [_fused(block.mixer, mask) for block in stack.blocks]
        return stack(model.embed(ids), ids, dtype=model.compute_dtype, mask=mask, mixes=mixes, **options)

    if model.encoder is None:
        return read(model.stack)
    if model.decoder is None:
        selected = len(ids) * math.ceil(0.15 * ids.shape[1])
        return read(model.stack, rows=torch.arange(selected, device="meta"))
    hidden = read(model.encoder)
    if model.config.cross == "additive":  # has no fused form
        return read(model.decoder, cross_attends=model.decoder.cross_attends(hidden, Mask()))
    keys_values = model.decoder.cross_keys_values(hidden)
    return read(model.decoder, cross_attends=[partial(_attend, k=k, v=v) for k, v in keys_values])


def _fused(mixer, mask):
    """Return the mixer's function for whole sequences, with fused attention."""
    if isinstance(mixer, Hopfield):
        return partial(mixer.retrieve, attend=_attend)
    if isinstance(mixer, Attention):
        return lambda q, k, v: _attend(q, k, v, mixer.biased(mask, q, k.shape[-2]).bias)
    return mixer.parallel_form(mask)


def _attend(q, k, v, bias=None):
    return _FusedAttention.apply(q, k, v, bias)


class _FusedAttention(torch.autograd.Function):
    """Saves the tensors that fused attention saves (Dao 2023), without attending: meta tensors have no values."""

    @staticmethod
    def forward(ctx, q, k, v, bias):
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, bias, out, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return out


def test_every_optimizer_has_facts():
    assert OPTIMIZERS.keys() == set(get_args(OptimizerKind))


def test_costs_import_no_torch():
    code = "import sys, lm.config_costs; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

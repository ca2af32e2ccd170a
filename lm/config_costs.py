"""What a model costs, from its configuration: parameters by component, FLOPs per token, and bytes of memory.

Imports no torch, so that `bytelm params` answers at once. Tests compare every number with a built model: with its
parameters, the FLOPs that torch counts, the memory that generation allocates, and the tensors that autograd saves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from lm.config import GATED, SELECTED, ModelConfig
from lm.layer_groups import distinct_layers
from lm.mixers.additive_costs import AdditiveAttentionCosts
from lm.mixers.attention_costs import FLOAT32, AttentionCosts
from lm.mixers.mixer_costs import INT64, Shape, linear_parameters, mixer_costs
from lm.optim.optimizer_settings import OPTIMIZERS, OptimizerKind

ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number of each dtype."""
# Tensors of the MLP's hidden width that autograd saves: inputs of activation, gate and last matrix, if they differ.
SAVED_HIDDEN = {"relu": 1, "gelu": 2, "gelu_tanh": 2, "relu2": 2, "swiglu": 4, "geglu": 4, "geglu_tanh": 4}


CROSS_COSTS = {"dot": AttentionCosts, "additive": AdditiveAttentionCosts}


class Parameter(NamedTuple):
    """A trained parameter."""

    component: str
    """Row of the parameter table"""
    shape: Shape
    in_block: bool = False


class StackShape(NamedTuple):
    """One of the stacks of a model: see `lm.model.Stack`."""

    layers: int
    causal: bool
    cross: bool


def stacks(config: ModelConfig) -> list[StackShape]:
    """Return the stacks of a model. The head reads the last one."""
    both = config.architecture == "encoder-decoder"
    encoder = StackShape(config.layers, causal=False, cross=False)
    decoder = StackShape(config.decoder_layers or config.layers, causal=True, cross=both)
    return [encoder] * (config.architecture != "decoder") + [decoder] * (config.architecture != "encoder")


def parameters(config: ModelConfig) -> Iterator[Parameter]:
    """Yield every parameter once; a tied output matrix is the embedding."""
    width, masked = config.width, config.architecture == "encoder"
    yield Parameter("embedding", (config.vocab_size, width))
    if config.token_types:
        yield Parameter("embedding", (config.token_types, width))
    for stack in stacks(config):
        yield from _stack_parameters(config, stack)
    if not config.tied_head:
        yield Parameter("head", (config.vocab_size, width))
    if masked:
        yield Parameter("head", (config.vocab_size,))
        for shape in (*linear_parameters(width, width, config.bias), *_norm(config)):
            yield Parameter("head", shape)


def _stack_parameters(config: ModelConfig, stack: StackShape) -> Iterator[Parameter]:
    if config.positions == "learned":
        yield Parameter("positions", (config.position_offset + config.context_length, config.width))
    if config.positions == "relative":
        yield Parameter("positions", (config.relative_buckets, config.heads))
    for _ in range(config.value_embeddings):
        yield Parameter("embedding", (config.vocab_size, config.key_value_heads * config.head_features))
    for _ in range(2 * config.embedding_skips):
        yield Parameter("embedding", (stack.layers,))
    for shape in (*_norm(config),) * (config.embedding_norm + config.norm_places.final):
        yield Parameter("norms", shape)
    for block in distinct_layers(config, stack.layers):
        yield from _block_parameters(config, stack, block)


def _block_parameters(config: ModelConfig, stack: StackShape, block: int) -> Iterator[Parameter]:
    value_embedding, mixer = _has_value_embedding(config, stack, block), config.mixer_of(block)
    for shape in mixer_costs(config, mixer, stack.causal).parameters(value_embedding):
        yield Parameter(mixer, shape, in_block=True)
    for shape in CROSS_COSTS[config.cross](config, cross=True).parameters() if stack.cross else ():
        yield Parameter("attention", shape, in_block=True)
    if config.mlp:
        into = (*linear_parameters(config.width, config.hidden_width, config.bias),)
        out = linear_parameters(config.hidden_width, config.width, config.bias)
        for shape in (*into * (1 + (config.activation in GATED)), *out):
            yield Parameter("mlp", shape, in_block=True)
    sublayers = 1 + stack.cross + config.mlp
    own, cross, mlp = _norms(config, block)
    for shape in (*_norm(config),) * (own + cross * stack.cross + mlp * config.mlp):
        yield Parameter("norms", shape, in_block=True)
    for _ in range(sublayers if config.norm_position == "rezero" else 0):
        yield Parameter("norms", (1,), in_block=True)


def _norm(config: ModelConfig) -> list[Shape]:
    return [(config.width,)] * (2 if config.norm == "layernorm" and config.bias else 1)


def _norms(config: ModelConfig, block: int) -> tuple[int, int, int]:
    """Return the number of norms of a block's mixer, cross-attention and MLP.

    If the embedding is normalized, the first mixer has no norm before it.
    """
    before, branch, after, _ = config.norm_places
    each = before + branch + after
    normalized = before and config.embedding_norm and block == 0
    return each - normalized, each, each * config.mlp_norm


def _has_value_embedding(config: ModelConfig, stack: StackShape, block: int) -> bool:
    return min(block, stack.layers - 1 - block) < config.value_embeddings


def parameter_table(config: ModelConfig) -> dict[str, int]:
    """Return the parameters of embedding, positions, mixers (by name), mlp, norms and head, and their total."""
    table = dict.fromkeys(("embedding", "positions", *config.mixer_pattern, "mlp", "norms", "head"), 0)
    for parameter in parameters(config):
        table[parameter.component] = table.get(parameter.component, 0) + math.prod(parameter.shape)
    return {**table, "total": sum(table.values())}


def matrix_parameters(config: ModelConfig) -> int:
    """Return the number of parameters in matrices and embeddings, without biases and the weights of norms."""
    return sum(math.prod(shape) for _, shape, _ in parameters(config) if len(shape) > 1)


def non_embedding_parameters(config: ModelConfig) -> int:
    """Return the total without embeddings, positions and an untied output matrix (Kaplan et al. 2020)."""
    table = parameter_table(config)
    untied = 0 if config.tied_head else config.vocab_size * config.width
    return table["total"] - table["embedding"] - table["positions"] - untied


def flops_per_token(
    config: ModelConfig, length: float | None = None, selected: float = SELECTED, source_length: float | None = None
) -> float:
    """Return the floating-point operations of training on one token: `lm.costs.flops_per_token` of the built model.

    `length` is the length of a sequence or its mean, by default the context length; `selected` the share of the
    positions that a masked model predicts; `source_length` the length of an encoder-decoder's source, by default
    `length`.
    """
    length = config.context_length if length is None else length
    source_length = length if source_length is None else source_length
    masked = config.architecture == "encoder"
    predicted = length * selected if masked else length
    *encoders, last = stacks(config)
    head = 6 * config.width * (config.vocab_size + masked * config.width) * predicted
    flops = head + _stack_flops(config, last, length, predicted, source_length)
    if not encoders:
        return flops / length
    return (flops + _stack_flops(config, encoders[0], source_length, source_length)) / (length + source_length)


def _stack_flops(
    config: ModelConfig, stack: StackShape, length: float, outputs: float, source_length: float = 0
) -> float:
    """Return the training FLOPs of one sequence: `outputs` positions leave the last block."""
    window = config.window or length
    visible = min(length, window if stack.causal else 2 * window - 1)
    mlp = 6 * config.mlp * (2 + (config.activation in GATED)) * config.width * config.hidden_width

    def block(index: int, outputs: float) -> float:
        mixer = mixer_costs(config, config.mixer_of(index), stack.causal)
        if not stack.cross:
            return mixer.flops(length, visible, outputs) + mlp * outputs
        costs = CROSS_COSTS[config.cross](config, cross=True)
        cross = costs.flops(length, source_length, outputs, keys=source_length)
        return mixer.flops(length, visible, length) + cross + mlp * outputs

    last = stack.layers - 1
    return sum(block(index, length) for index in range(last)) + block(last, outputs)


def training_bytes(config: ModelConfig, optimizer: OptimizerKind = "adamw") -> dict[str, int]:
    """Return the bytes of `weights`, `gradients` and the `moments` of the model's optimizers, all float32.

    AdamW trains what `optimizer` leaves.
    """
    adamw, chosen = OPTIMIZERS["adamw"], OPTIMIZERS[optimizer]
    weights = moments = 0
    for _, shape, in_block in parameters(config):
        size, hidden = FLOAT32 * math.prod(shape), in_block and len(shape) == 2
        weights += size
        moments += size * (adamw if chosen.hidden_only and not hidden else chosen).moments
    return {"weights": weights, "gradients": weights, "moments": moments}


def cache_bytes(config: ModelConfig, dtype: str, length: int, source_length: int = 0, *, on_cpu: bool = False) -> int:
    """Return the bytes of a sequence's state after `length` tokens, such as its KV cache; 0 for an encoder.

    The KV cache of attention with windows holds the tokens in sight only. An encoder-decoder also caches the keys and
    values of `source_length` tokens. `dtype` is a key of `ITEMSIZE`. On a CPU, bfloat16 is stored as float32
    (`lm.decoding.cache.storage_dtype`).
    """
    if config.architecture == "encoder":
        return 0
    decoder, total = stacks(config)[-1], 0
    cross = decoder.cross * source_length * AttentionCosts(config).key_value_width
    itemsize = FLOAT32 if on_cpu and dtype == "bfloat16" else ITEMSIZE[dtype]
    for block in range(decoder.layers):
        mixer = mixer_costs(config, config.mixer_of(block), causal=True)
        state_itemsize = max(itemsize, FLOAT32) if mixer.wide_state else itemsize
        total += state_itemsize * mixer.state_size(length) + itemsize * cross
    return total


def activation_bytes(config: ModelConfig, dtype: str, length: int | None = None) -> int:
    """Estimate the bytes that autograd saves in the forward pass of one sequence.

    The sequence has `length` tokens, by default the context length; an encoder-decoder also reads a source of that
    length. The estimate runs the blocks uncompiled, as on a GPU: with one product for queries, keys and values, and a
    fused attention that saves them, its output and one number per query. A masked model predicts the share `SELECTED`
    of the positions. Compiled code saves less; dropout and other attention backends save more. `dtype` is a key of
    `ITEMSIZE`.
    """
    length = config.context_length if length is None else length
    masked, saved = config.architecture == "encoder", _Saved(config, ITEMSIZE[dtype])
    outputs = math.ceil(SELECTED * length) if masked else length
    *encoders, last = stacks(config)
    total = INT64 * (length + outputs * masked) + saved.stack(last, length, outputs)  # token ids, selected positions
    for encoder in encoders:  # cross-attention reads its output
        total += saved.stack(encoder, length, length) + saved.rows(length)
    if masked:  # the inputs of its dense layer, of GELU and of the norm
        total += 2 * saved.rows(outputs) + saved.norm(outputs)
    return total + saved.rows(outputs)  # the loss saves the gradient of its rows


class _Saved(NamedTuple):
    """Bytes that autograd saves for one sequence, each tensor once, without weights."""

    config: ModelConfig
    itemsize: int

    def rows(self, positions: int) -> int:
        """One number per feature of hidden states."""
        return self.itemsize * self.config.width * positions

    def norm(self, positions: int, saves_input: bool = True) -> int:
        """LayerNorm saves its input, mean and deviation; RMSNorm its output without weight, and the scale."""
        if self.config.norm == "rmsnorm":
            return self.rows(positions) + self.itemsize * positions
        return self.rows(positions) * saves_input + 2 * FLOAT32 * positions

    def stack(self, stack: StackShape, length: int, outputs: int) -> int:
        """All of a stack, of which `outputs` positions leave the last block."""
        config = self.config
        total = self.norm(length) if config.embedding_norm else 0
        total += self.norm(outputs) if config.norm_places.final else 0
        total += self.rows(length) * stack.layers * config.embedding_skips
        for block in range(stack.layers):
            leaving = outputs if block == stack.layers - 1 else length
            total += self.block(stack, length, leaving, block)
        return total

    def block(self, stack: StackShape, length: int, outputs: int, block: int) -> int:
        """The mixer with its norms, then cross-attention with its, then the MLP with its."""
        config, value_embedding = self.config, _has_value_embedding(self.config, stack, block)
        mixer, cross, mlp = _norms(config, block)
        before = config.norm_places.before
        costs = mixer_costs(config, config.mixer_of(block), stack.causal)
        total = costs.saved_bytes(length, outputs, self.itemsize, value_embedding)
        if before and mixer == sum(config.norm_places[:3]):
            total, mixer = total + self.norm(length), mixer - 1
        total += mixer * self.norm(outputs)
        if stack.cross:
            costs = CROSS_COSTS[config.cross](config, cross=True)
            total += costs.cross_saved_bytes(length, length, self.itemsize) + cross * self.norm(length)
        if config.mlp:
            hidden = SAVED_HIDDEN[config.activation] * config.hidden_width
            total += self.rows(outputs) + self.itemsize * hidden * outputs
            total += mlp * self.norm(outputs, saves_input=config.residual != "parallel" or outputs != length)
        if config.norm_position == "rezero":  # the scale multiplies the output of each sub-layer
            total += self.rows(outputs) * (1 + stack.cross + config.mlp)
        return total

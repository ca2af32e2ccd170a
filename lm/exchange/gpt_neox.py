"""GPT-NeoX: rotary positions and layer norms. Query, key and value of a head stand together in one matrix.

It has biases everywhere but in attention, where they are a setting: a model without biases is one whose setting is off
and whose other biases are zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.format import ACTIVATIONS, Entry, Format, activation, is_tied, layer
from lm.exchange.rope import KINDS, rope_conflicts, rope_scaling, rotary_fields

EMBEDDING = "gpt_neox.embed_in.weight"
FINAL = "gpt_neox.final_layer_norm"


def _settings(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "hidden_size": config.width,
        "intermediate_size": config.hidden_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_act": ACTIVATIONS[config.activation],
        "layer_norm_eps": config.norm_eps,
        "rotary_emb_base": config.rotary_base,
        "rotary_pct": 1.0,
        "rope_scaling": rope_scaling(config),
        "use_parallel_residual": False,
        "attention_bias": config.bias,
        "tie_word_embeddings": config.tied_head,
        "hidden_dropout": config.dropout,
        "attention_dropout": config.dropout,
    }


def _fields(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "vocab_size": settings["vocab_size"],
        "context_length": settings["max_position_embeddings"],
        "width": settings["hidden_size"],
        "mlp_width": settings["intermediate_size"],
        "layers": settings["num_hidden_layers"],
        "heads": settings["num_attention_heads"],
        "activation": activation(settings["hidden_act"], ACTIVATIONS, "hidden_act"),
        "norm_eps": settings["layer_norm_eps"],
        "bias": settings["attention_bias"],
        "tied_head": is_tied("embed_out.weight", EMBEDDING, settings, tensors),
        "dropout": settings["hidden_dropout"],
        **rotary_fields(settings, settings["rotary_emb_base"], settings["rotary_pct"]),
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    bias = config.bias
    yield Entry(EMBEDDING, ("embedding.weight",))
    for i in range(config.layers):
        theirs, ours = f"gpt_neox.layers.{i}", f"decoder.blocks.{i}"
        qkv = [f"{ours}.attention.{part}" for part in ("query", "key", "value")]
        yield from layer(f"{theirs}.input_layernorm", f"{ours}.attention_norm", bias=bias)
        yield from layer(f"{theirs}.attention.query_key_value", *qkv, bias=bias, groups=config.heads)
        yield from layer(f"{theirs}.attention.dense", f"{ours}.attention.output", bias=bias)
        yield from layer(f"{theirs}.post_attention_layernorm", f"{ours}.mlp_norm", bias=bias)
        yield from layer(f"{theirs}.mlp.dense_h_to_4h", f"{ours}.mlp.up", bias=bias)
        yield from layer(f"{theirs}.mlp.dense_4h_to_h", f"{ours}.mlp.down", bias=bias)
    yield from layer(FINAL, "decoder.final_norm", bias=bias)
    if not config.tied_head:
        yield Entry("embed_out.weight", ("head.weight",))


def _zeros(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    if config.bias:
        return {}
    sizes = {
        "input_layernorm": config.width,
        "post_attention_layernorm": config.width,
        "mlp.dense_h_to_4h": config.hidden_width,
        "mlp.dense_4h_to_h": config.width,
    }
    blocks = range(config.layers)
    zeros = {f"gpt_neox.layers.{i}.{name}.bias": (size,) for i in blocks for name, size in sizes.items()}
    return {**zeros, f"{FINAL}.bias": (config.width,)}


GPT_NEOX = Format(
    name="GPT-NeoX",
    model_type="gpt_neox",
    auto_class="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    head="embed_out.",
    expresses={
        "architecture": ("decoder",),
        "positions": ("rotary",),
        "rotary_scaling": tuple(KINDS.values()),
        "norm": ("layernorm",),
        "activation": tuple(ACTIVATIONS),
        "bias": (),
        "tied_head": (),
    },
    defaults={
        "vocab_size": 50432,
        "max_position_embeddings": 2048,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "rotary_emb_base": 10000.0,
        "rotary_pct": 0.25,
        "use_parallel_residual": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "hidden_dropout": 0.0,
    },
    needs={"use_parallel_residual": (False,)},
    settings=_settings,
    fields=_fields,
    entries=_entries,
    zeros=_zeros,
    copies=lambda config: {"embed_out.weight": EMBEDDING} if config.tied_head else {},
    conflicts=rope_conflicts,
    renamed={r"^lm_head\.": "embed_out."},
    superfluous=(r"\.attention\.(masked_)?bias$", r"rotary_emb\.inv_freq$"),
)

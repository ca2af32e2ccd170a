"""Llama: rotary positions, RMS norms, a gated MLP, grouped heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.format import Entry, Format, is_tied, layer
from lm.exchange.rope import KINDS, rope_conflicts, rope_scaling, rotary_fields

EMBEDDING = "model.embed_tokens.weight"
LAYERS = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


def _settings(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "hidden_size": config.width,
        "intermediate_size": config.hidden_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rotary_base,
        "rope_scaling": rope_scaling(config),
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
        "tie_word_embeddings": config.tied_head,
        "attention_dropout": config.dropout,
    }


def _fields(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    head_width = settings["hidden_size"] // settings["num_attention_heads"]
    if settings["head_dim"] not in (None, head_width):
        raise ValueError(
            f"config.json has head_dim = {settings['head_dim']}, which is not supported: heads of a width of "
            f"{settings['hidden_size']} over {settings['num_attention_heads']} have {head_width} components"
        )
    if settings["attention_bias"] != settings["mlp_bias"]:
        raise ValueError(
            f"config.json has attention_bias = {settings['attention_bias']} and mlp_bias = {settings['mlp_bias']}, "
            "which is not supported: all linear layers have a bias, or none"
        )
    return {
        "vocab_size": settings["vocab_size"],
        "context_length": settings["max_position_embeddings"],
        "width": settings["hidden_size"],
        "mlp_width": settings["intermediate_size"],
        "layers": settings["num_hidden_layers"],
        "heads": settings["num_attention_heads"],
        "kv_heads": settings["num_key_value_heads"] or settings["num_attention_heads"],
        "norm": "rmsnorm",
        "norm_eps": settings["rms_norm_eps"],
        "activation": "swiglu",
        "bias": settings["attention_bias"],
        "tied_head": is_tied("lm_head.weight", EMBEDDING, settings, tensors),
        **rotary_fields(settings, settings["rope_theta"]),
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    yield Entry(EMBEDDING, ("embedding.weight",))
    for i in range(config.layers):
        theirs, ours = f"model.layers.{i}", f"decoder.blocks.{i}"
        yield from layer(f"{theirs}.input_layernorm", f"{ours}.attention_norm", bias=False)
        yield from layer(f"{theirs}.post_attention_layernorm", f"{ours}.mlp_norm", bias=False)
        for peer, mine in LAYERS.items():
            yield from layer(f"{theirs}.{peer}", f"{ours}.{mine}", bias=config.bias)
    yield from layer("model.norm", "decoder.final_norm", bias=False)
    if not config.tied_head:
        yield Entry("lm_head.weight", ("head.weight",))


LLAMA = Format(
    name="Llama",
    model_type="llama",
    auto_class="LlamaForCausalLM",
    prefix="model.",
    expresses={
        "architecture": ("decoder",),
        "positions": ("rotary",),
        "rotary_scaling": tuple(KINDS.values()),
        "norm": ("rmsnorm",),
        "activation": ("swiglu",),
        "kv_heads": (),
        "bias": (),
        "tied_head": (),
    },
    defaults={
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "head_dim": None,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    },
    needs={"hidden_act": ("silu", "swish")},
    settings=_settings,
    fields=_fields,
    entries=_entries,
    copies=lambda config: {"lm_head.weight": EMBEDDING} if config.tied_head else {},
    conflicts=rope_conflicts,
    superfluous=(r"rotary_emb\.inv_freq$",),
)

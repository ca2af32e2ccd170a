"""GPT-2: learned positions, layer norms before the sub-layers, matrices as (inputs, outputs), QKV in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.format import ACTIVATIONS, Entry, Format, activation, is_tied, layer

EMBEDDING = "transformer.wte.weight"


def _settings(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.mlp_width or None,  # theirs is 4 x n_embd, as ours is
        "activation_function": ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
    }


def _fields(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "vocab_size": settings["vocab_size"],
        "context_length": settings["n_positions"],
        "width": settings["n_embd"],
        "layers": settings["n_layer"],
        "heads": settings["n_head"],
        "mlp_width": settings["n_inner"] or 0,
        "positions": "learned",
        "activation": activation(settings["activation_function"], ACTIVATIONS, "activation_function"),
        "norm_eps": settings["layer_norm_epsilon"],
        "tied_head": is_tied("lm_head.weight", EMBEDDING, settings, tensors),
        "dropout": settings["resid_pdrop"],
    }


def _entries(config: ModelConfig) -> Iterator[Entry]:
    yield Entry(EMBEDDING, ("embedding.weight",))
    yield Entry("transformer.wpe.weight", ("decoder.positional.learned.weight",))
    for i in range(config.layers):
        theirs, ours = f"transformer.h.{i}", f"decoder.blocks.{i}"
        qkv = [f"{ours}.attention.{part}" for part in ("query", "key", "value")]
        yield from layer(f"{theirs}.ln_1", f"{ours}.attention_norm")
        yield from layer(f"{theirs}.attn.c_attn", *qkv, transposed=True)
        yield from layer(f"{theirs}.attn.c_proj", f"{ours}.attention.output", transposed=True)
        yield from layer(f"{theirs}.ln_2", f"{ours}.mlp_norm")
        yield from layer(f"{theirs}.mlp.c_fc", f"{ours}.mlp.up", transposed=True)
        yield from layer(f"{theirs}.mlp.c_proj", f"{ours}.mlp.down", transposed=True)
    yield from layer("transformer.ln_f", "decoder.final_norm")
    if not config.tied_head:
        yield Entry("lm_head.weight", ("head.weight",))


GPT2 = Format(
    name="GPT-2",
    model_type="gpt2",
    auto_class="GPT2LMHeadModel",
    prefix="transformer.",
    expresses={
        "architecture": ("decoder",),
        "positions": ("learned",),
        "norm": ("layernorm",),
        "activation": tuple(ACTIVATIONS),
        "tied_head": (),
    },
    defaults={
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
        "resid_pdrop": 0.1,
    },
    needs={
        # transformers 4 itself ignores this one where attention is fused.
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    settings=_settings,
    fields=_fields,
    entries=_entries,
    copies=lambda config: {"lm_head.weight": EMBEDDING} if config.tied_head else {},
    superfluous=(r"\.attn\.(masked_)?bias$",),
)

"""Llama: rotary positions, RMS norms, a gated MLP, grouped heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lm.config import ModelConfig
from lm.exchange.format import Entry, Format, Pretrained, Setting, constant, layer, read_tying
from lm.exchange.rope import rope_conflicts, rope_setting

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
LAYERS = {
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}


def _head_width(given: Pretrained) -> int:
    """Return `head_width`, which is 0 where heads share out the width."""
    heads, each = given.settings["num_attention_heads"], given.settings["head_dim"]
    return 0 if each is None or each * heads == given.settings["hidden_size"] else int(each)


SETTINGS = (
    Setting("vocab_size", "vocab_size", 32000),
    Setting("max_position_embeddings", "context_length", 2048),
    Setting("hidden_size", "width", 4096),
    Setting("intermediate_size", "mlp_width", 11008, write=lambda config: config.hidden_width),
    Setting("num_hidden_layers", "layers", 32),
    Setting("num_attention_heads", "heads", 32),
    Setting(
        "num_key_value_heads",
        "kv_heads",
        None,
        write=lambda config: config.key_value_heads,
        read=lambda given: given.settings["num_key_value_heads"] or given.settings["num_attention_heads"],
    ),
    Setting("head_dim", "head_width", None, write=lambda config: config.head_features, read=_head_width),
    Setting("hidden_act", default="silu", allowed=("silu", "swish"), write=constant("silu")),
    Setting("rms_norm_eps", "norm_eps", 1e-6),
    Setting("rope_theta", default=10000.0, write=lambda config: config.rotary_base),
    rope_setting(base="rope_theta"),
    Setting("attention_bias", "bias", False),
    Setting("mlp_bias", default=False, write=lambda config: config.bias),
    Setting("tie_word_embeddings", "tied_head", False, read=read_tying(HEAD, EMBEDDING)),
    Setting("attention_dropout", write=lambda config: config.dropout),
)


def _check_combination(settings: Mapping[str, Any]) -> None:
    if settings["attention_bias"] != settings["mlp_bias"]:
        raise ValueError(
            f"config.json has attention_bias = {settings['attention_bias']} and mlp_bias = {settings['mlp_bias']}, "
            "which is not supported: all linear layers have a bias, or none"
        )


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
        yield Entry(HEAD, ("head.weight",))


LLAMA = Format(
    name="Llama",
    model_type="llama",
    auto_class="LlamaForCausalLM",
    prefix="model.",
    fixed={"architecture": "decoder", "positions": "rotary", "norm": "rmsnorm", "activation": "swiglu"},
    settings=SETTINGS,
    entries=_entries,
    copies=lambda config: {HEAD: EMBEDDING} if config.tied_head else {},
    conflicts=rope_conflicts,
    check_combination=_check_combination,
    superfluous=(r"rotary_emb\.inv_freq$",),
)

"""ModernBERT: an encoder with rotary positions, a gated MLP, and norms before sub-layers and after the embedding.

Warner et al. 2024. Query, key and value stand in one matrix, as do the gate and the first matrix of the MLP. In the
published models two layers of three attend to a window and rotate with another base; ours have one kind of layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lm.config import ModelConfig
from lm.exchange.format import Entry, Format, Pretrained, Setting, constant, layer, read_tying
from lm.exchange.rope import read_rope

EMBEDDING = "model.embeddings.tok_embeddings.weight"
HEAD = "decoder.weight"
ACTIVATIONS = {"geglu": "gelu", "geglu_tanh": "gelu_new", "swiglu": "silu"}
BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")
FULL = "full_attention"


def _rotary_base(given: Pretrained) -> float:
    """Return `rotary_base`. transformers 5 writes it under full_attention in rope_parameters."""
    rope = given.settings.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"config.json has rope_parameters = {rope!r}, but it must be an object")
    settings = {**given.settings, "rope_parameters": rope.get(FULL)}
    base, scaling, *_ = read_rope(Pretrained(settings, given.tensors), base="global_rope_theta")
    if scaling != "none":
        raise ValueError(
            f"config.json has rope_type = {scaling!r}, which is not supported: ModernBERT models are read with "
            "'default'"
        )
    return float(base)


SETTINGS = (
    Setting("vocab_size", "vocab_size", 50368),
    Setting("max_position_embeddings", "context_length", 8192),
    Setting("hidden_size", "width", 768),
    Setting("intermediate_size", "mlp_width", 1152, write=lambda config: config.hidden_width),
    Setting("num_hidden_layers", "layers", 22),
    Setting("num_attention_heads", "heads", 12),
    Setting("hidden_activation", "activation", "gelu", names=ACTIVATIONS),
    Setting("norm_eps", "norm_eps", 1e-5),
    # With 1, all layers have full attention. transformers 4 writes these two names, and transformers 5 reads them too.
    Setting("global_attn_every_n_layers", default=3, write=constant(1)),
    Setting("global_rope_theta", "rotary_base", 160000.0, read=_rotary_base),
    Setting("attention_bias", "bias", False),
    *(Setting(key, default=False, write=lambda config: config.bias) for key in BIASES[1:]),
    Setting("decoder_bias", default=True, allowed=(True,), write=constant(True)),
    Setting("classifier_activation", default="gelu", allowed=("gelu",), write=constant("gelu")),
    Setting("tie_word_embeddings", "tied_head", True, read=read_tying(HEAD, EMBEDDING)),
    Setting("attention_dropout", "dropout", 0.0),
    Setting("embedding_dropout", write=lambda config: config.dropout),
    Setting("mlp_dropout", "hidden_dropout", 0.0),
)


def _check_combination(settings: Mapping[str, Any]) -> None:
    if len({settings[key] for key in BIASES}) > 1:
        listed = ", ".join(f"{key} = {settings[key]}" for key in BIASES)
        raise ValueError(f"config.json has {listed}, which is not supported: all of them must be equal")
    every, kinds = settings["global_attn_every_n_layers"], settings.get("layer_types")
    if kinds is None:
        local = settings["num_hidden_layers"] > 1 and every > 1
        named = f"global_attn_every_n_layers = {every}"
    else:
        local = not isinstance(kinds, list) or any(kind != FULL for kind in kinds)
        named = f"layer_types = {kinds!r}"
    if local:
        raise ValueError(
            f"config.json has {named}, which is not supported: ModernBERT models are read with full attention in all "
            "layers (global_attn_every_n_layers = 1)"
        )


def _entries(config: ModelConfig) -> Iterator[Entry]:
    bias = config.bias
    yield Entry(EMBEDDING, ("embedding.weight",))
    yield from layer("model.embeddings.norm", "encoder.embedding_norm", bias=bias)
    for i in range(config.layers):
        theirs, ours = f"model.layers.{i}", f"encoder.blocks.{i}"
        qkv = [f"{ours}.attention.{part}" for part in ("query", "key", "value")]
        if i > 0:
            yield from layer(f"{theirs}.attn_norm", f"{ours}.attention_norm", bias=bias)
        yield from layer(f"{theirs}.attn.Wqkv", *qkv, bias=bias)
        yield from layer(f"{theirs}.attn.Wo", f"{ours}.attention.output", bias=bias)
        yield from layer(f"{theirs}.mlp_norm", f"{ours}.mlp_norm", bias=bias)
        yield from layer(f"{theirs}.mlp.Wi", f"{ours}.mlp.gate", f"{ours}.mlp.up", bias=bias)
        yield from layer(f"{theirs}.mlp.Wo", f"{ours}.mlp.down", bias=bias)
    yield from layer("model.final_norm", "encoder.final_norm", bias=bias)
    yield from layer("head.dense", "head.dense", bias=bias)
    yield from layer("head.norm", "head.norm", bias=bias)
    yield Entry("decoder.bias", ("head.bias",))
    if not config.tied_head:
        yield Entry(HEAD, ("head.weight",))


MODERNBERT = Format(
    name="ModernBERT",
    model_type="modernbert",
    auto_class="ModernBertForMaskedLM",
    prefix="model.",
    head="decoder.",
    fixed={"architecture": "encoder", "positions": "rotary", "norm": "layernorm", "embedding_norm": True},
    settings=SETTINGS,
    entries=_entries,
    copies=lambda config: {HEAD: EMBEDDING} if config.tied_head else {},
    check_combination=_check_combination,
    superfluous=(r"rotary_emb\.inv_freq$",),
    left_out={r"^classifier\.": "the classifier"},
)

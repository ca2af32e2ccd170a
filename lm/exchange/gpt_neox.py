"""GPT-NeoX: rotary positions and layer norms. Query, key and value of each head stand together in one matrix.

The published models, GPT-NeoX-20B and Pythia, rotate a quarter of each head and have parallel residuals.

A model without biases is written with zero biases, and with `bias` false, a key that only we read. A setting of
transformers leaves out the biases of attention alone, but TransformerLens cannot open such a model.
"""

from __future__ import annotations

from collections.abc import Iterator

from lm.config import ModelConfig
from lm.exchange.format import ACTIVATIONS, Entry, Format, Pretrained, Setting, constant, layer, read_tying
from lm.exchange.rope import rope_conflicts, rope_setting, rotary_share

EMBEDDING = "gpt_neox.embed_in.weight"
FINAL = "gpt_neox.final_layer_norm"
HEAD = "embed_out.weight"


def _has_biases(given: Pretrained) -> bool:
    """Return whether the model has biases: not if it was written without them, and none was trained since."""
    zero = given.settings.get("bias") is False and not any(
        bool(tensor.any())
        for name, tensor in given.tensors.items()
        if name.startswith("gpt_neox.") and name.endswith(".bias")  # the head of a task has its own
    )
    return given.settings["attention_bias"] and not zero


SETTINGS = (
    Setting("vocab_size", "vocab_size", 50432),
    Setting("max_position_embeddings", "context_length", 2048),
    Setting("hidden_size", "width", 6144),
    Setting("intermediate_size", "mlp_width", 24576, write=lambda config: config.hidden_width),
    Setting("num_hidden_layers", "layers", 44),
    Setting("num_attention_heads", "heads", 64),
    Setting("hidden_act", "activation", "gelu", names=ACTIVATIONS),
    Setting("layer_norm_eps", "norm_eps", 1e-5),
    Setting("rotary_emb_base", default=10000.0, write=lambda config: config.rotary_base),
    Setting("rotary_pct", default=0.25, write=rotary_share),
    rope_setting(base="rotary_emb_base", share="rotary_pct"),
    Setting(
        "use_parallel_residual",
        "residual",
        True,
        write=lambda config: config.residual == "parallel",
        read=lambda given: "parallel" if given.settings["use_parallel_residual"] else "sequential",
    ),
    Setting("attention_bias", "bias", True, write=constant(True), read=_has_biases),
    Setting("bias", write=lambda config: config.bias),
    Setting("tie_word_embeddings", "tied_head", False, read=read_tying(HEAD, EMBEDDING)),
    Setting("hidden_dropout", "dropout", 0.0),
    Setting("attention_dropout", write=lambda config: config.dropout),
)


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
        yield Entry(HEAD, ("head.weight",))


def _zeros(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    if config.bias:
        return {}
    sizes = {
        "input_layernorm": config.width,
        "attention.query_key_value": 3 * config.width,
        "attention.dense": config.width,
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
    fixed={"architecture": "decoder", "positions": "rotary", "norm": "layernorm"},
    settings=SETTINGS,
    entries=_entries,
    zeros=_zeros,
    copies=lambda config: {HEAD: EMBEDDING} if config.tied_head else {},
    conflicts=rope_conflicts,
    renamed={r"^lm_head\.": "embed_out."},
    superfluous=(r"\.attention\.(masked_)?bias$", r"rotary_emb\.inv_freq$"),
)

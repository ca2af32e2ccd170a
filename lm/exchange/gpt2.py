"""GPT-2: learned positions, layer norms before the sub-layers, one matrix for QKV, matrices as (inputs, outputs)."""

from __future__ import annotations

from collections.abc import Iterator

from lm.config import ModelConfig
from lm.exchange.format import ACTIVATIONS, Entry, Format, Setting, layer, read_tying

EMBEDDING = "transformer.wte.weight"
HEAD = "lm_head.weight"

SETTINGS = (
    Setting("vocab_size", "vocab_size", 50257),
    Setting("n_positions", "context_length", 1024),
    Setting("n_embd", "width", 768),
    Setting("n_layer", "layers", 12),
    Setting("n_head", "heads", 12),
    # None means 4 x n_embd, as our 0 does.
    Setting(
        "n_inner",
        "mlp_width",
        None,
        write=lambda config: config.mlp_width or None,
        read=lambda given: given.settings["n_inner"] or 0,
    ),
    Setting("activation_function", "activation", "gelu_new", names=ACTIVATIONS),
    Setting("layer_norm_epsilon", "norm_eps", 1e-5),
    Setting("tie_word_embeddings", "tied_head", True, read=read_tying(HEAD, EMBEDDING)),
    Setting("resid_pdrop", "dropout", 0.1),
    Setting("embd_pdrop", write=lambda config: config.dropout),
    Setting("attn_pdrop", write=lambda config: config.dropout),
    Setting("scale_attn_weights", default=True, allowed=(True,)),  # transformers 4 ignores it in fused attention
    Setting("scale_attn_by_inverse_layer_idx", default=False, allowed=(False,)),
    Setting("add_cross_attention", default=False, allowed=(False,)),
)


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
        yield Entry(HEAD, ("head.weight",))


GPT2 = Format(
    name="GPT-2",
    model_type="gpt2",
    auto_class="GPT2LMHeadModel",
    prefix="transformer.",
    fixed={"architecture": "decoder", "positions": "learned", "norm": "layernorm"},
    settings=SETTINGS,
    entries=_entries,
    copies=lambda config: {HEAD: EMBEDDING} if config.tied_head else {},
    superfluous=(r"\.attn\.(masked_)?bias$",),
)

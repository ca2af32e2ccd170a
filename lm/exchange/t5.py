"""T5: an encoder-decoder with RMS norms, no biases, and a relative bias that all blocks of a stack share.

T5 1.0 ties its head and divides the hidden states before it by the root of the width; T5 1.1 does neither. transformers
distinguishes the two by tie_word_embeddings alone. So a tied head without the division is written as a separate head
that equals the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator

from lm.config import GATED, ModelConfig
from lm.exchange.format import Entry, Format, Pretrained, Setting, constant, has_own_head, layer

EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"
FEED_FORWARD = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "geglu_tanh": "gated-gelu",
    "swiglu": "gated-silu",
}


def _scaled_and_tied(given: Pretrained) -> tuple[bool, bool]:
    """Return `scaled_head` and `tied_head`. transformers 5 writes the division as a setting; 4 infers it from the
    tie."""
    scaled = given.settings.get("scale_decoder_outputs")
    tied = not has_own_head(given, HEAD, EMBEDDING)
    return given.settings["tie_word_embeddings"] if scaled is None else scaled, tied


def _head_width(given: Pretrained) -> int:
    """Return `head_width`, which is 0 where heads share out the width."""
    heads, each = given.settings["num_heads"], given.settings["d_kv"]
    return 0 if each * heads == given.settings["d_model"] else int(each)


SETTINGS = (
    Setting("vocab_size", "vocab_size", 32128),
    Setting("n_positions", "context_length", 512),
    Setting("d_model", "width", 512),
    Setting("d_kv", "head_width", 64, write=lambda config: config.head_features, read=_head_width),
    Setting("d_ff", "mlp_width", 2048, write=lambda config: config.hidden_width),
    Setting("num_layers", "layers", 6),
    Setting(
        "num_decoder_layers",
        "decoder_layers",
        None,
        write=lambda config: config.decoder_layers or config.layers,
        read=lambda given: given.settings["num_decoder_layers"] or given.settings["num_layers"],
    ),
    Setting("num_heads", "heads", 8),
    Setting("relative_attention_num_buckets", "relative_buckets", 32),
    Setting("relative_attention_max_distance", "relative_distance", 128),
    Setting("layer_norm_epsilon", "norm_eps", 1e-6),
    Setting("feed_forward_proj", "activation", "relu", names=FEED_FORWARD),
    Setting(
        "dropout_rate",
        ("dropout", "hidden_dropout"),
        0.1,
        write=lambda config: config.dropout,
        read=lambda given: (given.settings["dropout_rate"],) * 2,
    ),
    Setting("is_encoder_decoder", default=True, allowed=(True,), write=constant(True)),
    Setting(
        "tie_word_embeddings",
        ("scaled_head", "tied_head"),
        True,
        write=lambda config: config.scaled_head,
        read=_scaled_and_tied,
    ),
    Setting("scale_decoder_outputs", allowed=(None, True, False)),
)


def _attention(theirs: str, ours: str) -> Iterator[Entry]:
    for peer, mine in (("q", "query"), ("k", "key"), ("v", "value"), ("o", "output")):
        yield from layer(f"{theirs}.{peer}", f"{ours}.{mine}", bias=False)


def _stack(config: ModelConfig, name: str, layers: int) -> Iterator[Entry]:
    ups = {"wi_0": "gate", "wi_1": "up"} if config.activation in GATED else {"wi": "up"}
    bias = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    yield Entry(bias, (f"{name}.relative.weight",))
    for i in range(layers):
        theirs, ours = f"{name}.block.{i}.layer", f"{name}.blocks.{i}"
        norms = ["attention_norm", "mlp_norm"]
        yield from _attention(f"{theirs}.0.SelfAttention", f"{ours}.attention")
        if name == "decoder":
            norms.insert(1, "cross_norm")
            yield from _attention(f"{theirs}.1.EncDecAttention", f"{ours}.cross_attention")
        for number, norm in enumerate(norms):
            yield from layer(f"{theirs}.{number}.layer_norm", f"{ours}.{norm}", bias=False)
        for peer, mine in {**ups, "wo": "down"}.items():
            yield from layer(f"{theirs}.{len(norms) - 1}.DenseReluDense.{peer}", f"{ours}.mlp.{mine}", bias=False)
    yield from layer(f"{name}.final_layer_norm", f"{name}.final_norm", bias=False)


def _entries(config: ModelConfig) -> Iterator[Entry]:
    yield Entry(EMBEDDING, ("embedding.weight",))
    yield from _stack(config, "encoder", config.layers)
    yield from _stack(config, "decoder", config.decoder_layers or config.layers)
    if not config.tied_head:
        yield Entry(HEAD, ("head.weight",))


def _copies(config: ModelConfig) -> dict[str, str]:
    copies = {f"{stack}.embed_tokens.weight": EMBEDDING for stack in ("encoder", "decoder")}
    return {**copies, HEAD: EMBEDDING} if config.tied_head else copies


def _conflicts(config: ModelConfig) -> list[str]:
    untied = config.scaled_head and not config.tied_head
    return ["model.scaled_head = False where the head is not tied, not True"] if untied else []


T5 = Format(
    name="T5",
    model_type="t5",
    auto_class="T5ForConditionalGeneration",
    prefix="",
    fixed={
        "architecture": "encoder-decoder",
        "positions": "relative",
        "norm": "rmsnorm",
        "bias": False,
        "scaled_attention": False,
    },
    settings=SETTINGS,
    entries=_entries,
    copies=_copies,
    written_copies=lambda config: (HEAD,) if config.tied_head and not config.scaled_head else (),
    conflicts=_conflicts,
    # In the oldest files the cross-attention of the first block has a table that nothing uses.
    superfluous=(r"EncDecAttention\.relative_attention_bias\.weight$",),
)

"""BERT with its masked-token head: an encoder with learned positions and layer norms after the residual sums."""

from __future__ import annotations

from collections.abc import Iterator

from lm.config import ModelConfig
from lm.exchange.format import Entry, Format, Pretrained, Setting, constant, layer

EMBEDDINGS = "bert.embeddings"
TYPES = f"{EMBEDDINGS}.token_type_embeddings.weight"
WORDS = f"{EMBEDDINGS}.word_embeddings.weight"
HEAD_BIAS = "cls.predictions.bias"
SEGMENTS = 2  # as in every published BERT
LAYERS = {
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "mlp.up",
    "output.dense": "mlp.down",
    "output.LayerNorm": "mlp_norm",
}


def _token_types(given: Pretrained) -> int:
    """Return type_vocab_size, or 0 if the table is zero, as in the export of a model without token types."""
    table = given.tensors.get(TYPES)
    return given.settings["type_vocab_size"] if table is not None and table.any() else 0


SETTINGS = (
    Setting("vocab_size", "vocab_size", 30522),
    Setting("max_position_embeddings", "context_length", 512),
    Setting(
        "type_vocab_size",
        "token_types",
        2,
        write=lambda config: config.token_types or SEGMENTS,
        read=_token_types,
    ),
    Setting("hidden_size", "width", 768),
    Setting("intermediate_size", "mlp_width", 3072, write=lambda config: config.hidden_width),
    Setting("num_hidden_layers", "layers", 12),
    Setting("num_attention_heads", "heads", 12),
    Setting("hidden_act", default="gelu", allowed=("gelu",), write=constant("gelu")),
    Setting("layer_norm_eps", "norm_eps", 1e-12),
    Setting("tie_word_embeddings", default=True, allowed=(True,), write=constant(True)),
    Setting("hidden_dropout_prob", "dropout", 0.1),
    Setting("attention_probs_dropout_prob", write=lambda config: config.dropout),
    Setting("position_embedding_type", default="absolute", allowed=("absolute", None)),
    Setting("is_decoder", default=False, allowed=(False,)),
    Setting("add_cross_attention", default=False, allowed=(False,)),
)


def _entries(config: ModelConfig) -> Iterator[Entry]:
    yield Entry(WORDS, ("embedding.weight",))
    yield Entry(f"{EMBEDDINGS}.position_embeddings.weight", ("encoder.positional.learned.weight",))
    if config.token_types:
        yield Entry(TYPES, ("token_types.weight",))
    yield from layer(f"{EMBEDDINGS}.LayerNorm", "encoder.embedding_norm")
    for i in range(config.layers):
        for peer, mine in LAYERS.items():
            yield from layer(f"bert.encoder.layer.{i}.{peer}", f"encoder.blocks.{i}.{mine}")
    yield from layer("cls.predictions.transform.dense", "head.dense")
    yield from layer("cls.predictions.transform.LayerNorm", "head.norm")
    yield Entry(HEAD_BIAS, ("head.bias",))


def _zeros(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {} if config.token_types else {TYPES: (SEGMENTS, config.width)}


BERT = Format(
    name="BERT",
    model_type="bert",
    auto_class="BertForMaskedLM",
    prefix="bert.",
    head="cls.",
    fixed={
        "architecture": "encoder",
        "positions": "learned",
        "norm": "layernorm",
        "norm_position": "post",
        "activation": "gelu",
    },
    settings=SETTINGS,
    entries=_entries,
    zeros=_zeros,
    copies=lambda config: {"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": HEAD_BIAS},
    renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
    superfluous=(r"^bert\.pooler\.", r"^cls\.seq_relationship\.", r"position_ids$"),
)

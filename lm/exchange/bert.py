"""BERT, RoBERTa and DistilBERT with masked-token heads: encoders with learned positions and norms after residual sums.

RoBERTa numbers positions from its padding id + 1. DistilBERT has no token types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from lm.config import ModelConfig
from lm.exchange.format import Entry, Format, Pretrained, Setting, constant, layer

FIXED = {
    "architecture": "encoder",
    "positions": "learned",
    "norm": "layernorm",
    "norm_position": "post",
    "embedding_norm": True,
    "activation": "gelu",
}
CLASSIFIER = "the classifier"
OTHER_HEADS = {r"^(pre_)?classifier\.": CLASSIFIER, r"^qa_outputs\.": "the question-answering head"}
TYPES = "embeddings.token_type_embeddings.weight"
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
DISTILBERT_LAYERS = {
    "attention.q_lin": "attention.query",
    "attention.k_lin": "attention.key",
    "attention.v_lin": "attention.value",
    "attention.out_lin": "attention.output",
    "sa_layer_norm": "attention_norm",
    "ffn.lin1": "mlp.up",
    "ffn.lin2": "mlp.down",
    "output_layer_norm": "mlp_norm",
}


def _segments(config: ModelConfig, segments: int) -> int:
    """Return type_vocab_size; `segments`, as in the published models, if `config` has no token types."""
    return config.token_types or segments


def _token_types(given: Pretrained, table: str) -> int:
    """Return type_vocab_size, or 0 if the table is zero, as in the export of a model without token types."""
    tensor = given.tensors.get(table)
    return given.settings["type_vocab_size"] if tensor is not None and tensor.any() else 0


def _settings(prefix: str, segments: int, *own: Setting) -> tuple[Setting, ...]:
    """Return the `own` settings of a format, then the settings that BERT and RoBERTa share."""
    return (
        *own,
        Setting(
            "type_vocab_size",
            "token_types",
            2,
            write=partial(_segments, segments=segments),
            read=partial(_token_types, table=prefix + TYPES),
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


def _entries(
    config: ModelConfig, prefix: str, layers: str, parts: Mapping[str, str], head: Mapping[str, str]
) -> Iterator[Entry]:
    """Yield the tensors of an encoder. Names in block i begin with `layers` and i.

    parts: our names of the layers of a block, by theirs. head: their names of the head's layers, by ours.
    """
    yield Entry(f"{prefix}embeddings.word_embeddings.weight", ("embedding.weight",))
    yield Entry(f"{prefix}embeddings.position_embeddings.weight", ("encoder.positional.learned.weight",))
    if config.token_types:
        yield Entry(prefix + TYPES, ("token_types.weight",))
    yield from layer(f"{prefix}embeddings.LayerNorm", "encoder.embedding_norm")
    for i in range(config.layers):
        for peer, mine in parts.items():
            yield from layer(f"{prefix}{layers}{i}.{peer}", f"encoder.blocks.{i}.{mine}")
    yield from layer(head["dense"], "head.dense")
    yield from layer(head["norm"], "head.norm")
    yield Entry(head["bias"], ("head.bias",))


def _zeros(config: ModelConfig, prefix: str, segments: int) -> dict[str, tuple[int, ...]]:
    return {} if config.token_types else {prefix + TYPES: (segments, config.width)}


BERT = Format(
    name="BERT",
    model_type="bert",
    auto_class="BertForMaskedLM",
    prefix="bert.",
    head="cls.",
    fixed=FIXED,
    settings=_settings(
        "bert.",
        2,
        Setting("vocab_size", "vocab_size", 30522),
        Setting("max_position_embeddings", "context_length", 512),
    ),
    entries=partial(
        _entries,
        prefix="bert.",
        layers="encoder.layer.",
        parts=LAYERS,
        head={
            "dense": "cls.predictions.transform.dense",
            "norm": "cls.predictions.transform.LayerNorm",
            "bias": "cls.predictions.bias",
        },
    ),
    zeros=partial(_zeros, prefix="bert.", segments=2),
    copies=lambda config: {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
    superfluous=(r"position_ids$",),
    left_out={r"^bert\.pooler\.": "the pooler", r"^cls\.seq_relationship\.": "the next-sentence head", **OTHER_HEADS},
)

ROBERTA = Format(
    name="RoBERTa",
    model_type="roberta",
    auto_class="RobertaForMaskedLM",
    prefix="roberta.",
    head="lm_head.",
    fixed=FIXED,
    settings=_settings(
        "roberta.",
        1,
        Setting("vocab_size", "vocab_size", 50265),
        Setting(
            "pad_token_id",
            "position_offset",
            1,
            least=0,
            write=lambda config: config.position_offset - 1,
            read=lambda given: given.settings["pad_token_id"] + 1,
        ),
        Setting(
            "max_position_embeddings",
            "context_length",
            512,
            write=lambda config: config.context_length + config.position_offset,
            read=lambda given: given.settings["max_position_embeddings"] - given.settings["pad_token_id"] - 1,
        ),
    ),
    entries=partial(
        _entries,
        prefix="roberta.",
        layers="encoder.layer.",
        parts=LAYERS,
        head={"dense": "lm_head.dense", "norm": "lm_head.layer_norm", "bias": "lm_head.bias"},
    ),
    zeros=partial(_zeros, prefix="roberta.", segments=1),
    copies=lambda config: {
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    conflicts=lambda config: [] if config.position_offset else ["model.position_offset of 1 or more, not 0"],
    superfluous=(r"position_ids$",),
    left_out={r"^roberta\.pooler\.": "the pooler", **OTHER_HEADS},
)

DISTILBERT = Format(
    name="DistilBERT",
    model_type="distilbert",
    auto_class="DistilBertForMaskedLM",
    prefix="distilbert.",
    head="vocab_",
    fixed={**FIXED, "norm_eps": 1e-12},
    settings=(
        Setting("vocab_size", "vocab_size", 30522),
        Setting("max_position_embeddings", "context_length", 512),
        Setting("dim", "width", 768),
        Setting("hidden_dim", "mlp_width", 3072, write=lambda config: config.hidden_width),
        Setting("n_layers", "layers", 6),
        Setting("n_heads", "heads", 12),
        Setting("activation", default="gelu", allowed=("gelu",), write=constant("gelu")),
        Setting("tie_word_embeddings", default=True, allowed=(True,), write=constant(True)),
        Setting("dropout", "dropout", 0.1),
        Setting("attention_dropout", write=lambda config: config.dropout),
        # Sinusoids are only the initial values of the table; the file has the trained ones.
        Setting("sinusoidal_pos_embds", default=False, allowed=(False, True), write=constant(False)),
    ),
    entries=partial(
        _entries,
        prefix="distilbert.",
        layers="transformer.layer.",
        parts=DISTILBERT_LAYERS,
        head={"dense": "vocab_transform", "norm": "vocab_layer_norm", "bias": "vocab_projector.bias"},
    ),
    copies=lambda config: {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    superfluous=(r"position_ids$",),
    left_out=OTHER_HEADS,
)

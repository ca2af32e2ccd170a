"""BERT with its masked-token head: an encoder with learned positions and layer norms after the residual sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.format import Entry, Format, layer

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


def _settings(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "type_vocab_size": config.token_types or SEGMENTS,
        "hidden_size": config.width,
        "intermediate_size": config.hidden_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu",
        "layer_norm_eps": config.norm_eps,
        "tie_word_embeddings": True,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
    }


def _fields(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    types = tensors.get(TYPES)
    # A table of zeros says nothing: it is what a model without token types is written with.
    silent = types is None or not types.any()
    return {
        "architecture": "encoder",
        "vocab_size": settings["vocab_size"],
        "context_length": settings["max_position_embeddings"],
        "token_types": 0 if silent else settings["type_vocab_size"],
        "width": settings["hidden_size"],
        "mlp_width": settings["intermediate_size"],
        "layers": settings["num_hidden_layers"],
        "heads": settings["num_attention_heads"],
        "positions": "learned",
        "norm_position": "post",
        "norm_eps": settings["layer_norm_eps"],
        "dropout": settings["hidden_dropout_prob"],
    }


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
    expresses={
        "architecture": ("encoder",),
        "positions": ("learned",),
        "norm": ("layernorm",),
        "norm_position": ("post",),
        "activation": ("gelu",),
        "token_types": (),
    },
    defaults={
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    needs={
        "hidden_act": ("gelu",),
        "position_embedding_type": ("absolute", None),
        "is_decoder": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
    settings=_settings,
    fields=_fields,
    entries=_entries,
    zeros=_zeros,
    copies=lambda config: {"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": HEAD_BIAS},
    renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
    superfluous=(r"^bert\.pooler\.", r"^cls\.seq_relationship\.", r"position_ids$"),
)

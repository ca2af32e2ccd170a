"""T5: an encoder-decoder with a relative bias that all blocks of a stack share, RMS norms, no biases.

T5 1.0 divides what its tied head reads by the root of the width; 1.1 has a head of its own and divides nothing.
transformers takes the one for the other by tie_word_embeddings, so a tied head without the division is written as one
of its own that is equal to the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.format import Entry, Format, activation, is_tied, layer

EMBEDDING = "shared.weight"
HEAD = "lm_head.weight"
# geglu's gate is the tanh approximation, as theirs is.
FEED_FORWARD = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "geglu": "gated-gelu",
    "swiglu": "gated-silu",
}
GATED = ("geglu", "swiglu")


def _settings(config: ModelConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_positions": config.context_length,
        "d_model": config.width,
        "d_kv": config.head_width,
        "d_ff": config.hidden_width,
        "num_layers": config.layers,
        "num_decoder_layers": config.decoder_layers or config.layers,
        "num_heads": config.heads,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_distance,
        "layer_norm_epsilon": config.norm_eps,
        "feed_forward_proj": FEED_FORWARD[config.activation],
        "dropout_rate": config.dropout,
        "is_encoder_decoder": True,
        "tie_word_embeddings": config.scaled_head,
    }


def _fields(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    if settings["d_kv"] * settings["num_heads"] != settings["d_model"]:
        raise ValueError(
            f"config.json has d_kv = {settings['d_kv']} and num_heads = {settings['num_heads']}, which is not "
            f"supported: together they must make up d_model = {settings['d_model']}"
        )
    # Whatever config.json says: it means the division by tie_word_embeddings.
    tied = is_tied(HEAD, EMBEDDING, {"tie_word_embeddings": True}, tensors)
    # transformers 5 writes the division itself into config.json; before, it followed from the tie.
    scaled = settings.get("scale_decoder_outputs")
    return {
        "architecture": "encoder-decoder",
        "vocab_size": settings["vocab_size"],
        "context_length": settings["n_positions"],
        "width": settings["d_model"],
        "mlp_width": settings["d_ff"],
        "layers": settings["num_layers"],
        "decoder_layers": settings["num_decoder_layers"] or settings["num_layers"],
        "heads": settings["num_heads"],
        "positions": "relative",
        "relative_buckets": settings["relative_attention_num_buckets"],
        "relative_distance": settings["relative_attention_max_distance"],
        "norm": "rmsnorm",
        "norm_eps": settings["layer_norm_epsilon"],
        "activation": activation(settings["feed_forward_proj"], FEED_FORWARD, "feed_forward_proj"),
        "bias": False,
        "tied_head": tied,
        "scaled_attention": False,
        "scaled_head": settings["tie_word_embeddings"] if scaled is None else scaled,
        "dropout": settings["dropout_rate"],
    }


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
    expresses={
        "architecture": ("encoder-decoder",),
        "decoder_layers": (),
        "positions": ("relative",),
        "norm": ("rmsnorm",),
        "activation": tuple(FEED_FORWARD),
        "bias": (False,),
        "tied_head": (),
        "scaled_attention": (False,),
        "scaled_head": (),
    },
    defaults={
        "vocab_size": 32128,
        "n_positions": 512,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": None,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "dropout_rate": 0.1,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
    },
    needs={"is_encoder_decoder": (True,), "scale_decoder_outputs": (None, True, False)},
    settings=_settings,
    fields=_fields,
    entries=_entries,
    copies=_copies,
    written_copies=lambda config: (HEAD,) if config.tied_head and not config.scaled_head else (),
    conflicts=_conflicts,
    # The first block's cross-attention has a table in the oldest files, which was never used.
    superfluous=(r"EncDecAttention\.relative_attention_bias\.weight$",),
)

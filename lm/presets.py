"""Published models: shapes by name."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from lm.config import ModelConfig

GPT2 = ModelConfig(
    vocab_size=50257,
    context_length=1024,
    layers=12,
    width=768,
    heads=12,
    positions="learned",
    activation="gelu_tanh",
)
LLAMA = ModelConfig(
    vocab_size=32000,
    context_length=2048,
    layers=32,
    width=4096,
    heads=32,
    mlp_width=11008,
    norm="rmsnorm",
    norm_eps=1e-6,
    activation="swiglu",
    bias=False,
    tied_head=False,
)
NEOX = ModelConfig(
    vocab_size=50304,
    context_length=2048,
    layers=6,
    width=512,
    heads=8,
    rotary_width=16,
    residual="parallel",
    tied_head=False,
)
BERT = ModelConfig(
    architecture="encoder",
    vocab_size=30522,
    context_length=512,
    layers=12,
    width=768,
    heads=12,
    positions="learned",
    norm_position="post",
    embedding_norm=True,
    norm_eps=1e-12,
    token_types=2,
    dropout=0.1,
)
T5 = ModelConfig(
    architecture="encoder-decoder",
    vocab_size=32128,
    context_length=512,
    layers=6,
    width=512,
    heads=8,
    positions="relative",
    norm="rmsnorm",
    norm_eps=1e-6,
    activation="relu",
    bias=False,
    scaled_attention=False,
    scaled_head=True,
    dropout=0.1,
    hidden_dropout=0.1,
    initialization="t5",
)
TRANSFORMER = ModelConfig(
    architecture="encoder-decoder",
    vocab_size=37000,
    context_length=512,
    layers=6,
    width=512,
    heads=8,
    positions="sinusoidal",
    norm_position="post",
    activation="relu",
    dropout=0.1,
    hidden_dropout=0.1,
    initialization="xavier",
)
MODERN = ModelConfig(
    vocab_size=50304,
    context_length=1024,
    layers=12,
    width=768,
    heads=6,
    norm="rmsnorm",
    qk_norm=True,
    activation="relu2",
    bias=False,
    tied_head=False,
    zero_projections=True,
)


def _gpt3(layers: int, width: int, heads: int) -> ModelConfig:
    return replace(GPT2, context_length=2048, layers=layers, width=width, heads=heads)


def _neox(layers: int, width: int, heads: int, vocab_size: int = 50304) -> ModelConfig:
    quarter = width // heads // 4
    return replace(NEOX, vocab_size=vocab_size, layers=layers, width=width, heads=heads, rotary_width=quarter)


PRESETS: dict[str, ModelConfig] = {
    # Radford et al. 2019, with the heads of the released models
    "gpt2": GPT2,
    "gpt2-medium": replace(GPT2, layers=24, width=1024, heads=16),
    "gpt2-large": replace(GPT2, layers=36, width=1280, heads=20),
    "gpt2-xl": replace(GPT2, layers=48, width=1600, heads=25),
    # Brown et al. 2020, table 2.1, with dense attention in all layers. Two rows are inconsistent and corrected here:
    # "XL" has 24 heads of 128 for a width of 2,048 (now 16 heads), "13B" a width of 5,140 for 40 heads of 128 (5,120).
    "gpt3-small": _gpt3(12, 768, 12),
    "gpt3-medium": _gpt3(24, 1024, 16),
    "gpt3-large": _gpt3(24, 1536, 16),
    "gpt3-xl": _gpt3(24, 2048, 16),
    "gpt3-2.7b": _gpt3(32, 2560, 32),
    "gpt3-6.7b": _gpt3(32, 4096, 32),
    "gpt3-13b": _gpt3(40, 5120, 40),
    "gpt3-175b": _gpt3(96, 12288, 96),
    # Touvron et al. 2023; Grattafiori et al. 2024
    "llama": LLAMA,
    "llama-13b": replace(LLAMA, layers=40, width=5120, heads=40, mlp_width=13824),
    "llama3-8b": replace(
        LLAMA,
        vocab_size=128256,
        context_length=8192,
        kv_heads=8,
        mlp_width=14336,
        norm_eps=1e-5,
        rotary_base=500000.0,
    ),
    # Biderman et al. 2023; Black et al. 2022, with the activation of its released configuration
    "pythia-70m": NEOX,
    "pythia-160m": _neox(12, 768, 12),
    "pythia-410m": _neox(24, 1024, 16),
    "pythia-1b": _neox(16, 2048, 8),
    "pythia-1.4b": _neox(24, 2048, 16),
    "pythia-2.8b": _neox(32, 2560, 32),
    "pythia-6.9b": _neox(32, 4096, 32, vocab_size=50432),
    "pythia-12b": _neox(36, 5120, 40, vocab_size=50688),
    "gpt-neox-20b": replace(_neox(44, 6144, 64, vocab_size=50432), activation="gelu_tanh"),
    # Devlin et al. 2019
    "bert-base": BERT,
    "bert-large": replace(BERT, layers=24, width=1024, heads=16),
    # Liu et al. 2019; Sanh et al. 2019
    "roberta-base": replace(BERT, vocab_size=50265, norm_eps=1e-5, position_offset=2, token_types=1),
    "distilbert-base": replace(BERT, layers=6, token_types=0),
    # Raffel et al. 2020
    "t5-small": T5,
    "t5-base": replace(T5, layers=12, width=768, heads=12),
    # Vaswani et al. 2017
    "transformer-base": TRANSFORMER,
    # common choices of recent speed records of small models
    "modern": MODERN,
}


def preset(name: str) -> ModelConfig:
    """Return the shape of that name. Raises ValueError with the nearest name for an unknown one."""
    if name not in PRESETS:
        nearest = get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {nearest[0]!r}? " if nearest else ""
        raise ValueError(f"there is no preset {name!r}: {hint}there are {', '.join(PRESETS)}")
    return PRESETS[name]

"""The model shapes and variants of benchmarks.recipes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from lm.presets import preset
from pipelines.files import read_toml
from pipelines.recipes.recipe import RECIPES

Fields = dict[str, Any]


class Variant(NamedTuple):
    """Model and training fields that differ from a shape and from `TRAIN`."""

    model: Fields
    train: Fields
    data: Mapping[str, Any] = MappingProxyType({})
    """Fields of benchmarks.small_data.SmallText.dataset that differ from the options"""

    @property
    def objective(self) -> str:
        return "masked-token" if self.model.get("architecture") == "encoder" else "next-token"


CONTEXT = 256  # tokens of a block
SHAPES: dict[str, Fields] = {
    "tiny": {"context_length": CONTEXT, "layers": 2, "width": 128, "heads": 2},  # as in the recipe bert-tiny
    "small": {"context_length": CONTEXT, "layers": 4, "width": 192, "heads": 3, "bias": False},
    "medium": {"context_length": CONTEXT, "layers": 6, "width": 320, "heads": 5, "bias": False},
}
TRAIN: Fields = {"batch_tokens": 2048, "micro_batch": 8, "weight_decay": 0.1, "beta2": 0.99}


def _of_preset(name: str, *fields: str) -> Fields:
    return {field: getattr(preset(name), field) for field in fields}


GPT2: Fields = {"positions": "learned", "activation": "gelu_tanh", "bias": True}
MODERN = _of_preset("modern", "norm", "activation", "qk_norm", "tied_head", "zero_projections")
MUON: Fields = {"optimizer": "muon", "schedule": "trapezoid", "min_lr_ratio": 0.0, "lr": 2e-3, "muon_lr": 8e-3}
RATES, DECAYS = ("5e-4", "1e-3", "1.4e-3", "2e-3", "4e-3", "8e-3"), ("0.1", "0.01")
# The baseline: GPT-2 with AdamW at every rate and decay.
SWEEP = {
    f"gpt2, lr {rate}" + (f", decay {decay}" if decay != DECAYS[0] else ""): Variant(
        GPT2, {"lr": float(rate), "weight_decay": float(decay)}
    )
    for decay in DECAYS
    for rate in RATES
}
ENCODER: Fields = {"architecture": "encoder", "context_length": CONTEXT + 2}  # between <|cls|> and <|sep|>
# BERT as published (Devlin et al. 2019, A.2), except for learning rates that suit a shorter training.
BERT = ENCODER | _of_preset("bert-base", "positions", "norm_position", "embedding_norm", "norm_eps", "dropout", "bias")
FALLING: Fields = {"schedule": "trapezoid", "decay_share": 0.95, "min_lr_ratio": 0.0}
BERT_TRAIN = FALLING | {"weight_decay": 0.01, "beta2": 0.999, "eps": 1e-6}
MASKED = {
    **{
        f"bert, lr {rate}": Variant(BERT, BERT_TRAIN | {"lr": float(rate)})
        for rate in ("1e-4", "3e-4", "5e-4", "1e-3", "2e-3")
    },
    "bert, lr 1e-3, no dropout": Variant(BERT | {"dropout": 0.0}, BERT_TRAIN | {"lr": 1e-3}),
    "pre-norm bert, adamw": Variant(ENCODER, FALLING | {"lr": 1e-3}),
    "pre-norm bert, muon": Variant(ENCODER, MUON),
    "pre-norm bert, muon, batches of 4,096": Variant(ENCODER, MUON | {"batch_tokens": 4096}),
    "modern bert": Variant(ENCODER | MODERN, MUON),
}
_BERT_TINY = read_toml(RECIPES / "bert-tiny.toml")
_BERT_SMALL = read_toml(RECIPES / "bert-small.toml")
_PUBLISHED = read_toml(RECIPES / "bert-tiny-published.toml")
_SETTINGS = ("optimizer", "lr", "muon_lr", "beta2", "schedule", "min_lr_ratio", "weight_decay")


def _of_recipe(recipe: Fields, model: Fields | None = None, **train: Any) -> Variant:
    """Return a variant with the settings of a recipe's table; `model` and `train` replace some of them."""
    shape = ENCODER if recipe["model"]["architecture"] == "encoder" else {}
    own = {name: value for name, value in recipe["model"].items() if name not in SHAPES["tiny"]}
    return Variant(
        own | shape | (model or {}),
        {name: value for name, value in recipe["train"].items() if name in _SETTINGS} | {"batch_tokens": 1024} | train,
    )


RECIPE_MASKS = {name: _BERT_TINY["train"][name] for name in ("masked_share", "length_start")}
# Masks and lengths of the recipe bert-tiny. All are validated with the same masks: 15 % of the tokens, each by itself.
MASKS = {
    "bert-tiny": _of_recipe(_BERT_TINY, **RECIPE_MASKS),
    "bert-tiny, 50% masked, length warm-up": _of_recipe(_BERT_TINY, masked_share=0.5, length_start=64),
    **{f"bert-tiny, {share:.0%} masked": _of_recipe(_BERT_TINY, masked_share=share) for share in (0.15, 0.3, 0.4, 0.5)},
    "bert-tiny, 30% to 15% masked": _of_recipe(_BERT_TINY, masked_share=0.3, masked_share_end=0.15),
    "bert-tiny, 15% masked, words": _of_recipe(_BERT_TINY, masked_unit="word"),
    "bert-tiny, 15% masked, spans": _of_recipe(_BERT_TINY, masked_unit="span"),
    "bert-tiny, 15% masked, length warm-up": _of_recipe(_BERT_TINY, length_start=64),
    "bert-tiny-published": _of_recipe(_PUBLISHED),
}
# Ideas for encoders of a small text that is read several times, each alone.
SMALL_MASKED = {
    **{f"bert-tiny, decay {decay}": _of_recipe(_BERT_TINY, **RECIPE_MASKS, weight_decay=decay) for decay in (0.3, 1.0)},
    "bert-tiny, dropout 0.1": _of_recipe(_BERT_TINY, {"dropout": 0.1}, **RECIPE_MASKS),
}
# The recipe bert-small in the shape medium, with the batches of other encoders of this shape.
BERT_SMALL = {"bert-small": _of_recipe(_BERT_SMALL, {"mlp_width": 800}, **RECIPE_MASKS, batch_tokens=2048)}
# Ideas for a small text that is read several times, each alone: changes to the recipe gpt-tiny.
_GPT_TINY = read_toml(RECIPES / "gpt-tiny.toml")


def _small(model: Fields | None = None, train: Fields | None = None, **data: Any) -> Variant:
    """Return a variant of gpt-tiny."""
    return _of_recipe(_GPT_TINY, model, **train or {})._replace(data=data)


SMALL = {
    "gpt-tiny": _small(),
    **{f"gpt-tiny, decay {decay}": _small(train={"weight_decay": decay}) for decay in (0.3, 0.6, 1.0, 2.0, 3.0)},
    **{f"gpt-tiny, dropout {share}": _small({"dropout": share}) for share in (0.1, 0.2)},
    "gpt-tiny, stochastic depth 0.2": _small({"stochastic_depth": 0.2}),
    "gpt-tiny, average 0.998": _small(train={"average": 0.998}),
    **{f"gpt-tiny, {entries} entries": _small(vocab_size=entries) for entries in (512, 1024)},
    "gpt-tiny, BPE dropout 0.1": _small(dropout=0.1),
    "gpt-tiny, unigram": _small(kind="unigram"),
    "gpt-tiny, unigram, alpha 0.3": _small(kind="unigram", alpha=0.3),
    "gpt-tiny, shared layers": _small({"layer_groups": 1}),
    "gpt-tiny, decay 1.0, dropout 0.1": _small({"dropout": 0.1}, {"weight_decay": 1.0}),
    "gpt-tiny, decay 2.0, dropout 0.1": _small({"dropout": 0.1}, {"weight_decay": 2.0}),
    "gpt-tiny, decay 1.0, 1024 entries": _small(train={"weight_decay": 1.0}, vocab_size=1024),
    "gpt-tiny, decay 1.0, BPE dropout 0.1": _small(train={"weight_decay": 1.0}, dropout=0.1),
}
VARIANTS = {
    **SWEEP,
    "gpt2, muon": Variant(GPT2, MUON),
    "modern, adamw": Variant(MODERN, {"lr": 2e-3}),
    "modern": Variant(MODERN, MUON),
    "modern, batches of 4,096": Variant(MODERN, MUON | {"batch_tokens": 4096}),
    "modern, muon_lr 4e-3": Variant(MODERN, MUON | {"muon_lr": 4e-3}),
    "modern, muon_lr 16e-3": Variant(MODERN, MUON | {"muon_lr": 16e-3}),
    "modern, lr 4e-3": Variant(MODERN, MUON | {"lr": 4e-3}),
    "modern, projections drawn": Variant(MODERN | {"zero_projections": False}, MUON),
    "modern, tied head": Variant(MODERN | {"tied_head": True}, MUON),
    "modern, no qk_norm": Variant(MODERN | {"qk_norm": False}, MUON),
    "modern, swiglu": Variant(MODERN | {"activation": "swiglu"}, MUON),
    "modern, soft cap 15": Variant(MODERN | {"soft_cap": 15.0}, MUON),
    "modern, embedding skips": Variant(MODERN | {"embedding_skips": True}, MUON),
    "modern, value embeddings": Variant(MODERN | {"value_embeddings": 1}, MUON),
    "modern, skips and value embeddings": Variant(MODERN | {"embedding_skips": True, "value_embeddings": 1}, MUON),
    "modern, cosine": Variant(MODERN, MUON | {"schedule": "cosine"}),
    **MASKED,
    **MASKS,
    **SMALL_MASKED,
    **BERT_SMALL,
    **SMALL,
}
GROUPS = {
    "all": tuple(name for name in VARIANTS if name not in (*SMALL, *SMALL_MASKED, *BERT_SMALL)),
    "sweep": tuple(SWEEP),
    # Features of the preset `modern`, and candidates.
    "preset": ("modern", "modern, projections drawn", "modern, tied head", "modern, soft cap 15"),
    "optimizers": ("gpt2, lr 1e-3", "gpt2, lr 2e-3", "gpt2, lr 4e-3", "gpt2, muon", "modern, adamw", "modern"),
    "masked": tuple(MASKED),
    "masks": tuple(MASKS),
    "small-data": tuple(SMALL),
    "small-data-masked": ("bert-tiny", *SMALL_MASKED),
}

"""Published settings of recipes that follow a paper, with the place of each in the paper. Imports no torch.

`docs/published_recipes.py` writes them as tables to docs/recipes.md.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from lm.presets import PRESETS
from pipelines.recipes.recipe import load_recipe


class Setting(NamedTuple):
    """A published value of a field of `Recipe`."""

    field: str
    """Such as `model.layers`"""
    published: Any
    """None if the source does not give it"""
    place: str
    """Section, table or file of the source"""
    note: str = ""
    """Why the recipe has another value; empty if it has the published one"""


@dataclass(frozen=True)
class Published:
    """The settings of a source, and the recipe or preset that follows it."""

    title: str
    source: str
    settings: tuple[Setting, ...]
    preset: str = ""
    """A preset with the same model and its vocabulary; empty if there is none"""
    without_recipe: bool = False
    """Whether there is only the preset"""


def _settings(place: str, **fields: Any) -> tuple[Setting, ...]:
    """Return published settings from one place. Names are those of fields, with "_" once more for the dot: model__x."""
    return tuple(Setting(name.replace("__", ".", 1), value, place) for name, value in fields.items())


_SHORTER = "a shorter run"
_ADAFACTOR = "the paper uses Adafactor, with 0.01"
_NOT_STATED = "not stated"

PUBLISHED = {
    "gpt2-124m": Published(
        "GPT-2 (124M)",
        "Radford et al. 2019, which does not give the training settings; these are those of GPT-3 Small "
        "(Brown et al. 2020)",
        (
            *_settings("table 2", model__layers=12, model__width=768),
            *_settings("2.3", model__norm_position="pre", model__context_length=1024, train__batch_tokens=524_288),
            *_settings("released code", model__heads=12, model__positions="learned", model__activation="gelu_tanh"),
            *_settings("released code", model__tied_head=True, model__norm_eps=1e-5),
            *_settings("Brown et al., table 2.1", train__lr=6e-4),
            *_settings("Brown et al., appendix B", train__beta1=0.9, train__beta2=0.95, train__eps=1e-8),
            *_settings("Brown et al., appendix B", train__grad_clip=1.0, train__weight_decay=0.1),
            *_settings("Brown et al., appendix B", train__schedule="cosine", train__min_lr_ratio=0.1),
            Setting("train.tokens", 300_000_000_000, "Brown et al., table 2.1", _SHORTER),
            Setting("train.warmup_tokens", 375_000_000, "Brown et al., appendix B", _SHORTER),
        ),
        preset="gpt2",
    ),
    "transformer-base": Published(
        "The original Transformer, base",
        "Vaswani et al. 2017",
        (
            *_settings("table 3", model__layers=6, model__width=512, model__mlp_width=2048, model__heads=8),
            *_settings("table 3", model__dropout=0.1, train__label_smoothing=0.1),
            *_settings("3.1", model__norm_position="post"),
            *_settings("3.3", model__activation="relu"),
            *_settings("3.4", model__tied_head=True),
            *_settings("3.5", model__positions="sinusoidal"),
            Setting("model.hidden_dropout", 0.1, "tensor2tensor, transformer_base_v2"),
            Setting("train.batch_tokens", 50_000, "5.1: about 25,000 tokens on each side"),
            Setting("train.tokens", 5_000_000_000, "5.2: 100,000 steps"),
            *_settings("5.3", train__beta1=0.9, train__beta2=0.98, train__eps=1e-9, train__schedule="inverse_sqrt"),
            Setting("train.lr", 6.987712e-4, "equation 3 at its peak"),
            Setting("train.warmup_tokens", 200_000_000, "5.3: 4,000 steps"),
            *_settings(_NOT_STATED, train__weight_decay=None, train__grad_clip=None, model__context_length=None),
        ),
        preset="transformer-base",
    ),
    "bert-base": Published(
        "BERT base",
        "Devlin et al. 2019",
        (
            *_settings("3", model__layers=12, model__width=768, model__heads=12),
            *_settings("A.2", model__context_length=512, model__activation="gelu", model__dropout=0.1),
            *_settings("A.2", train__lr=1e-4, train__beta1=0.9, train__beta2=0.999, train__weight_decay=0.01),
            Setting("train.schedule", "trapezoid", "A.2: linear decay of the learning rate"),
            *_settings("A.2: linear decay of the learning rate", train__decay_share=1.0, train__min_lr_ratio=0.0),
            Setting(
                "train.batch_tokens",
                131_072,
                "A.2: 256 sequences of 512",
                "256 blocks of 510 tokens, special tokens not counted",
            ),
            Setting("train.tokens", 131_072_000_000, "A.2: 1,000,000 steps", _SHORTER),
            Setting("train.warmup_tokens", 1_310_720_000, "A.2: 10,000 steps", _SHORTER),
            *_settings("released code", model__norm_position="post", model__norm_eps=1e-12, model__positions="learned"),
            *_settings("released code", model__embedding_norm=True, train__eps=1e-6, train__grad_clip=1.0),
            Setting("model.token_types", 2, "released code", "no next-sentence prediction, so one type would do"),
        ),
        preset="bert-base",
    ),
    "t5-small": Published(
        "T5 small (1.0)",
        "Raffel et al. 2020",
        (
            *_settings("3.7", model__layers=6, model__width=512, model__heads=8, model__mlp_width=2048),
            *_settings("2.1", model__norm="rmsnorm", model__bias=False, model__positions="relative"),
            *_settings("2.1", model__relative_buckets=32, model__relative_distance=128, model__norm_position="pre"),
            *_settings("3.1.1", model__activation="relu", model__dropout=0.1),
            *_settings("3.1.2", model__context_length=512, train__batch_tokens=65_536, train__schedule="inverse_sqrt"),
            Setting("train.tokens", 34_359_738_368, "3.1.2: 2^19 steps"),
            Setting("train.warmup_tokens", 655_360_000, "3.1.2: 10,000 steps, at a constant rate in the paper"),
            Setting("train.lr", 0.01, "3.1.2", _ADAFACTOR),
            Setting("model.hidden_dropout", 0.1, "2.1 and 3.1.1"),
            *_settings("released code", model__tied_head=True, model__scaled_head=True, model__scaled_attention=False),
            *_settings("released code", model__norm_eps=1e-6, model__initialization="t5"),
            *_settings(_NOT_STATED, train__weight_decay=None, train__beta2=None),
        ),
        preset="t5-small",
    ),
    "llama": Published(
        "Llama 7B",
        "Touvron et al. 2023",
        (
            *_settings("table 2", model__layers=32, model__width=4096, model__heads=32),
            *_settings("2.2", model__norm="rmsnorm", model__norm_position="pre", model__activation="swiglu"),
            *_settings("2.2", model__positions="rotary"),
            Setting("model.mlp_width", 11_008, "2.2: 2/3 of 4 x width, rounded up to a multiple of 256"),
            *_settings("released code", model__vocab_size=32_000, model__context_length=2048, model__norm_eps=1e-6),
            *_settings("released code", model__bias=False, model__tied_head=False, model__rotary_base=10_000.0),
        ),
        preset="llama",
        without_recipe=True,
    ),
    "textbook": Published(
        "What courses teach",
        "courses that teach pre-norm, rotary positions, AdamW with (0.9, 0.98, 1e-9), warm-up and a cosine, clipping "
        "at 1.0 and label smoothing of 0.1; the other values are our choices",
        (
            *_settings("course", model__norm_position="pre", model__positions="rotary"),
            *_settings("course", train__optimizer="adamw", train__beta1=0.9, train__beta2=0.98, train__eps=1e-9),
            *_settings("course", train__schedule="cosine", train__grad_clip=1.0, train__label_smoothing=0.1),
            *_settings(_NOT_STATED, model__layers=None, model__width=None, model__dropout=None, train__lr=None),
            *_settings(_NOT_STATED, train__warmup_tokens=None, train__tokens=None, train__batch_tokens=None),
        ),
    ),
}


def value_of(name: str, field: str) -> Any:
    """Return the value of a field, such as `model.layers`, in the recipe or preset that follows a source.

    A derived width of the MLP is given as a number.
    """
    model = PRESETS[PUBLISHED[name].preset] if PUBLISHED[name].without_recipe else load_recipe(name).model
    if field == "model.mlp_width":
        return model.hidden_width
    if field.startswith("model."):
        return asdict(model)[field.removeprefix("model.")]
    return asdict(load_recipe(name).train)[field.removeprefix("train.")]

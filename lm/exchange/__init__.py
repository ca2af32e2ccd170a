"""Exchange of models with `transformers`, in the formats of GPT-2, GPT-NeoX, Llama, the BERT family and T5.

`to_hugging_face` turns (`ModelConfig`, our tensors) into (config.json, its tensors); `from_hugging_face` goes back.
Neither reads or writes files or tokenizers. `lm.exchange.gguf` does the same for GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.bert import BERT, DISTILBERT, ROBERTA
from lm.exchange.conversion import Imported, chosen_format, converted, packed
from lm.exchange.format import Format, Pretrained
from lm.exchange.gpt2 import GPT2
from lm.exchange.gpt_neox import GPT_NEOX
from lm.exchange.llama import LLAMA
from lm.exchange.modernbert import MODERNBERT
from lm.exchange.t5 import T5

FORMATS = (GPT2, GPT_NEOX, LLAMA, BERT, ROBERTA, DISTILBERT, MODERNBERT, T5)


def format_of(config: ModelConfig, model_type: str | None = None) -> Format:
    """Return the format that expresses `config`. If several do, `model_type` chooses one, by default the first.

    Raises ValueError as `chosen_format` does.
    """
    return chosen_format(FORMATS, config, "format of transformers that bytelm writes", model_type)


def to_hugging_face(
    config: ModelConfig, weights: Mapping[str, Tensor], model_type: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of a model, given its `state_dict`, in the format that `format_of` chooses.

    Raises ValueError as `format_of` does.
    """
    chosen = format_of(config, model_type)
    settings = {"architectures": [chosen.auto_class], "model_type": chosen.model_type}
    return settings | chosen.write(config), packed(chosen, config, weights)


def named_format(settings: Mapping[str, Any]) -> Format:
    """Return the format of a config.json, `settings`. Raises ValueError for an unknown one and for quantized models."""
    chosen = next((known for known in FORMATS if known.model_type == settings.get("model_type")), None)
    if chosen is None:
        known = ", ".join(repr(known.model_type) for known in FORMATS)
        raise ValueError(f"config.json has model_type = {settings.get('model_type')!r}: bytelm reads {known}")
    if settings.get("quantization_config"):
        raise ValueError("config.json has a quantization_config: take the model as it was before it was quantized")
    return chosen


def from_hugging_face(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Imported:
    """Return the model of a config.json, `settings`, and its tensors.

    An encoder without a masked-token head gets one with random weights. Raises ValueError, by name, for an unknown
    format, for a setting that we cannot express, and for tensors that are missing, unknown, of another shape, not
    floating-point or not finite.
    """
    chosen = named_format(settings)
    named, left_out = chosen.canonical(tensors)
    return converted(chosen, Pretrained({**chosen.defaults, **settings}, named), left_out)

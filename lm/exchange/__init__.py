"""Exchange of models with `transformers`, in the formats of GPT-2, GPT-NeoX, Llama, the BERT family and T5.

`to_hugging_face` turns (`ModelConfig`, our tensors) into (config.json, its tensors); `from_hugging_face` goes back.
Neither touches files or tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.bert import BERT, DISTILBERT, ROBERTA
from lm.exchange.format import Format, Pretrained
from lm.exchange.gpt2 import GPT2
from lm.exchange.gpt_neox import GPT_NEOX
from lm.exchange.llama import LLAMA
from lm.exchange.modernbert import MODERNBERT
from lm.exchange.t5 import T5
from lm.heads import MaskedTokenHead
from lm.initialization import Initializer
from lm.layers import Embedding
from lm.model import LanguageModel

FORMATS = (GPT2, GPT_NEOX, LLAMA, BERT, ROBERTA, DISTILBERT, MODERNBERT, T5)


@dataclass(frozen=True)
class Imported:
    """A model of `transformers`, converted to ours."""

    config: ModelConfig
    weights: dict[str, Tensor]
    """Float32 `state_dict`"""
    left_out: list[str]
    """Parts that our model does not have, for example the pooler"""
    new_head: bool
    """Whether the masked-token head is new, with random weights"""


def format_of(config: ModelConfig, model_type: str | None = None) -> Format:
    """Return the format that expresses `config`. If several do, `model_type` chooses one, by default the first.

    Raises ValueError if there is none. The message lists the changes that each format of the architecture would need,
    except formats that need all changes of another and more.
    """
    answers: dict[str, list[str]] = {}
    for candidate in sorted(FORMATS, key=lambda listed: listed.model_type != model_type):
        objections = candidate.objections(config)
        if not objections:
            return candidate
        less = any(set(other) <= set(objections) for other in answers.values())
        if config.architecture == candidate.fixed["architecture"] and not less:
            answers[candidate.name] = objections
    needs = "; ".join(f"{name} would need {', '.join(objections)}" for name, objections in answers.items())
    raise ValueError(f"no format of transformers that bytelm writes can express this model: {needs}")


def to_hugging_face(
    config: ModelConfig, weights: Mapping[str, Tensor], model_type: str | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of a model, given its `state_dict`, in the format that `format_of` chooses.

    Raises ValueError as `format_of` does.
    """
    chosen = format_of(config, model_type)
    tensors = {entry.theirs: entry.pack(weights) for entry in chosen.entries(config)}
    tensors |= {name: torch.zeros(shape) for name, shape in chosen.zeros(config).items()}
    tensors |= {name: tensors[chosen.copies(config)[name]].clone() for name in chosen.written_copies(config)}
    settings = {"architectures": [chosen.auto_class], "model_type": chosen.model_type}
    return settings | chosen.write(config), tensors


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
    given = Pretrained({**chosen.defaults, **settings}, named)
    fields = chosen.read(given)
    try:
        config = ModelConfig(**fields)
    except ValueError as error:
        raise ValueError(f"config.json makes a model that cannot be built: {error}") from None
    new_head = config.architecture == "encoder" and not any(name.startswith(chosen.head) for name in named)
    if new_head:
        named |= _new_head(chosen, config)
    return Imported(config, _weights(chosen, config, named), left_out, new_head)


def _new_head(chosen: Format, config: ModelConfig) -> dict[str, Tensor]:
    """Return the format's tensors of a masked-token head with random weights."""
    head = MaskedTokenHead(config, Embedding(0, 0))
    head.initialize(Initializer(config, torch.Generator().manual_seed(0)))
    weights = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    entries = (entry for entry in chosen.entries(config) if entry.ours[0] in weights)
    return {entry.theirs: entry.pack(weights) for entry in entries}


def _weights(chosen: Format, config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our tensors from the format's. Raises ValueError for a tensor that our model has no place for."""
    with torch.device("meta"):
        expected = LanguageModel(config, seed=None).state_dict()
    weights: dict[str, Tensor] = {}
    entries = list(chosen.entries(config))
    for entry in entries:
        if entry.theirs not in tensors:
            raise ValueError(
                f"the weights have no {entry.theirs}, which a {chosen.name} model has: take complete files"
            )
        weights |= entry.checked(tensors[entry.theirs], expected)
    zeros = chosen.zeros(config)
    copies = chosen.copies(config)
    for name in sorted(tensors.keys() - {entry.theirs for entry in entries}):
        if name in zeros and not tensors[name].any():
            continue
        if name in copies and torch.equal(tensors[name], tensors[copies[name]]):
            continue
        raise ValueError(f"the weights have {name}, for which a {chosen.name} model with this config.json has no place")
    assert weights.keys() == expected.keys()
    return weights

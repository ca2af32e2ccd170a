"""Exchange of models with `transformers`, in the formats of GPT-2, GPT-NeoX, Llama, BERT and T5.

`to_hugging_face` turns (`ModelConfig`, our tensors) into (config.json, its tensors); `from_hugging_face` goes back.
Neither touches files or tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.bert import BERT
from lm.exchange.format import Entry, Format, Pretrained
from lm.exchange.gpt2 import GPT2
from lm.exchange.gpt_neox import GPT_NEOX
from lm.exchange.llama import LLAMA
from lm.exchange.t5 import T5
from lm.model import LanguageModel

FORMATS = (GPT2, GPT_NEOX, LLAMA, BERT, T5)


def format_of(config: ModelConfig) -> Format:
    """Return the format that expresses `config`.

    Raises ValueError if there is none, naming what each format of that architecture would need instead.
    """
    answers = []
    for candidate in FORMATS:
        objections = candidate.objections(config)
        if not objections:
            return candidate
        if config.architecture == candidate.fixed["architecture"]:
            answers.append(f"{candidate.name} would need {', '.join(objections)}")
    raise ValueError(f"no format of transformers that bytelm writes can express this model: {'; '.join(answers)}")


def to_hugging_face(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return config.json and the tensors of a model, given its `state_dict`, in the format that expresses `config`.

    Raises ValueError as `format_of` does.
    """
    chosen = format_of(config)
    tensors = {entry.theirs: entry.pack(weights) for entry in chosen.entries(config)}
    tensors |= {name: torch.zeros(shape) for name, shape in chosen.zeros(config).items()}
    tensors |= {name: tensors[chosen.copies(config)[name]].clone() for name in chosen.written_copies(config)}
    settings = {"architectures": [chosen.auto_class], "model_type": chosen.model_type}
    return settings | chosen.write(config), tensors


def from_hugging_face(
    settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the configuration and the float32 `state_dict` of a model, given its config.json and tensors.

    Raises ValueError, by name, for another format or a setting that we cannot express. The same goes for tensors that
    are missing, unknown, of another shape, not floating-point or not finite.
    """
    chosen = next((each for each in FORMATS if each.model_type == settings.get("model_type")), None)
    if chosen is None:
        known = ", ".join(repr(each.model_type) for each in FORMATS)
        raise ValueError(f"config.json has model_type = {settings.get('model_type')!r}: bytelm reads {known}")
    if settings.get("quantization_config"):
        raise ValueError("config.json has a quantization_config: take the model as it was before it was quantized")
    given = Pretrained({**chosen.defaults, **settings}, chosen.canonical(tensors))
    fields = chosen.read(given)
    try:
        config = ModelConfig(**fields)
    except ValueError as error:
        raise ValueError(f"config.json makes a model that cannot be built: {error}") from None
    return config, _weights(chosen, config, given.tensors)


def _weights(chosen: Format, config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our tensors from the format's, each of which must have a place."""
    with torch.device("meta"):
        expected = LanguageModel(config).state_dict()
    weights: dict[str, Tensor] = {}
    entries = list(chosen.entries(config))
    for entry in entries:
        if entry.theirs not in tensors:
            raise ValueError(
                f"the weights have no {entry.theirs}, which a {chosen.name} model has: take complete files"
            )
        weights |= _unpacked(entry, tensors[entry.theirs], expected)
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


def _unpacked(entry: Entry, tensor: Tensor, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    shape = tuple(entry.pack(expected).shape)
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{entry.theirs} has the shape {tuple(tensor.shape)}, but config.json makes it {shape}: they are of two "
            "models"
        )
    if not tensor.is_floating_point():
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{entry.theirs} is {dtype}, not floating-point: use the model from before quantization")
    if not bool(tensor.float().isfinite().all()):
        raise ValueError(
            f"{entry.theirs} holds values that are NaN or infinite in float32: use another copy of the weights"
        )
    return {name: part.float() for name, part in entry.unpack(tensor).items()}

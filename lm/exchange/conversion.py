"""Conversion of models to a format and back, by the tables of the format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.format import Format, Pretrained
from lm.heads import MaskedTokenHead
from lm.initialization import Initializer
from lm.layer_groups import first_of_group
from lm.layers import Embedding
from lm.model import LanguageModel

_IN_BLOCK = re.compile(r"(?P<before>(.*\.)?(?P<stack>encoder|decoder)\.blocks\.)(?P<layer>\d+)(?P<after>\..*)")


@dataclass(frozen=True)
class Imported:
    """A model of another library, converted to ours."""

    config: ModelConfig
    weights: dict[str, Tensor]
    """Float32 `state_dict`"""
    left_out: list[str]
    """Names of parts that our model lacks, such as the pooler"""
    new_head: bool
    """Whether the masked-token head is new, with random weights"""


class NotExpressedError(ValueError):
    """No format expresses a model. `nearest` says what the format with the fewest changes would need."""

    def __init__(self, kind: str, needs: list[str]) -> None:
        super().__init__(f"no {kind} can express this model: {'; '.join(needs)}")
        self.nearest = needs[0]


def chosen_format(formats: Sequence[Format], config: ModelConfig, kind: str, model_type: str | None = None) -> Format:
    """Return the format that expresses `config`. If several do, `model_type` chooses one, by default the first.

    Raises NotExpressedError if there is none. The message names the `kind` of formats and lists the changes that each
    format of the architecture would need, fewest first. A format whose changes include all of another's is left out.
    """
    answers: dict[str, list[str]] = {}
    for candidate in sorted(formats, key=lambda listed: listed.model_type != model_type):
        objections = candidate.objections(config)
        if not objections:
            return candidate
        less = any(set(other) <= set(objections) for other in answers.values())
        if config.architecture == candidate.fixed["architecture"] and not less:
            answers[candidate.name] = objections
    fewest_first = sorted(answers.items(), key=lambda answer: len(answer[1]))
    needs = [f"{name} would need {', '.join(objections)}" for name, objections in fewest_first]
    raise NotExpressedError(kind, needs or [f"none has model.architecture = {config.architecture!r}"])


def packed(chosen: Format, config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the format's tensors, given our `state_dict`. Layers that share weights each get a copy."""
    weights = with_copies(config, weights)
    tensors = {entry.theirs: entry.pack(weights) for entry in chosen.entries(config)}
    tensors |= {name: torch.zeros(shape) for name, shape in chosen.zeros(config).items()}
    return tensors | {name: tensors[chosen.copies(config)[name]].clone() for name in chosen.written_copies(config)}


def with_copies(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a `state_dict` with the weights of every layer, including layers that share those of an earlier one."""
    copied = dict(weights)
    for name, tensor in weights.items():
        if found := _IN_BLOCK.fullmatch(name):
            layers = (found["stack"] == "decoder" and config.decoder_layers) or config.layers
            for layer in range(layers):
                if first_of_group(config, layer, layers) == int(found["layer"]):
                    copied[f"{found['before']}{layer}{found['after']}"] = tensor
    return copied


def converted(chosen: Format, given: Pretrained, left_out: list[str]) -> Imported:
    """Return the model of a format's settings and tensors; see `from_hugging_face`."""
    fields = chosen.read(given)
    try:
        config = ModelConfig(**fields)
    except ValueError as error:
        raise ValueError(f"{given.source} makes a model that cannot be built: {error}") from None
    named = dict(given.tensors)
    new_head = config.architecture == "encoder" and not any(name.startswith(chosen.head) for name in named)
    if new_head:
        named |= _new_head(chosen, config)
    return Imported(config, _weights(chosen, config, named, given.source), left_out, new_head)


def _new_head(chosen: Format, config: ModelConfig) -> dict[str, Tensor]:
    """Return the format's tensors of a masked-token head with random weights."""
    head = MaskedTokenHead(config, Embedding(0, 0))
    head.initialize(Initializer(config, torch.Generator().manual_seed(0)))
    weights = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    entries = (entry for entry in chosen.entries(config) if entry.ours[0] in weights)
    return {entry.theirs: entry.pack(weights) for entry in entries}


def _weights(chosen: Format, config: ModelConfig, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Return our tensors from the format's. Raises ValueError for a tensor that our model lacks."""
    entries = []
    for entry in chosen.entries(config):  # first: a model with the layers of a damaged file could be huge
        if entry.theirs not in tensors:
            raise ValueError(
                f"the weights have no {entry.theirs}, which a {chosen.name} model has: take complete files"
            )
        entries.append(entry)
    with torch.device("meta"):
        expected = LanguageModel(config, seed=None).state_dict()
    weights: dict[str, Tensor] = {}
    for entry in entries:
        weights |= entry.checked(tensors[entry.theirs], expected, source)
    zeros = chosen.zeros(config)
    copies = chosen.copies(config)
    for name in sorted(tensors.keys() - {entry.theirs for entry in entries}):
        if name in zeros and not tensors[name].any():
            continue
        if name in copies and torch.equal(tensors[name], tensors[copies[name]]):
            continue
        raise ValueError(f"the weights have {name}, for which a {chosen.name} model with this {source} has no place")
    assert weights.keys() == expected.keys()
    return weights

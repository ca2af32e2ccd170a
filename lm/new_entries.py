"""New entries of a vocabulary, such as the special tokens of conversations."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lm.model import LanguageModel


def with_new_entries(weights: Mapping[str, Tensor], model: LanguageModel, known: int) -> dict[str, Tensor]:
    """Return `weights` (tensors by name) for `model`, with rows for the entries from `known` on.

    These rows are added to the embedding, value embeddings, and an untied output matrix or bias. Each new row is the
    mean of the known rows, because a random row would be far from all others (Hewitt 2021).
    """
    tables = {name for name, parameter in model.named_parameters() if any(parameter is one for one in _tables(model))}
    changed = dict(weights)
    for name in tables & changed.keys():
        used = changed[name][:known]
        new = used.mean(dim=0, keepdim=True).expand(model.config.vocab_size - known, *used.shape[1:])
        changed[name] = torch.cat((used, new))
    return changed


def _tables(model: LanguageModel) -> list[Tensor]:
    """Return the parameters with one row for each entry of the vocabulary."""
    stacks = [stack for stack in (model.encoder, model.decoder) if stack is not None]
    values = [table.weight for stack in stacks for table in stack.value_embeddings]
    head = (getattr(model.head, "weight", None), getattr(model.head, "bias", None))  # the body of a task has no head
    return [model.embedding.weight, *values, *(one for one in head if one is not None)]

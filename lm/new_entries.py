"""New entries of a vocabulary, such as the special tokens of conversations, and rows of a changed vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lm.model import LanguageModel

NEW = -1
"""In place of the row of an entry that the model does not know"""


def with_new_entries(weights: Mapping[str, Tensor], model: LanguageModel, known: int) -> dict[str, Tensor]:
    """Return `weights` (tensors by name) for `model`, with rows for the entries from `known` on.

    These rows are added to the embedding, value embeddings, and an untied output matrix or bias. Each new row is the
    mean of the known rows, because a random row would be far from all others (Hewitt 2021).
    """
    new = model.config.vocab_size - known
    rows = torch.tensor([*range(known), *[NEW] * new])
    return with_entries(weights, model, rows, [()] * new, 0.0)


def with_entries(
    weights: Mapping[str, Tensor], model: LanguageModel, rows: Tensor, pieces: Sequence[Sequence[int]], share: float
) -> dict[str, Tensor]:
    """Return `weights` (tensors by name) of a model for another vocabulary, which `model` has.

    rows: int64 (V,), the present row of each entry, or NEW. pieces: for each NEW entry in order, the present rows of
    its parts, perhaps none. A new row is `share` times the mean of its parts' rows (Gee et al. 2022), plus the rest
    times the mean of all rows of `rows`; without parts, it is the mean of all.
    """
    tables = {name for name, parameter in model.named_parameters() if any(parameter is one for one in _tables(model))}
    changed, new = dict(weights), rows == NEW
    for name in tables & changed.keys():
        present = changed[name]
        table = present.new_empty(len(rows), *present.shape[1:])
        table[~new] = present[rows[~new]]
        if new.any():
            mean = present[rows[~new].unique()].mean(dim=0)
            means = [present[list(parts)].mean(dim=0) if parts else mean for parts in pieces]
            table[new] = share * torch.stack(means) + (1.0 - share) * mean
        changed[name] = table
    return changed


def _tables(model: LanguageModel) -> list[Tensor]:
    """Return the parameters with one row for each entry of the vocabulary."""
    stacks = [stack for stack in (model.encoder, model.decoder) if stack is not None]
    values = [table.weight for stack in stacks for table in stack.value_embeddings]
    head = (getattr(model.head, "weight", None), getattr(model.head, "bias", None))  # the body of a task has no head
    return [model.embedding.weight, *values, *(one for one in head if one is not None)]

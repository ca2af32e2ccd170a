"""Tokens as words: the labels of ids, and the ids of a text or of a token that a caller names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipelines.reporting.token_labels import TokenLabels

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun


class Words:
    """Labels of a run's tokens. A model may have more entries than its tokenizer; these have no label."""

    def __init__(self, run: LoadedRun) -> None:
        labels = TokenLabels(run.tokenizer)
        self._labels = dict(zip(labels.ids, labels.at(range(len(labels.ids))), strict=True))
        self.ordinary = torch.tensor([i for i, special in zip(labels.ids, labels.special, strict=True) if not special])
        """(N,): ids of all tokens except special tokens"""

    def of(self, ids: Iterable[int] | Tensor) -> tuple[str, ...]:
        """Return the labels of ids (N,), on one line, with visible white space."""
        listed: list[int] = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        return tuple(self._labels.get(one, f"entry {one}") for one in listed)


def read_ids(run: LoadedRun, text: str) -> Tensor:
    """Return the ids (T,) that a decoder or encoder reads for a text; ValueError if there are none."""
    if not (ids := run.ids(text)):
        raise ValueError("the text has no tokens, and the model has no start token: give a text")
    return torch.tensor(ids, device=run.model.embedding.weight.device)


def single_token(run: LoadedRun, text: str, name: str) -> int:
    """Return the id of a text that is one token. Raises ValueError that lists the tokens of any other text.

    `name` is the name of the argument that holds the text.
    """
    ids = run.tokenizer.encode(text, allowed_special="all")
    if len(ids) != 1:
        labels = " ".join(Words(run).of(ids))
        begins = f"give the first one, {run.tokenizer.decode(ids[:1])!r}" if ids else "give a token"
        raise ValueError(f"`{name}` is {text!r}, which is {len(ids)} tokens ({labels}): {begins}")
    return ids[0]

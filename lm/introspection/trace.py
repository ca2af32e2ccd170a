"""The activations of one forward pass, computed when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from lm.introspection.activations import Edit, activation_names, matching_names, observed, reason_for_missing
from lm.model import LanguageModel


class Trace(Mapping[str, Tensor]):
    """The activations of one forward pass, computed when they are first asked for.

    `trace["blocks.3.attn.hook_pattern"]` runs the model once and records that activation alone. `record` records many
    in one pass. Tensors are on the model's device, in its compute dtype.
    """

    def __init__(
        self,
        model: LanguageModel,
        ids: Tensor,
        source: Tensor | None = None,
        edits: Mapping[str, Edit] | None = None,
    ) -> None:
        """ids (B, T) int64, and `source` (B, S) of an encoder-decoder."""
        self.model, self.ids, self.source, self.edits = model, ids, source, edits
        self.names = activation_names(model)
        self._found: dict[str, Tensor] = {}

    def record(self, *patterns: str) -> Trace:
        """Record all activations that match one of the patterns, such as "blocks.*.hook_resid_post"; return self."""
        missing = [name for name in matching_names(self.model, patterns) if name not in self._found]
        if missing:
            with torch.no_grad(), observed(self.model, missing, self.edits) as found:
                self.model(self.ids, self.source)
            self._found |= found
        return self

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._found:
            if name not in self.names:
                raise KeyError(reason_for_missing(self.model, name, self.names))
            self.record(name)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Trace({tuple(self.ids.shape)} ids, {len(self.names)} activations, {len(self._found)} recorded)"

"""The inside of a loaded run: its activations, recorded and edited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lm.introspection.activations import Edit, matching_names, observed
from lm.introspection.trace import Trace
from lm.model import LanguageModel

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun
    from pipelines.scoring.texts import TextScore


class Laboratory:
    """Methods of a `LoadedRun` that look inside its model."""

    @property
    def _body(self) -> LanguageModel:
        """The model whose hidden states a head reads."""
        raise NotImplementedError

    def trace(self: LoadedRun, text: str, target: str | None = None, *, names: str | tuple[str, ...] = ()) -> Trace:  # type: ignore[misc]  # a mixin
        """Return the activations of a text by the names of TransformerLens: `trace["blocks.3.attn.hook_pattern"]`.

        T is the number of tokens that the model reads, `len(run.ids(text))`, and the first axis of each activation has
        one sequence. An activation is computed when it is first asked for, in a forward pass of its own. `names` are
        recorded together at once: "blocks.*.hook_resid_post" names one activation in every layer, and
        `trace.record(...)` adds more. `lm.introspection.activations` lists names and shapes, and `list(trace)` those of
        this model.

        Raises KeyError or ValueError for an activation that the model lacks, and ValueError as `logits` does.
        """
        trace = Trace(self._body, *self._read(text, target))
        return trace.record(*((names,) if isinstance(names, str) else names))

    @contextmanager
    def edit(self: LoadedRun, edits: Mapping[str, Edit]) -> Iterator[EditedRun]:  # type: ignore[misc]
        """Yield the run with other activations: `with run.edit({"blocks.0.hook_mlp_out": torch.zeros(())}) as edited`.

        An edit is the new value of an activation or a function of the old value, (B, ...); it is broadcast to the old
        shape. A name with * stands for several activations. `edited.logits(text)`, `edited.score(text)`,
        `edited.loss(text)` and `edited.trace(text)` use the edited activations. The run itself stays unchanged. Raises
        ValueError for an activation that the model lacks.
        """
        named = {name: edit for pattern, edit in edits.items() for name in matching_names(self._body, [pattern])}
        yield EditedRun(self, named)


class EditedRun:
    """A loaded run whose forward passes have edited activations; `LoadedRun.edit` makes it."""

    def __init__(self, run: LoadedRun, edits: Mapping[str, Edit]) -> None:
        self.run, self.edits = run, edits

    def logits(self, text: str, target: str | None = None) -> Tensor:
        """As `LoadedRun.logits`."""
        with observed(self.run.model, edits=self.edits):
            return self.run.logits(text, target)

    def score(self, text: str, **options: Any) -> TextScore:
        """As `LoadedRun.score`."""
        with torch.no_grad(), observed(self.run.model, edits=self.edits):
            return self.run.score(text, **options)

    def loss(self, text: str, **options: Any) -> float:
        """Return the mean surprisal of the tokens that `score` scores, in nats. `options` are those of `score`."""
        scored = self.score(text, **options)
        return -scored.log_probability / scored.tokens

    def trace(self, text: str, target: str | None = None, *, names: str | tuple[str, ...] = ()) -> Trace:
        """As `LoadedRun.trace`."""
        trace = self.run.trace(text, target)
        trace.edits = self.edits
        return trace.record(*((names,) if isinstance(names, str) else names))

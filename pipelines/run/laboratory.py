"""The inside of a loaded run: its activations, recorded and edited, and what instruments find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from lm.introspection.activations import Edit, matching_names, observed
from lm.introspection.trace import Trace

if TYPE_CHECKING:
    from pipelines.inspection.comparison import ComparedReadings
    from pipelines.inspection.instruments.attribution import AttributedLogit
    from pipelines.inspection.instruments.heads import HeadsOfRun
    from pipelines.inspection.instruments.lens import LensOfText
    from pipelines.run.loaded_run import LoadedRun
    from pipelines.scoring.texts import TextScore


class Laboratory:
    """The methods of a `LoadedRun` that look inside its model."""

    def trace(self, text: str, target: str | None = None, *, names: str | tuple[str, ...] = ()) -> Trace:
        """Return the activations of a text by the names of TransformerLens: `trace["blocks.3.attn.hook_pattern"]`.

        T is the number of tokens that the model reads, `len(run.ids(text))`, and the first axis of each activation has
        one sequence. An activation is computed when it is first asked for, in a forward pass of its own. `names` are
        recorded together at once: "blocks.*.hook_resid_post" names one activation in every layer, and
        `trace.record(...)` adds more. `lm.introspection.activations` lists names and shapes, and `list(trace)` those of
        this model.

        Raises KeyError or ValueError for an activation that the model lacks, and ValueError as `logits` does.
        """
        return self._trace(text, target, names, {})

    @contextmanager
    def edit(self, edits: Mapping[str, Edit]) -> Iterator[EditedRun]:
        """Yield the run with other activations: `with run.edit({"blocks.0.hook_mlp_out": torch.zeros(())}) as edited`.

        An edit is the new value of an activation or a function of the old value, (B, ...); it is broadcast to the old
        shape. A name with * stands for several activations. `edited.logits(text)`, `edited.score(text)`,
        `edited.loss(text)` and `edited.trace(text)` use the edited activations. The run itself stays unchanged. Raises
        ValueError for an activation that the model lacks.
        """
        model = self._run._body
        named = {name: edit for part, edit in edits.items() for name in matching_names(model, [part])}
        yield EditedRun(self._run, named)

    def lens(self, text: str, **options: Any) -> LensOfText:
        """Return what each layer would predict if it were the last; `options` are those of `bytelm.inspect`."""
        from pipelines.inspection.instruments.lens import Lens

        lens = Lens(**options)
        lens.check(self._run.config.model)
        return lens.look(self._run, text)

    def attribute(
        self, text: str, target: str | None = None, against: str | None = None, position: int = -1
    ) -> AttributedLogit:
        """Return what each part of a decoder adds to the logit of the token `target` after a text.

        By default the target is the likeliest token. With `against`, the terms are those of the difference of the two
        logits. They add up to `logit`. `position` is the place of the token after which the logit predicts. Raises
        ValueError for another architecture, and for a target that is not one token.
        """
        from pipelines.inspection.instruments.attribution import Attribution

        attribution = Attribution(target=target, against=against, position=position)
        attribution.check(self._run.config.model)
        return attribution.look(self._run, text)

    def compare(self, first: str, second: str, word: str) -> ComparedReadings:
        """Return by layer how far apart the states of a word in two texts are, and what each part adds to this.

        `word` is in both texts. The state is that of the last token of the last occurrence.
        Raises ValueError if a text lacks the word, and for an encoder-decoder.
        """
        from pipelines.inspection.comparison import compared

        return compared(self._run, first, second, word)

    def head_scores(self, **options: Any) -> HeadsOfRun:
        """Return how much each head attends to previous tokens, to equal ones, or induces, on random tokens."""
        from pipelines.inspection.instruments.heads import Heads

        heads = Heads(**options)
        heads.check(self._run.config.model)
        return heads.look(self._run, "")

    @property
    def _run(self) -> LoadedRun:
        return cast("LoadedRun", self)

    def _trace(self, text: str, target: str | None, names: str | tuple[str, ...], edits: Mapping[str, Edit]) -> Trace:
        trace = Trace(self._run._body, *self._run._read(text, target), edits=edits)
        return trace.record(*((names,) if isinstance(names, str) else names))


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
        return self.run._trace(text, target, names, self.edits)

"""What embedding, heads, MLPs and biases add to a logit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lm.config import ModelConfig
from lm.introspection.attribution import attribute
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument, require_decoder
from pipelines.inspection.words import Words, read_ids, single_token
from pipelines.reporting.pictures import Bars, Picture

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun


SHOWN, DRAWN = 12, 24  # terms in the table and in the picture


@dataclass(frozen=True)
class AttributedLogit(Result):
    """A logit, or a difference of two logits, as a sum of terms."""

    key = "attribution"
    section = Section(
        "Attribution of a logit",
        "Each term is what a part adds to the logit of the target, or to its difference from another logit. The terms "
        "add up to the logit. The scale of the final norm, and of norms on branches and on the stream, is frozen at "
        "its value for this text. A term is only the direct path: effects through later parts are in the terms of "
        "these parts. The logit of one token includes what is common to all tokens, which changes no probability; a "
        "difference of two logits does not. With a soft cap, the term `soft cap` is the change by the cap.",
    )

    text: str
    after: str
    """The logit is of the token that follows this one"""
    target: str
    against: str | None
    logit: float
    terms: dict[str, float]
    """By part: "embedding", "positions", "head 3.1" (layer and head), "mlp 3", "mixer 3", "biases", "soft cap" """
    frozen: tuple[str, ...]
    """Names of the frozen activations, which are scales of norms"""

    @property
    def _title(self) -> str:
        less = "" if self.against is None else f" minus that of {self.against}"
        return f"logit of {self.target}{less}, after {self.after}"

    def _largest(self, count: int) -> dict[str, float]:
        """Return the `count` largest terms, and the sum of the others."""
        ranked = sorted(self.terms.items(), key=lambda term: -abs(term[1]))
        others = ranked[count:]
        return dict(ranked[:count]) | ({f"{len(others)} others": sum(v for _, v in others)} if others else {})

    def pictures(self) -> Sequence[Picture]:
        text = f"The terms add up to the logit, {self.logit:+.3f}. Blue terms raise it; orange terms lower it."
        return [Bars(title=f"Terms of the {self._title}", text=text, values=self._largest(DRAWN), x="logit")]

    def parts(self) -> list[Table | str]:
        title = self._title
        rows = [(name, [f"{value:+.3f}"]) for name, value in self._largest(SHOWN).items()]
        sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for name, value in self.terms.items():
            kind, _, place = name.partition(" ")
            if place and kind in ("head", "mlp", "mixer"):
                sums[place.partition(".")[0]]["MLP" if kind == "mlp" else "attention"] += value
        layers = [(layer, [f"{of[kind]:+.3f}" for kind in ("attention", "MLP")]) for layer, of in sums.items()]
        return [
            Table(f"{title}, by part", "part", ["adds"], [*rows, ("logit", [f"{self.logit:+.3f}"])]),
            Table(f"{title}, by layer", "layer", ["attention", "MLP"], layers),
        ]


@dataclass(frozen=True, kw_only=True)
class Attribution(Instrument):
    """Direct logit attribution."""

    result = AttributedLogit

    target: str | None = None
    """Token whose logit is attributed, such as " London"; by default the likeliest one"""
    against: str | None = None
    """Token whose logit is subtracted from that of `target`; in patching, by default the likeliest after `corrupt`"""
    position: int = -1
    """Position of the token before the predicted one; 0 is the first that the model reads, -1 the last"""

    def check(self, config: ModelConfig) -> None:
        require_decoder(config, "attribution")

    def look(self, run: LoadedRun, text: str) -> AttributedLogit:
        model, words = run.model, Words(run)
        ids = read_ids(run, text)
        if not -len(ids) <= self.position < len(ids):
            raise ValueError(
                f"`position` is {self.position}, but the text has {len(ids)} tokens: give 0 to {len(ids) - 1}"
            )
        against = None if self.against is None else single_token(run, self.against, "against")
        if self.target is None:
            target = int(run.logits(text)[self.position].argmax())
        else:
            target = single_token(run, self.target, "target")
        found = attribute(model, ids, target, against, self.position)
        other = None if against is None else words.of([against])[0]
        after, wanted = words.of([int(ids[self.position]), target])
        return AttributedLogit(text, after, wanted, other, found.logit, found.terms, found.frozen)


INSTRUMENT = Attribution

"""Scores of heads over the checkpoints of the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lm.config import ModelConfig
from lm.introspection.repetition import Repetition
from lm.metrics.units import bits
from pipelines.cli.display import Bar, quantity
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument
from pipelines.inspection.instruments.heads import HeadRow, Heads
from pipelines.reporting.pictures import Curves, Picture
from pipelines.run.retention import checkpoint_folders, readable_state

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

APPEARS = 0.2  # lowest score of an induction head
DRAWN = 4  # heads in a panel of the picture
ROWS = 16  # of the table
SHOWN = ("induction", "previous")


@dataclass(frozen=True)
class HeadsOfCheckpoint:
    """The heads of a checkpoint."""

    name: str
    tokens: int
    """Tokens that the run had read in training"""
    loss_bits: float | None
    """Validation loss, or else training loss, bits per token, interpolated between logged steps; None without logged
    losses"""
    heads: tuple[HeadRow, ...]
    repetition: Repetition | None
    """None for an encoder"""

    def best(self, score: str) -> HeadRow:
        """Return the head with the highest score."""
        return max(self.heads, key=lambda row: float(getattr(row, score)))


@dataclass(frozen=True)
class DevelopmentOfHeads(Result):
    """The scores of heads over the checkpoints of a run."""

    key = "development"
    section = Section(
        "Development of heads",
        "The scores of the instrument heads in each checkpoint, and the loss, interpolated between logged "
        f"steps. Induction appears in the first checkpoint in which a head's score reaches {APPEARS}. A run keeps few "
        "checkpoints unless `train.keep_every_tokens` is set, and the curves cannot tell what happens between them. "
        "A score and the loss that change together need not cause each other.",
    )

    checkpoints: tuple[HeadsOfCheckpoint, ...]

    def appearance(self) -> HeadsOfCheckpoint | None:
        """Return the first checkpoint with an induction head."""
        return next((one for one in self.checkpoints if one.best("induction").induction >= APPEARS), None)

    def parts(self) -> list[Table | str]:
        every = [round(i) for i in np.linspace(0, len(self.checkpoints) - 1, min(ROWS, len(self.checkpoints)))]
        rows = []
        for one in (self.checkpoints[i] for i in every):
            cells = ["" if one.loss_bits is None else f"{one.loss_bits:.3f}"]
            for score in SHOWN:
                best = one.best(score)
                cells.append(f"{getattr(best, score):.3f} ({best.layer}.{best.head})")
            cells.append("" if one.repetition is None else f"{one.repetition.second_mass:.2%}")
            rows.append((quantity(one.tokens, ""), cells))
        heads = ["loss, bits", "best induction", "best previous", "p of repeated"]
        first, last = self.appearance(), self.checkpoints[-1]
        if first is None:
            said = f"no head's induction score reaches {APPEARS} by {quantity(last.tokens, 'tok')}"
        else:
            best = first.best("induction")
            said = f"induction appears by {quantity(first.tokens, 'tok')}, in head {best.layer}.{best.head}"
        return [Table("scores by tokens trained on", "tokens", heads, rows), said]

    def pictures(self) -> Sequence[Picture]:
        every = self.checkpoints
        panels: dict[str, dict[str, list[float]]] = {}
        losses = [one.loss_bits for one in every if one.loss_bits is not None]
        if len(losses) == len(every):
            panels["loss, bits"] = {"loss": losses}
        for score in SHOWN:
            most = np.array([[getattr(row, score) for row in one.heads] for one in every])
            best = np.argsort(-most.max(axis=0), kind="stable")[:DRAWN]
            names = [f"{row.layer}.{row.head}" for row in every[0].heads]
            panels[score] = {f"head {names[head]}": most[:, head].tolist() for head in best}
        masses = [one.repetition.second_mass for one in every if one.repetition is not None]
        if len(masses) == len(every):
            panels["p of repeated token"] = {"p": masses}
        title, text = "Heads over the checkpoints", "The heads with the highest peak of each score."
        return [Curves(title=title, text=text, x=[one.tokens for one in every], panels=panels, label="tokens")]


@dataclass(frozen=True, kw_only=True)
class Development(Instrument):
    """Scores of heads over checkpoints."""

    result = DevelopmentOfHeads
    reads_text = False
    usual = False

    checkpoints: int = 0
    """Number of checkpoints of the run to measure, evenly spaced; 0: all"""
    repeat_length: int = 32
    """Number of random tokens that the model reads twice, for the scores of heads; at most half the context"""

    def __post_init__(self) -> None:
        if self.checkpoints < 0:
            raise ValueError(f"`checkpoints` is {self.checkpoints}, but must be at least 0")

    def check(self, config: ModelConfig) -> None:
        Heads(repeat_length=self.repeat_length).check(config)

    def look(self, run: LoadedRun, text: str) -> DevelopmentOfHeads:
        from pipelines.run.loaded_run import load_run

        folders = checkpoint_folders(run.path)
        count = min(self.checkpoints or len(folders), len(folders))
        chosen = [folders[round(i)] for i in np.linspace(len(folders) - 1, 0, count)][::-1]
        machine, losses, found = run.trained.machine, _losses(run), []
        with Bar("measuring checkpoints", len(chosen), "checkpoints") as bar:
            for done, folder in enumerate(chosen, 1):
                step = folder.name.removeprefix("step-")
                loaded = load_run(run.path, checkpoint=f"{int(step)}", device=machine.device_name)
                heads = Heads(repeat_length=self.repeat_length).look(loaded, "")
                tokens = readable_state(folder).get("tokens", 0)
                loss = None if losses is None else float(np.interp(tokens, *losses))
                found.append(HeadsOfCheckpoint(folder.name, tokens, loss, heads.heads, heads.repetition))
                bar.update(done)
        return DevelopmentOfHeads(tuple(found))


INSTRUMENT = Development


def _losses(run: LoadedRun) -> tuple[list[int], list[float]] | None:
    """Return the tokens and losses (bits) of the logged steps: validation, or else training. None if none is logged."""
    metrics = run.run.metrics()
    for split in ("validation", "train"):
        points = [(m["tokens"], bits(m["loss"])) for m in metrics if m["split"] == split and "loss" in m]
        if points:
            return [tokens for tokens, _ in points], [loss for _, loss in points]
    return None

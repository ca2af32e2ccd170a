"""What makes units of MLPs fire, and what they promote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.introspection.memories import ActivityOfUnits, check_values, values_in_vocabulary
from lm.introspection.unit_activity import UnitActivity
from pipelines.cli.display import Bar
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument, require_decoder
from pipelines.inspection.own_text import OwnText, model_arguments
from pipelines.inspection.triggers import Trigger, trigger_table, triggers_of
from pipelines.inspection.words import Words
from pipelines.reporting.pictures import Curves, Picture

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

TRIGGERS, PROMOTED, PART = 5, 5, 256  # triggers of a unit, tokens of a value, units of a matrix product
UNIT = re.compile(r"(\d{1,5})\.(\d{1,7})")


@dataclass(frozen=True)
class Unit:
    """A unit of an MLP."""

    layer: int
    unit: int
    fires: float
    """Share of positions at which the input of its activation function (in a gated MLP, of its gate) is positive"""
    triggers: tuple[Trigger, ...]
    """The positions with the largest absolute activations, largest first"""
    promotes: tuple[str, ...]
    """The tokens whose logits its value raises most, where the activation is positive"""
    suppresses: tuple[str, ...]
    """The tokens whose logits its value lowers most; where the activation is negative, it raises them"""


@dataclass(frozen=True)
class LayerOfUnits:
    """The units of a layer."""

    layer: int
    units: int
    fires: float
    """Mean share of positions at which a unit fires"""
    never: int
    """Units that fire nowhere"""
    agreement: float
    """Share of units whose most promoted token, at their strongest trigger, is the next token of the text"""
    chance: float
    """This share if triggers and values were paired at random"""


@dataclass(frozen=True)
class MemoriesOfRun(Result):
    """The units of all MLPs."""

    key = "memories"
    section = Section(
        "MLPs as memories",
        "An MLP writes a sum over units of activation times value (Geva et al. 2021). The triggers of a unit are the "
        "positions of the validation split with its largest absolute activations, shown with the tokens up to each "
        "position. The value promotes the tokens whose logits it raises most on the direct path to the head, and "
        "suppresses those that it lowers most. A negative activation swaps both. A unit fires where the input of its "
        "activation function (in a gated MLP, of its gate) is positive. Agreement: share of units whose most promoted "
        "token, at their strongest trigger, is the next token of the text. Chance: this share if triggers and values "
        "were paired at random. A few triggers cannot tell what a unit does on most text, and a unit need not have one "
        "meaning.",
    )

    layers: tuple[LayerOfUnits, ...]
    units: tuple[Unit, ...]
    tokens: int
    source: str
    """Folder of the dataset"""

    def parts(self) -> list[Table | str]:
        rows = [
            (
                f"{one.layer}",
                [f"{one.units:,}", f"{one.fires:.1%}", f"{one.never:,}", f"{one.agreement:.2%}", f"{one.chance:.2%}"],
            )
            for one in self.layers
        ]
        tables: list[Table | str] = [
            Table("by layer", "layer", ["units", "fire", "never fire", "agreement", "chance"], rows)
        ]
        for unit in self.units:
            title = f"unit {unit.layer}.{unit.unit}, which fires at {unit.fires:.1%} of positions"
            tables.append(trigger_table(title, unit.triggers))
            tables.append(f"promotes {' '.join(unit.promotes)}; suppresses {' '.join(unit.suppresses)}")
        return [*tables, f"{self.tokens:,} validation tokens"]

    def pictures(self) -> Sequence[Picture]:
        agreement = {name: [getattr(one, name) for one in self.layers] for name in ("agreement", "chance")}
        panels = {"fire": {"fire": [one.fires for one in self.layers]}, "agreement": agreement}
        text = "Mean share of positions at which a unit fires, and share of units whose value agrees with the text."
        return [Curves(title="Units by layer", text=text, x=range(len(self.layers)), panels=panels, label="layer")]


@dataclass(frozen=True, kw_only=True)
class Memories(Instrument):
    """Units of MLPs."""

    result = MemoriesOfRun
    reads_text = False
    usual = False

    unit: tuple[str, ...] = ()
    """Units of MLPs to show, such as 0.17 (layer and unit, from 0); by default the strongest of each layer"""
    validation_tokens: int = 8192
    """Tokens of the validation split that an instrument reads"""

    def __post_init__(self) -> None:
        if self.validation_tokens < 1:
            raise ValueError(f"`validation_tokens` is {self.validation_tokens}, but must be at least 1")
        for unit in self.unit:
            if not UNIT.fullmatch(unit):
                raise ValueError(f"`unit` names {unit!r}, but needs a layer and a unit, from 0, such as 0.17")

    def check(self, config: ModelConfig) -> None:
        require_decoder(config, "the instrument memories")
        if not config.mlp:
            raise ValueError("model.mlp is false, but the instrument memories needs MLPs")
        check_values(config)
        for layer, unit in self._named():
            if layer >= config.layers or unit >= config.hidden_width:
                most = f"{config.layers - 1}.{config.hidden_width - 1}"
                raise ValueError(f"`unit` names {layer}.{unit}, but the last unit of the model is {most}")

    def _named(self) -> list[tuple[int, int]]:
        return [(int(layer), int(unit)) for layer, unit in (one.split(".") for one in self.unit)]

    def look(self, run: LoadedRun, text: str) -> MemoriesOfRun:
        own, model, words = OwnText.of(run), run.model, Words(run)
        activity, device = ActivityOfUnits(model, TRIGGERS), model.embedding.weight.device
        batches = own.validation(self.validation_tokens)
        with Bar("reading the validation split", len(batches), "batches") as bar:
            for done, batch in enumerate(batches, 1):
                activity.read(model_arguments(batch, device))
                bar.update(done)
        inputs, following = (np.concatenate([getattr(b, name) for b in batches]) for name in ("inputs", "targets"))
        layers, best = [], []
        for layer, units in enumerate(activity.layers):
            found, likeliest = _layer(run, layer, units, torch.from_numpy(following.ravel()).to(device))
            layers.append(found)
            sizes = units.strongest[0].abs() * likeliest
            best.append((layer, int(sizes.argmax())))
        chosen = [_unit(run, *one, activity.layers[one[0]], inputs, following, words) for one in self._named() or best]
        return MemoriesOfRun(tuple(layers), tuple(chosen), inputs.size, own.source)


INSTRUMENT = Memories


def _layer(run: LoadedRun, layer: int, units: UnitActivity, following: Tensor) -> tuple[LayerOfUnits, Tensor]:
    """Return the numbers of a layer, and the standard deviation of the logits of each unit's value (H,)."""
    every, spread, tops = torch.arange(len(units.fired), device=following.device), [], []
    for part in every.split(PART):
        logits = values_in_vocabulary(run.model, layer, part) * units.strongest[0, part, None].sign()
        tops.append(logits.argmax(dim=-1))
        spread.append(logits.std(dim=-1))
    top, after = torch.cat(tops), following[units.positions[0]]
    counts = [torch.bincount(ids, minlength=run.model.config.vocab_size).double() / len(ids) for ids in (top, after)]
    found = LayerOfUnits(
        layer,
        len(every),
        float(units.fired.double().mean() / units.tokens),
        int((units.fired == 0).sum()),
        float((top == after).double().mean()),
        float(counts[0] @ counts[1]),
    )
    return found, torch.cat(spread)


def _unit(
    run: LoadedRun,
    layer: int,
    unit: int,
    units: UnitActivity,
    inputs: np.ndarray,
    following: np.ndarray,
    words: Words,
) -> Unit:
    """Return a unit; `inputs` and `following` (windows, T) are the text and its next tokens."""
    logits = values_in_vocabulary(run.model, layer, torch.tensor([unit], device=units.fired.device))[0]
    most = min(PROMOTED, len(logits))
    return Unit(
        layer,
        unit,
        float(units.fired[unit]) / units.tokens,
        triggers_of(units, unit, inputs, following, words),
        words.of(logits.topk(most).indices),
        words.of((-logits).topk(most).indices),
    )

"""Activations of the text patched into another prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.introspection.activations import activation_names
from lm.introspection.patching import HEADS, PatchingMaps, estimated_maps, patching_maps
from lm.model import LanguageModel
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument, require_decoder
from pipelines.inspection.words import Words, read_ids, single_token
from pipelines.reporting.pictures import HeatMap, Picture

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

Map = tuple[tuple[float, ...], ...]
POSITIONS, COLUMNS = 16, 12  # in the tables


@dataclass(frozen=True)
class Agreement:
    """How well the estimates of a map agree with patching."""

    map: str
    """stream, attention, mlp or heads"""
    correlation: float | None
    """None if all effects, or all estimates, are equal"""
    largest: float
    """Largest difference between an estimate and the effect"""


@dataclass(frozen=True)
class PatchedPrompts(Result):
    """The effects of patching activations of the text into another prompt. Maps have a row for each layer."""

    key = "patching"
    section = Section(
        "Patching",
        "The model reads the corrupt prompt, and one activation is replaced by that of the clean text. The logit "
        "difference is the logit of the target minus that of `against`. The effect is the share of the gap between "
        "both prompts' logit differences that the patch closes: 0 is nothing, 1 the clean prediction. It can be below "
        "0 or above 1. The stream (before a layer), attention and MLPs are patched at one position, a head at all "
        "positions. Patching shows what is sufficient. It cannot tell what is necessary: exchange the prompts for "
        "this. Effects of several activations do not add. The quick form, attribution patching, estimates all effects "
        "from one backward pass. It is wrong where attention is saturated or the model is far from linear. Without "
        "`quick`, a table shows how well both agree on these prompts.",
    )

    text: str
    corrupt: str
    target: str
    against: str
    clean_difference: float
    corrupt_difference: float
    tokens: tuple[str, ...]
    """(T) of the text"""
    corrupt_tokens: tuple[str, ...]
    stream: Map
    """(L, T): input of a layer"""
    attention: Map
    """(L, T): output of attention"""
    mlp: Map | None
    """(L, T): output of an MLP"""
    heads: tuple[tuple[float, ...] | None, ...] | None
    """(L, H): output of a head; None for a layer without heads, and if no layer has any"""
    quick: bool
    """Whether the maps are estimates"""
    agreement: tuple[Agreement, ...]
    """Agreement of the estimates with the maps; empty if the maps are estimates"""

    @property
    def _labels(self) -> list[str]:
        """Return the token of each position; "a → b" where the corrupt prompt has a and the text has b."""
        pairs = zip(self.tokens, self.corrupt_tokens, strict=True)
        return [own if own == other else f"{other} → {own}" for own, other in pairs]

    @property
    def _head_count(self) -> int:
        """Return the number of heads of the layers that have some."""
        return max(len(row) for row in self.heads or () if row)

    def pictures(self) -> Sequence[Picture]:
        text = "1 restores the clean prediction; 0 changes nothing. Rows are layers, from the first to the last."
        layers = [*map(str, range(len(self.stream)))]
        places = {"stream before the layer": self.stream, "attention": self.attention, "MLP": self.mlp}
        pictures = [
            HeatMap(
                title=f"Patching the {name}: {self.target} against {self.against}",
                text=text, maps={"": values}, rows=layers, columns=self._labels, x="position", y="layer", signed=True,
            )
            for name, values in places.items()
            if values is not None
        ]  # fmt: skip
        if self.heads is not None:
            count = self._head_count
            heads = [*map(str, range(count))]
            title = f"Patching a head: {self.target} against {self.against}"
            maps = {"": [row or (math.nan,) * count for row in self.heads]}
            pictures.append(
                HeatMap(title=title, text=text, maps=maps, rows=layers, columns=heads, x="head", y="layer", signed=True)
            )
        return pictures

    def parts(self) -> list[Table | str]:
        what = f"{self.target} against {self.against}"
        layers, count = len(self.stream), len(self.tokens)
        shown = range(min(layers, COLUMNS))
        rows = [
            (self._labels[t], [f"{self.stream[layer][t]:z.2f}" for layer in shown])
            for t in range(max(0, count - POSITIONS), count)
        ]
        heads = [f"layer {i}" for i in shown]
        tables: list[Table | str] = [Table(f"{what}: stream before each layer, by position", "position", heads, rows)]
        if self.heads is not None:
            few = range(min(self._head_count, COLUMNS))
            cells = [(f"{i}", [f"{row[head]:z.2f}" if row else "" for head in few]) for i, row in enumerate(self.heads)]
            tables.append(Table(f"{what}: heads at all positions", "layer", [f"head {head}" for head in few], cells))
        clean, corrupt = f"{self.clean_difference:+.3f}", f"{self.corrupt_difference:+.3f}"
        ends = f"logit difference: {clean} after the text, {corrupt} after the corrupt prompt"
        said = [f"{ends}; `as_json` also has the maps of attention and MLPs"]
        if self.quick:
            said.append("the effects are estimates from gradients; without `quick` they are measured")
        else:
            rows = [
                (one.map, ["" if one.correlation is None else f"{one.correlation:.3f}", f"{one.largest:.2f}"])
                for one in self.agreement
            ]
            heads = ["correlation", "largest difference"]
            tables.append(Table("the quick form against patching", "effects", heads, rows))
        return [*tables, *said]


@dataclass(frozen=True, kw_only=True)
class Patching(Instrument):
    """Activation patching."""

    result = PatchedPrompts
    usual = False

    corrupt: str | None = None
    """Prompt into which activations of the text are patched; it needs as many tokens as the text"""
    target: str | None = None
    """Token that the text makes likelier; by default the likeliest one after it"""
    against: str | None = None
    """Token that the corrupt prompt makes likelier; by default the likeliest one after it"""
    quick: bool = False
    """Estimate the effects of patching from gradients instead of patching each activation"""

    def check(self, config: ModelConfig) -> None:
        require_decoder(config, "patching")
        if self.corrupt is None:
            raise ValueError("patching needs a second prompt: give `corrupt`")

    def look(self, run: LoadedRun, text: str) -> PatchedPrompts:
        assert self.corrupt is not None, "it is checked"
        words, clean, corrupt = Words(run), read_ids(run, text), read_ids(run, self.corrupt)
        target = _token(run, self.target, "target", text)
        against = _token(run, self.against, "against", self.corrupt)
        if target == against:
            raise ValueError(
                f"target and against are the same token, {words.of([target])[0]}: name them with `target` and `against`"
            )
        estimates = estimated_maps(run.model, clean, corrupt, target, against)
        maps = estimates if self.quick else patching_maps(run.model, clean, corrupt, target, against)
        named = words.of([target, against])
        return PatchedPrompts(
            text,
            self.corrupt,
            target=named[0],
            against=named[1],
            clean_difference=maps.clean,
            corrupt_difference=maps.corrupt,
            tokens=words.of(clean),
            corrupt_tokens=words.of(corrupt),
            stream=_rows(maps.stream),
            attention=_rows(maps.attention),
            mlp=None if maps.mlp is None else _rows(maps.mlp),
            heads=None if maps.heads is None else _rows_of_heads(run.model, maps.heads),
            quick=self.quick,
            agreement=() if self.quick else tuple(_agreements(maps, estimates)),
        )


INSTRUMENT = Patching


def _token(run: LoadedRun, token: str | None, name: str, prompt: str) -> int:
    """Return the id of a token that a caller names; by default the likeliest one after a prompt."""
    return int(run.logits(prompt)[-1].argmax()) if token is None else single_token(run, token, name)


def _rows(values: Tensor) -> Map:
    return tuple(tuple(row) for row in values.tolist())


def _rows_of_heads(model: LanguageModel, values: Tensor) -> tuple[tuple[float, ...] | None, ...]:
    """Return the row of each layer that has heads, and None for the others."""
    known = activation_names(model)
    return tuple(row if f"blocks.{layer}.{HEADS}" in known else None for layer, row in enumerate(_rows(values)))


def _agreements(maps: PatchingMaps, estimates: PatchingMaps) -> Iterator[Agreement]:
    for name in ("stream", "attention", "mlp", "heads"):
        real, estimated = getattr(maps, name), getattr(estimates, name)
        if real is not None and (known := ~real.isnan()).any():
            together = torch.stack((real[known], estimated[known]))
            varies = bool((together.std(dim=1) > 0).all())
            correlation = float(torch.corrcoef(together)[0, 1]) if varies else None
            yield Agreement(name, correlation, float(together.diff(dim=0).abs().max()))

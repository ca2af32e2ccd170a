"""How the states of a word in two texts diverge, layer by layer: `run.compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lm.introspection.comparison import ReadingsAtLayer, compare_readings
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.reporting.pictures import Curves, Picture

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

LARGEST = 3  # parts of each layer in the table


@dataclass(frozen=True)
class ComparedReadings(Result):
    """The states of a word in two texts, by layer."""

    key = "comparison"
    section = Section(
        "Comparison of two readings",
        "The state of the word's last token in two texts after each layer. Distance is 1 - cosine. The parts are "
        "shares of the difference after the layer: how much of it each head and MLP adds. Together with `before`, the "
        "share of the difference before the layer, they add up to 1. A negative share brings the readings together. "
        "The shares cannot tell whether later layers use the difference: patch it.",
    )

    word: str
    texts: tuple[str, str]
    positions: tuple[int, int]
    """Position of the word's last token in each text, among the tokens that the model reads"""
    layers: tuple[ReadingsAtLayer, ...]
    """The first entry is the input of the first layer"""

    @property
    def _names(self) -> list[str]:
        return ["embedding", *(f"{layer}" for layer in range(len(self.layers) - 1))]

    def parts(self) -> list[Table | str]:
        rows = []
        for name, layer in zip(self._names, self.layers, strict=True):
            own = {part: share for part, share in layer.parts.items() if part != "before"}
            ranked = sorted(own.items(), key=lambda part: -abs(part[1]))[:LARGEST]
            before = f"{layer.parts['before']:.2f}" if layer.parts else ""
            rows.append((name, [f"{layer.distance:.3f}", before, "  ".join(f"{part} {s:+.2f}" for part, s in ranked)]))
        heads = ["distance", "before", "largest parts"]
        return [Table(f"{self.word} in two texts, by layer", "layer", heads, rows, text=True)]

    def pictures(self) -> Sequence[Picture]:
        panels = {"distance": {"distance": [layer.distance for layer in self.layers]}}
        title, x = f"{self.word} in two texts", range(len(self.layers))
        return [Curves(title=title, x=x, panels=panels, label="layers passed")]


def compared(run: LoadedRun, first: str, second: str, word: str) -> ComparedReadings:
    """Compare the last occurrence of a word in two texts.

    Raises ValueError for a text without the word, and for an encoder-decoder.
    """
    ids = [run.ids(text) for text in (first, second)]
    positions = [_last_token(run, own, text, word) for own, text in zip(ids, (first, second), strict=True)]
    device = run.model.embedding.weight.device
    read = [torch.tensor(own, device=device) for own in ids]
    layers = compare_readings(run.model, read[0], positions[0], read[1], positions[1])
    return ComparedReadings(word, (first, second), (positions[0], positions[1]), tuple(layers))


def _last_token(run: LoadedRun, ids: list[int], text: str, word: str) -> int:
    """Return the position of the token that ends the last occurrence of a word."""
    before, after, _ = run.surrounding  # the spelling of special tokens may contain the word
    count = text.count(word) if word else 0
    for end in range(len(before) + 1, len(ids) - len(after) + 1):
        if count and run.tokenizer.decode(ids[len(before) : end]).count(word) >= count:
            return end - 1
    raise ValueError(
        f"the text {text!r} does not contain {word!r}: give a word that both texts contain, as the tokenizer decodes it"
    )

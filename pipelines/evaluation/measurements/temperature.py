"""The best temperature of a model, on a sample of the scored positions."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lm.metrics.temperature_scaling import best_temperature
from lm.metrics.units import bits
from lm.model import LanguageModel
from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.split import Chunk, ScoredSplit, Split
from pipelines.training.batch_loss import logits_in_parts

POSITIONS = 4096


@dataclass(frozen=True, kw_only=True)
class BestTemperature(Result):
    """The temperature with the lowest cross-entropy."""

    temperature: float = number(
        "best temperature",
        "The temperature T from 0.05 to 20 at which softmax(logits / T) has the lowest cross-entropy, on up to "
        "4,096 scored positions. Above 1 the model is overconfident, below 1 underconfident.",
        3,
        headline=True,
    )
    temperature_gain_bits: float = number(
        "gain of the best temperature, bits per token",
        "Cross-entropy at temperature 1 minus that at the best temperature, at the same positions.",
        5,
        headline=True,
    )
    temperature_tokens: int = number(
        "positions of the best temperature",
        "Scored positions, drawn with seed 0, that the search for the temperature uses.",
        0,
    )


class HiddenSample:
    """The hidden states and targets of a uniform sample of at most POSITIONS positions, drawn with seed 0.

    Each position draws a random key. The sample has the positions with the smallest keys.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._generator = np.random.default_rng(0)
        self._limit = 1.0
        self._keys = np.empty(0)
        self._parts: list[tuple[Tensor, Tensor]] = []

    def update(self, chunk: Chunk) -> None:
        hidden, targets = chunk.hidden, chunk.targets
        keys = self._generator.random(len(targets))
        chosen = np.flatnonzero(keys < self._limit)
        if not len(chosen):
            return
        rows = torch.from_numpy(chosen).to(targets.device)
        self._parts.append((hidden[rows], targets[rows]))
        self._keys = np.concatenate([self._keys, keys[chosen]])
        if len(self._keys) > 2 * POSITIONS:
            self._prune()

    def result(self, split: ScoredSplit) -> BestTemperature:
        hidden, targets = self._prune()

        def chunks() -> Iterator[tuple[Tensor, Tensor]]:
            for part, logits in logits_in_parts(self._model, hidden):
                yield logits, targets[part]

        temperature, gain = best_temperature(chunks)
        return BestTemperature(
            temperature=temperature, temperature_gain_bits=bits(gain), temperature_tokens=len(targets)
        )

    def _prune(self) -> tuple[Tensor, Tensor]:
        """Keep the POSITIONS smallest keys, and return their hidden states and targets."""
        kept = np.sort(np.argsort(self._keys)[:POSITIONS])
        rows = torch.from_numpy(kept).to(self._parts[0][1].device)
        hidden, targets = (torch.cat(column)[rows] for column in zip(*self._parts, strict=True))
        self._keys, self._parts = self._keys[kept], [(hidden, targets)]
        if len(kept) == POSITIONS:
            self._limit = float(self._keys.max())
        return hidden, targets


@dataclass(frozen=True, kw_only=True)
class Temperature(Measurement):
    """The best temperature. It is always measured."""

    result = BestTemperature

    def observer(self, split: Split) -> HiddenSample:
        return HiddenSample(split.model)


MEASUREMENT = Temperature

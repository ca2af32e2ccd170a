"""Find the best temperature of a model, on a sample of the scored positions."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from lm.metrics.predictions import bits
from lm.metrics.temperature import best_temperature
from lm.model import LanguageModel
from pipelines.training.batch import logits_in_parts

POSITIONS = 4096


class HiddenSample:
    """The hidden states and targets of a uniform sample of at most POSITIONS positions, drawn with seed 0.

    Each position draws a random key. The sample has the positions with the smallest keys.
    """

    def __init__(self) -> None:
        self._generator = np.random.default_rng(0)
        self._limit = 1.0
        self._keys = np.empty(0)
        self._parts: list[tuple[Tensor, Tensor]] = []

    def add(self, hidden: Tensor, targets: Tensor) -> None:
        """Consider positions with hidden states (N, width) and targets (N,)."""
        keys = self._generator.random(len(targets))
        chosen = np.flatnonzero(keys < self._limit)
        if not len(chosen):
            return
        rows = torch.from_numpy(chosen).to(targets.device)
        self._parts.append((hidden[rows], targets[rows]))
        self._keys = np.concatenate([self._keys, keys[chosen]])
        if len(self._keys) > 2 * POSITIONS:
            self._prune()

    def numbers(self, model: LanguageModel) -> dict[str, float]:
        """Return the numbers of evaluation.json about the best temperature. Needs at least one position."""
        hidden, targets = self._prune()

        def chunks() -> Iterator[tuple[Tensor, Tensor]]:
            for part, logits in logits_in_parts(model, hidden):
                yield logits, targets[part]

        temperature, gain = best_temperature(chunks)
        return {"temperature": temperature, "temperature_gain_bits": bits(gain), "temperature_tokens": len(targets)}

    def _prune(self) -> tuple[Tensor, Tensor]:
        """Keep the POSITIONS smallest keys, and return their hidden states and targets."""
        kept = np.sort(np.argsort(self._keys)[:POSITIONS])
        rows = torch.from_numpy(kept).to(self._parts[0][1].device)
        hidden, targets = (torch.cat(column)[rows] for column in zip(*self._parts, strict=True))
        self._keys, self._parts = self._keys[kept], [(hidden, targets)]
        if len(kept) == POSITIONS:
            self._limit = float(self._keys.max())
        return hidden, targets

"""The text that a decoder was trained and validated on, for instruments that read more than a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation.planning import EvaluationOptions, Plan, objective_of, plans_of
from pipelines.evaluation.windows import windows_per_batch
from pipelines.training.batch import Batch, model_inputs
from pipelines.training.batch_loss import to_device
from pipelines.training.batch_objectives import NextToken

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun


@dataclass(frozen=True)
class OwnText:
    """The training and validation splits of a decoder, in windows of its context."""

    plan: Plan
    objective: NextToken

    @classmethod
    def of(cls, run: LoadedRun) -> OwnText:
        """Return the text of a run; of a mixture, the source with the largest share.

        Raises ValueError if the dataset no longer exists, or if the run was not trained on next tokens.
        """
        plans = [p for p in plans_of(run.run, EvaluationOptions(measuring=None), None, None) if isinstance(p, Plan)]
        plan = max(plans, key=lambda one: one.share)
        objective = objective_of(plan.run, plan.windows.window, plan.run.tokenizer())
        if not isinstance(objective, NextToken):
            raise ValueError(f"{plan.run.folder} was trained on {plan.run.recipe.objective}: give the run of a decoder")
        return cls(plan, objective)

    @property
    def source(self) -> str:
        """The folder of the dataset."""
        assert isinstance(self.plan.dataset, TokenDataset), "a decoder reads blocks"
        return str(self.plan.dataset.place)

    def validation(self, tokens: int) -> list[Batch]:
        """Return evenly spaced windows of the validation split, with about `tokens` tokens in all."""
        stream, length = self._stream("validation"), self.objective.length
        windows = max(1, (stream.tokens - 1) // length)
        count = min(windows, -(-tokens // length))
        starts = length * (np.arange(count) * windows // count)
        together = windows_per_batch(length)
        return [self.objective.batch(stream, starts[first : first + together]) for first in range(0, count, together)]

    def training(self, generator: np.random.Generator, tokens: int) -> Batch:
        """Return random windows of the training split: at least one, and otherwise at most `tokens` tokens."""
        stream, length = self._stream("train"), self.objective.length
        last = max(0, stream.tokens - 1 - length)
        starts = generator.integers(last + 1, size=max(1, tokens // length))
        return self.objective.batch(stream, starts)

    def _stream(self, split: str) -> TokenStream:
        assert isinstance(self.plan.dataset, TokenDataset), "a decoder reads blocks"
        return self.plan.dataset.split(split)


def model_arguments(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """Return the arguments of a model that reads a batch, by name."""
    return to_device(model_inputs(batch), device)


def scored(batch: Batch, device: torch.device) -> Tensor:
    """Return which positions of a batch have a target, (B, T) bool."""
    return torch.from_numpy(batch.weights > 0).to(device)

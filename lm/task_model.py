"""A language model whose head is replaced by the head of a task."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.head_config import HeadConfig
from lm.initialization import Initializer
from lm.layers import Component, Embedding
from lm.model import LanguageModel, Stack
from lm.positions import with_resized_positions
from lm.task_heads import HEADS, NEVER, task_loss


class TaskModel(Component):
    """A language model whose head is replaced by the head of a task (Devlin et al. 2019).

    It trains like a language model: calling it gives the outputs for `loss`.
    """

    def __init__(self, config: ModelConfig, head: HeadConfig, seed: int | None = 0) -> None:
        """Make a float32 model on the CPU. `seed`: as for `LanguageModel`."""
        super().__init__()
        self.config, self.head_config = config, head
        self.body = LanguageModel(config, seed=None)
        self.body.head = nn.Identity()  # type: ignore[assignment]  # the body gives hidden states only
        self.head = HEADS["sequence" if head.kind == "choice" else head.kind](config, head)
        if seed is not None:
            self.initialize(Initializer(config, torch.Generator().manual_seed(seed)))

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of activations and matrix products, as in `LanguageModel`."""
        return self.body.compute_dtype

    @compute_dtype.setter
    def compute_dtype(self, dtype: torch.dtype) -> None:
        self.body.compute_dtype = dtype

    @property
    def embedding(self) -> Embedding:
        """The embedding of the body."""
        return self.body.embedding

    @property
    def stack(self) -> Stack:
        """The stack whose hidden states the head reads."""
        return self.body.stack

    @property
    def encoder(self) -> Stack | None:
        """The encoder of the body, if any."""
        return self.body.encoder

    def forward(
        self,
        ids: Tensor,
        source: Tensor | None = None,
        *,
        present: Tensor | None = None,
        source_present: Tensor | None = None,
        types: Tensor | None = None,
        segments: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return the outputs of the head, float32. `HeadConfig` gives their shapes, `LanguageModel` the inputs.

        ids (B, T) int64, or (B, C, T) for choices. `rows` (N,) int64 selects rows of `outputs.flatten(0, -2)`, and
        the result is (N, L).
        """
        if self.head_config.kind == "choice":
            return _rows(self._choices(ids, present, types), rows)
        if self.head_config.kind == "token":
            hidden = self.body(ids, source, present=present, types=types, segments=segments, rows=rows)
            return self.head(hidden).float()
        hidden = self.body(ids, source, present=present, source_present=source_present, types=types, segments=segments)
        return _rows(self.head(hidden, present).float(), rows)

    def loss(
        self,
        rows: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
    ) -> Tensor:
        """Return `task_loss` of the outputs `rows` (N, L). `z_loss` has no effect: the head of a task has none."""
        return task_loss(self.head_config, rows, targets, weights, label_smoothing)

    def load_body(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights of a language model of the same configuration, except its head."""
        self.body.load_state_dict({name: weights[name] for name in self.body.state_dict()})

    def _choices(self, ids: Tensor, present: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the logits (B, 1, C) of choices (B, C, T). A choice without tokens has the logit NEVER."""
        ids, choices = ids.flatten(0, 1), ids.shape[1]
        present = None if present is None else present.flatten(0, 1)
        absent = None if present is None else ~present.any(dim=-1)
        if present is not None and absent is not None:
            present = present | absent.unsqueeze(-1)  # attention needs a position to look at
        hidden = self.body(ids, present=present, types=None if types is None else types.flatten(0, 1))
        logits = self.head(hidden, present).float().flatten()
        logits = logits if absent is None else logits.masked_fill(absent, NEVER)
        return logits.view(-1, 1, choices)


TrainedModel = LanguageModel | TaskModel


def build_model(config: ModelConfig, head: HeadConfig | None, seed: int | None = 0) -> TrainedModel:
    """Return a language model, or with `head` a `TaskModel`. `seed`: as for `LanguageModel`."""
    return LanguageModel(config, seed) if head is None else TaskModel(config, head, seed)


def reconfigured(model: TrainedModel, config: ModelConfig) -> TrainedModel:
    """Return a model of `config` with a copy of the weights of `model`, on its device and in evaluation mode.

    The configurations may differ in the context, which cuts learned positions, and where no weight depends on it. If
    they are the same, returns `model`.
    """
    if config == model.config:
        return model
    other = build_model(config, model.head_config if isinstance(model, TaskModel) else None, seed=None)
    other.load_state_dict(with_resized_positions(model.state_dict(), other))
    other.compute_dtype = model.compute_dtype
    return other.to(model.embedding.weight.device).eval()


def _rows(outputs: Tensor, rows: Tensor | None) -> Tensor:
    return outputs if rows is None else outputs.flatten(0, -2)[rows]

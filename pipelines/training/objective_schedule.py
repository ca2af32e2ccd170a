"""The objective of training on blocks, whose length and masks may change over a run."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pipelines.recipes.recipe import Recipe
from pipelines.training.batch_objectives import PairObjective, StreamObjective, make_objective
from pipelines.training.masking import Masking, WordStarts
from tokenizer import Tokenizer


class ObjectiveSchedule:
    """The objective of a recipe at each position of the run."""

    def __init__(self, recipe: Recipe, length: int, tokenizer: Tokenizer, facts: Mapping[str, Any] | None) -> None:
        """`length`: tokens of a block. For `facts` see `make_objective`."""
        self._recipe, self._length, self._tokenizer, self._facts = recipe, length, tokenizer, facts
        train = recipe.train
        words = None if train.masked_unit == "token" else WordStarts(tokenizer)
        self._masking = Masking(rows=train.masked_rows, unit=train.masked_unit, words=words)
        self._made = lru_cache(maxsize=2)(self._make)
        self.at(0.0)  # raises an error about the shortest sequences before anything is written

    def at(self, position: float) -> StreamObjective:
        """Return the objective at a position of `TrainConfig.position`."""
        train = self._recipe.train
        return self._made(train.length(position, self._length), train.share_of_masks(position))

    def _make(self, length: int, share: float) -> StreamObjective:
        model, masking = self._recipe.model, replace(self._masking, share=share)
        made = make_objective(
            self._recipe.objective, length, self._tokenizer, model.document_mask, self._facts, masking
        )
        assert not isinstance(made, PairObjective)
        return made

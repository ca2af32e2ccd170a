"""Carry a run over to another vocabulary: rows of equal tokens are copied, and rows of new tokens are composed.

A new token's row is the mean of all rows, the mean of its pieces' rows (Gee et al. 2022), or half of each ("mixed").
With a tied output matrix the mean of pieces is not the best start, because a new token then competes with its pieces.
So the method with the least loss on training text is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lm.lora_config import LoraConfig
from lm.model import LanguageModel
from lm.new_entries import NEW, with_entries
from pipelines.evaluation.windows import windows_per_batch
from pipelines.exchange.imported_run import write_imported_run
from pipelines.exchange.token_rows import token_rows
from pipelines.files import whole_folder
from pipelines.recipes.recipe import Recipe
from pipelines.run.checkpoint_reader import load_weights
from pipelines.run.folder import Run
from pipelines.run.text_ids import ids_of
from tokenizer import Tokenizer

METHODS = {"mixed": 0.5, "mean": 0.0, "pieces": 1.0}
"""Share of the mean of its pieces in a new row; the rest is the mean of all rows"""
LOGIT_ROWS = 1024
Z95 = 1.96
Encode = Callable[[bytes], Sequence[int]]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Measured:
    """Nats and bytes of documents as a model predicts them."""

    nats: np.ndarray
    bytes: np.ndarray
    tokens: int

    @property
    def bits_per_byte(self) -> float:
        return float(self.nats.sum() / self.bytes.sum() / np.log(2))

    def difference(self, other: Measured) -> tuple[float, float]:
        """Return the bits per byte above `other` on the same documents, and half their 95 % interval over documents."""
        apart, total = self.nats - other.nats, self.bytes.sum()
        ratio, n = apart.sum() / total, len(apart)
        spread = np.sqrt(n / max(1, n - 1) * np.square(apart - ratio * self.bytes).sum()) / total
        return float(ratio / np.log(2)), float(Z95 * spread / np.log(2))


class Carried:
    """The weights of a run for another vocabulary."""

    def __init__(self, run: Run, tok: Tokenizer) -> None:
        """Raises ValueError if `tok` lacks a special token that the run reads."""
        run.require_language_model()
        self.run, self.tok, self.old = run, tok, run.tokenizer()
        self.checkpoint, self.weights = load_weights(run.folder, run.settings)
        self.rows, self.pieces = token_rows(self.old, tok)
        self.new_id = {old: new for new, old in enumerate(self.rows) if old != NEW}
        self.facts = self._facts()
        model = replace(run.recipe.model, vocab_size=tok.vocab_size)
        train = replace(run.recipe.train, average=0.0)  # the weights include averages and adapters already
        self.recipe: Recipe = replace(run.recipe, model=model, train=train, lora=LoraConfig())
        self.method = next(iter(METHODS))

    def model(self, method: str | None = None, weights: Weights | None = None) -> LanguageModel:
        """Return the carried model, in evaluation mode, with new rows by a method of METHODS, or with `weights`."""
        model = LanguageModel(self.recipe.model, seed=None)
        model.load_state_dict(weights or self._weights(model, method or self.method))
        return model.eval()

    def choose(self, documents: Sequence[bytes]) -> dict[str, Measured]:
        """Choose the method with the least loss on training text; "mixed" unless another is better beyond chance."""
        measured = {name: self.measure(self.model(name), documents) for name in METHODS}
        best = min(measured, key=lambda name: measured[name].bits_per_byte)
        difference, interval = measured[best].difference(measured["mixed"])
        if difference + interval < 0:
            self.method = best
        return measured

    def measure(self, model: LanguageModel, documents: Sequence[bytes], encode: Encode | None = None) -> Measured:
        """Return how well a model with the new vocabulary predicts documents, with the ids of `encode`."""
        return _measure(model, documents, encode or self.tok.encode_ordinary, self._before(self.facts, self.tok))

    def measure_before(self, documents: Sequence[bytes], weights: Weights | None = None) -> Measured:
        """Return how well the model of the run predicts documents, with its weights or others."""
        model = LanguageModel(self.run.recipe.model, seed=None)
        model.load_state_dict(weights or self.weights)
        return _measure(model.eval(), documents, self.old.encode_ordinary, self._before(self.run.facts, self.old))

    @property
    def keeps_old_tokens(self) -> bool:
        """Whether the new vocabulary has all tokens of the old one."""
        return self.new_id.keys() >= {*self.old.vocabulary.ids.values(), *self.old.special_tokens.values()}

    def with_old_tokens(self, text: bytes) -> list[int]:
        """Return the tokens of the old vocabulary with their new ids."""
        return [self.new_id[i] for i in self.old.encode_ordinary(text)]

    def write(self, out: Path, weights: Weights | None = None, steps: int = 0) -> None:
        """Write the run, with one checkpoint of step 0, whole or not at all.

        `weights`: those of the carried model after `steps` training steps; by default the untrained ones.
        """
        facts = self.facts | ({"trained_steps": steps} if weights else {})
        with whole_folder(out, lambda folder: False) as partial:
            weights = weights or self._weights(LanguageModel(self.recipe.model, seed=None), self.method)
            write_imported_run(partial, self.recipe, weights, self.tok, facts)

    def _weights(self, model: LanguageModel, method: str) -> Weights:
        return with_entries(self.weights, model, torch.tensor(self.rows), self.pieces, METHODS[method])

    def _before(self, facts: dict[str, Any], tok: Tokenizer) -> tuple[int, ...]:
        return ids_of(self.run.recipe.model.architecture, facts, tok).before

    def _facts(self) -> dict[str, Any]:
        """Return the table [run] of the new run: special ids of the source with their new numbers."""
        names = ("model_type", "special_ids", "roles", "around_text", "chat_template", "edges", "separated")
        given = {name: self.run.facts[name] for name in names if name in self.run.facts}
        for name in ("special_ids", "roles", "around_text", "edges"):
            if name in given:
                given[name] = self._renumbered(given[name])
        before = self._before(self.run.facts, self.old)
        if "around_text" not in given and before != ids_of(self.run.recipe.model.architecture, given, self.tok).before:
            given["around_text"] = self._renumbered({"before": [*before], "after": []})
        return {"imported_from": str(self.run.folder), "carried_from": self.checkpoint.name, **given}

    def _renumbered(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._renumbered(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._renumbered(one) for one in value]
        if value not in self.new_id:
            raise ValueError(
                f"the new vocabulary has no token {_spelled(self.old, value)}, which {self.run.folder} reads around "
                "texts: add it with add_special_tokens"
            )
        return self.new_id[value]


def _spelled(tok: Tokenizer, i: int) -> str:
    names = {number: name for name, number in tok.special_tokens.items()}
    return repr(names.get(i) or tok.vocabulary.tokens[i])


@torch.inference_mode()
def _measure(model: LanguageModel, documents: Sequence[bytes], encode: Encode, before: Sequence[int]) -> Measured:
    """Return the nats of each document, whose tokens follow `before`, in windows of the context."""
    context, nats, tokens = model.config.context_length, np.zeros(len(documents)), 0
    windows: list[tuple[int, int, Tensor]] = []
    for number, text in enumerate(documents):
        ids = torch.tensor([*before, *encode(text)])
        tokens += len(ids) - len(before)
        windows += ((number, start, ids[start : start + context + 1]) for start in range(0, len(ids) - 1, context))
    rows = windows_per_batch(context)
    for batch in (windows[first : first + rows] for first in range(0, len(windows), rows)):
        inputs = pad_sequence([window[:-1] for *_, window in batch], batch_first=True)  # no token sees later padding
        for (number, start, window), hidden in zip(batch, model(inputs), strict=True):
            targets = window[1:]
            for first in range(0, len(targets), LOGIT_ROWS):
                part = slice(first, min(first + LOGIT_ROWS, len(targets)))
                losses = F.cross_entropy(model.logits(hidden[part]).float(), targets[part], reduction="none")
                scored = torch.arange(start + 1 + first, start + 1 + first + len(losses)) >= len(before)
                nats[number] += float(losses[scored].double().sum())
    return Measured(nats, np.array([len(text) for text in documents]), tokens)

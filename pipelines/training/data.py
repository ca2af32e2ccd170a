"""What a run trains on and is validated on, whatever its objective: batches by position."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from lm.analysis.size import flops_per_token
from lm.model import LanguageModel
from lm.optim.schedules import batch_size
from pipelines.cli.display import say
from pipelines.cli.waiting import doing
from pipelines.dataset.pairs import PairDataset
from pipelines.dataset.reader import TokenDataset
from pipelines.run.recipe import Recipe
from pipelines.training.config import TrainConfig
from pipelines.training.loader import WHOLE, Batch, Loader, Share, StreamObjective, make_objective, validation_batch
from pipelines.training.pair_loader import PairLoader, SequencePairs
from tokenizer import Tokenizer

Dataset = TokenDataset | PairDataset

ALIGNMENT = 16  # bytes, at least an element of any dtype
FULL_ROWS = 64  # a batch predicts at a multiple of so many positions


class TrainingData(Protocol):
    """Where the batches of a trainer come from, or its process's share of them."""

    unit: str
    """What its examples are called, in the plural."""

    def step(self, consumed: int, tokens: int) -> Batch:
        """The batch of the step after `tokens` tokens of training, which reads on after the first `consumed` examples
        (blocks or pairs) of the run."""

    def size(self, consumed: int, tokens: int) -> tuple[int, int]:
        """How many examples that batch has in all processes together, and how many tokens: those of its blocks, or of
        both sides of its pairs with their ends and without padding."""

    def flops_per_token(self, model: LanguageModel) -> float:
        """Floating-point operations of training for each token that `size` counts. Positions that are
        read beside these, such as `<|cls|>` and sentinels, cost too; padding does not count."""

    def validation(self, tokens: int, rows: int) -> Iterator[Batch]:
        """About the first `tokens` of the validation split, at most `rows` examples at a time in a process."""


class BlockData:
    """Blocks of a token stream."""

    unit = "blocks"

    def __init__(
        self, dataset: TokenDataset, objective: StreamObjective, config: TrainConfig, share: Share = WHOLE
    ) -> None:
        self.share = share
        self.objective, self._validation = objective, dataset.split("validation")
        self.loader = Loader(dataset.split("train"), objective, config.sampling, config.seed)
        self._config = config

    def step(self, consumed: int, tokens: int) -> Batch:
        return self.loader.batch(consumed, self._blocks(tokens), self.share)

    def size(self, consumed: int, tokens: int) -> tuple[int, int]:
        return self._blocks(tokens), self._blocks(tokens) * self.objective.length

    def flops_per_token(self, model: LanguageModel) -> float:
        length, source = self.objective.positions, self.objective.source_positions
        each = flops_per_token(model, length, source_length=source)
        return each * ((length + source) / self.objective.length)

    def _blocks(self, tokens: int) -> int:
        full, warmup = self._config.batch_tokens, self._config.batch_warmup_tokens
        size = batch_size(tokens, start=self._config.batch_tokens_start, full=full, warmup=warmup)
        return max(1, round(size / self.objective.length))

    def validation(self, tokens: int, rows: int) -> Iterator[Batch]:
        blocks = min(max(1, tokens // self.objective.length), self._validation.blocks)
        rows *= self.share.parts
        for first in range(0, blocks, rows):
            yield validation_batch(self._validation, self.objective, first, min(rows, blocks - first), self.share)


class PairData:
    """Pairs of a source and a target."""

    unit = "pairs"

    def __init__(
        self, dataset: PairDataset, objective: SequencePairs, config: TrainConfig, share: Share = WHOLE
    ) -> None:
        self.share = share
        self.objective, self._validation = objective, dataset.split("validation")
        train = dataset.split("train")
        self.loader = PairLoader(train, objective, config.batch_tokens, config.seed)
        self._mean_source, self._mean_target = (float(side.mean()) for side in objective.lengths(train))
        cut = objective.cut(train)
        if cut:
            say(
                f"{cut:,} of {len(train):,} pairs are longer than {objective.positions} tokens, their end included: cut"
            )

    def step(self, consumed: int, tokens: int) -> Batch:
        return self.loader.batch(consumed, self.share)

    def size(self, consumed: int, tokens: int) -> tuple[int, int]:
        return self.loader.size(consumed)

    def flops_per_token(self, model: LanguageModel) -> float:
        return flops_per_token(model, self._mean_target, source_length=self._mean_source)

    def validation(self, tokens: int, rows: int) -> Iterator[Batch]:
        ends = np.cumsum(sum(self.objective.lengths(self._validation)))
        pairs = min(len(ends), int(np.searchsorted(ends, tokens)) + 1)
        rows *= self.share.parts
        for first in range(0, pairs, rows):
            numbers, own = self.share.rows(min(rows, pairs - first))
            yield self.objective.batch(self._validation, first + numbers).only(own)


def open_dataset(folder: Path, objective: str) -> Dataset:
    """The dataset in `folder`; ValueError when it is not of the kind that the objective needs."""
    doing("reading the dataset")
    return PairDataset(folder) if objective == "sequence-pairs" else TokenDataset(folder)


def make_any_objective(recipe: Recipe, length: int, tokenizer: Tokenizer) -> StreamObjective | SequencePairs:
    """The objective of `recipe` for blocks of `length` tokens, or for pairs of at most that length; ValueError when the
    tokenizer lacks a special token that it needs."""
    if recipe.objective == "sequence-pairs":
        return SequencePairs.of(tokenizer, length)
    return make_objective(recipe.objective, length, tokenizer, recipe.model.document_mask)


def open_training_data(recipe: Recipe, dataset: Dataset, tokenizer: Tokenizer, share: Share = WHOLE) -> TrainingData:
    """What `recipe` trains on, which must be of the kind that its objective needs, or a process's share of it."""
    if isinstance(dataset, PairDataset):
        objective = make_any_objective(recipe, recipe.model.context_length, tokenizer)
        return PairData(dataset, objective, recipe.train, share)
    return BlockData(dataset, make_any_objective(recipe, dataset.context_length, tokenizer), recipe.train, share)


def sent(parts: Mapping[str, np.ndarray], device: torch.device) -> dict[str, torch.Tensor]:
    """Arrays as tensors on `device`. A GPU fetches them by one copy, from one piece of pinned memory, while it computes
    what was queued before; from other memory, the copy would wait for that."""
    if device.type != "cuda":
        return {name: torch.from_numpy(part).to(device) for name, part in parts.items()}
    return unpacked(packed(parts, pin=True).to(device, non_blocking=True), parts)


def packed(parts: Mapping[str, np.ndarray], *, pin: bool) -> torch.Tensor:
    """The bytes of arrays one after the other, each from a multiple of ALIGNMENT on; uint8."""
    room = torch.empty(sum(map(_room, parts.values())), dtype=torch.uint8, pin_memory=pin)
    for name, there in unpacked(room, parts).items():
        there.copy_(torch.from_numpy(parts[name]))
    return room


def unpacked(room: torch.Tensor, parts: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Views of what `packed` made of arrays of the dtypes and shapes of `parts`."""
    found, start = {}, 0
    for name, part in parts.items():
        dtype = torch.from_numpy(part).dtype
        found[name] = room[start : start + part.nbytes].view(dtype).view(part.shape)
        start += _room(part)
    return found


def _room(part: np.ndarray) -> int:
    return -(-part.nbytes // ALIGNMENT) * ALIGNMENT


def parts_read(batch: Batch) -> dict[str, np.ndarray]:
    """The arrays of a batch that a model reads, by the names of its arguments."""
    parts = {"ids": batch.inputs, "source": batch.source}
    parts |= {"segments": batch.segments, "source_present": batch.source_present}
    return {name: part for name, part in parts.items() if part is not None}


def parts_predicted(batch: Batch, everywhere: bool = False) -> dict[str, np.ndarray]:
    """`targets` and `weights` of a batch, (N,), and where some positions have a weight of 0 the others' `rows` (N,)
    among its B x P positions: the masked objective predicts 15 %, and padding is no target. `everywhere`: all positions
    whatever their weights, so that batches of one shape stay so.

    Rows are filled up to a multiple of `FULL_ROWS`, with a weight of 0. With another number in each batch, hardly any
    memory that a step has freed would fit the next, and the process would grow.
    """
    parts = {"targets": batch.targets.ravel(), "weights": batch.weights.ravel()}
    if everywhere or batch.weights.all():
        return parts
    rows = parts["weights"].nonzero()[0]
    chosen = {name: part[rows] for name, part in parts.items()} | {"rows": rows}
    return {name: np.pad(part, (0, -len(rows) % FULL_ROWS)) for name, part in chosen.items()}


def hidden_states(
    model: Callable[..., torch.Tensor], batch: Batch, device: torch.device, wanted: np.ndarray | None = None
) -> torch.Tensor:
    """What `model` makes of a batch: (B, P, width), or with `wanted` (B, P) bool only where it is True, row by row:
    (N, width)."""
    rows = {} if wanted is None else {"rows": np.flatnonzero(wanted)}
    return model(**sent(parts_read(batch) | rows, device))

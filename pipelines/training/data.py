"""The batches of a run in its order.

The n-th block or pair of a run is a function of seed, weights of the sources, and n. So one integer, the number
consumed, resumes the order.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from lm.costs import flops_per_token
from lm.optim.schedules import batch_size
from lm.task_model import TrainedModel
from pipelines.cli.display import say
from pipelines.dataset.pair_dataset import PairDataset, Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import Recipe
from pipelines.training.batch import ALL_ROWS, Array, Batch, Shard, join
from pipelines.training.batch_loss import summed_loss
from pipelines.training.batch_objectives import PairObjective, StreamObjective, make_objective, validation_batch
from pipelines.training.mixture import Apportionment, Mixture
from pipelines.training.objective_schedule import ObjectiveSchedule
from pipelines.training.seeding import generators
from tokenizer import Tokenizer

# Batches whose pairs are sorted together. More batches leave less padding, but are less random.
CHUNK_BATCHES = 64

Score = tuple[str, float | None, bool]
"""A number by which a run is judged: name, value (None: undefined), and whether it is best at its highest"""


class TrainingData(Protocol):
    """The training and validation batches of one rank."""

    unit: str
    """Name of the examples, in the plural."""
    shares: dict[str, float]
    """Share of each source in the training, by name; a plain dataset has share 1."""
    loss: Callable[..., Tensor]
    """The summed loss of a batch, with the arguments of `summed_loss`"""
    score: Callable[[TrainedModel], Score] | None
    """Measures a model in evaluation mode; None: a run is judged by its validation loss"""

    def step(self, consumed: int, position: float) -> Batch:
        """Return the batch after `consumed` examples (blocks or pairs), at a position of the run in tokens."""

    def size(self, consumed: int, position: float) -> tuple[int, int]:
        """Return the examples and tokens of that batch over all ranks.

        Tokens are those of the blocks, or of both sides of the pairs with their ends and without padding.
        """

    def flops_per_token(self, model: TrainedModel) -> float:
        """Return the floating-point operations of training for each token that `size` counts.

        Positions beside these tokens, such as `<|cls|>` and sentinels, cost too; padding does not count.
        """

    def validation(self, source: str, tokens: int, rows: int) -> Iterator[Batch]:
        """Yield about the first `tokens` tokens of a source's validation split, at most `rows` examples a rank at a
        time."""


class BlockLoader:
    """Training batches of the blocks of one stream.

    `sampling` "permutation" visits every block once an epoch, in an order drawn by (seed, epoch); "crops" reads at
    random offsets of the stream, drawn by (seed, number of the crop).
    """

    def __init__(self, stream: TokenStream, objective: StreamObjective, sampling: str, seed: int) -> None:
        self.stream, self.objective, self.seed = stream, objective, seed
        self._crops = sampling == "crops"
        self._order = lru_cache(maxsize=2)(self._permutation)

    def batch(self, numbers: Array, objective: StreamObjective | None = None) -> Batch:
        """Return the blocks with these numbers (B,) in the order of training.

        If `objective` has shorter sequences than the blocks, each block becomes several consecutive rows.
        """
        objective = objective or self.objective
        if self._crops:
            epochs = np.zeros_like(numbers)
            starts = self._crop_starts(numbers)
        else:
            epochs, numbers = np.divmod(numbers, self.stream.blocks)
            for epoch in np.unique(epochs).tolist():
                now = epochs == epoch
                numbers[now] = self._order(epoch)[numbers[now]]
            starts = numbers * self.objective.length
        draws = np.stack([np.full_like(numbers, self.seed), epochs, numbers], axis=1)
        if (parts := self.objective.length // objective.length) > 1:
            within = np.tile(np.arange(parts), len(starts))
            starts = np.repeat(starts, parts) + within * objective.length
            # The fourth number of a draw is 1 for the start of a crop, 2 or 3 for halves, 4 to 7 for quarters.
            draws = np.column_stack([np.repeat(draws, parts, axis=0), parts + within])
        return objective.batch(self.stream, starts, draws)

    def _crop_starts(self, numbers: Array) -> Array:
        """Return the random start of each crop."""
        # A crop has a successor for its last token: it reads one token more than its length.
        count = max(1, self.stream.tokens - self.objective.length)
        seeds = np.stack([np.full_like(numbers, self.seed), 0 * numbers, numbers, np.ones_like(numbers)], axis=1)
        return np.array([generator.integers(count) for generator in generators(seeds)], np.int64)

    def _permutation(self, epoch: int) -> Array:
        return np.random.default_rng((self.seed, epoch)).permutation(self.stream.blocks)


class PairLoader:
    """Training batches of pairs with similar lengths; each pair once an epoch.

    An epoch is a permutation of all pairs, cut into chunks. Within a chunk the pairs are sorted by length and cut into
    batches, and the batches are shuffled. So only one chunk is sorted at a time. `batch_tokens` bounds the positions of
    a batch (the longest source plus the longest target, times the pairs); a batch has at least one pair.
    """

    def __init__(self, pairs: Pairs, objective: PairObjective, batch_tokens: int, seed: int) -> None:
        self.pairs, self.objective = pairs, objective
        self._batch_tokens, self._seed = batch_tokens, seed
        self._sources, self._targets = objective.lengths(pairs)
        mean = float(self._sources.mean() + self._targets.mean())
        self._chunk_pairs = max(1, round(CHUNK_BATCHES * batch_tokens / mean))
        self._order = lru_cache(maxsize=2)(self._permutation)
        self._batches = lru_cache(maxsize=2)(self._cut_into_batches)

    def batch(self, consumed: int, shard: Shard = ALL_ROWS) -> Batch:
        """Return a rank's rows of the batch after the first `consumed` pairs of the run."""
        pairs = self.rows(consumed)
        rows, belongs = shard.rows(len(pairs))
        return self.objective.batch(self.pairs, pairs[rows]).weighing_only(belongs)

    def size(self, consumed: int) -> tuple[int, int]:
        """Return the pairs and tokens of that batch, ends included, without padding."""
        rows = self.rows(consumed)
        return len(rows), int(self._sources[rows].sum() + self._targets[rows].sum())

    def rows(self, consumed: int) -> Array:
        """Return the pair numbers of the batch after the first `consumed` pairs, which must be whole batches."""
        epoch, within = divmod(consumed, len(self.pairs))
        chunk, offset = divmod(within, self._chunk_pairs)
        rows, bounds = self._batches(epoch, chunk)
        first = int(np.searchsorted(bounds, offset))
        assert bounds[first] == offset, "pairs consumed are no whole batches"
        return rows[bounds[first] : bounds[first + 1]]

    def _permutation(self, epoch: int) -> Array:
        return np.random.default_rng((self._seed, epoch)).permutation(len(self.pairs))

    def _cut_into_batches(self, epoch: int, chunk: int) -> tuple[Array, Array]:
        """Return the pair numbers of a chunk in training order, and the bounds of its batches (batches + 1,)."""
        rows = self._order(epoch)[chunk * self._chunk_pairs : (chunk + 1) * self._chunk_pairs]
        rows = rows[np.lexsort((self._sources[rows], self._targets[rows]))]
        batches, start, widest = [], 0, (0, 0)
        sources, targets = self._sources[rows].tolist(), self._targets[rows].tolist()
        for end, lengths in enumerate(zip(sources, targets, strict=True)):
            wider = max(widest[0], lengths[0]), max(widest[1], lengths[1])
            if end > start and (end + 1 - start) * sum(wider) > self._batch_tokens:
                batches.append(rows[start:end])
                start, wider = end, lengths
            widest = wider
        batches.append(rows[start:])
        order = np.random.default_rng((self._seed, epoch, chunk)).permutation(len(batches))
        shuffled = [batches[number] for number in order.tolist()]
        return np.concatenate(shuffled), np.cumsum([0, *map(len, shuffled)])


class BlockData:
    """Blocks of one token stream, or of several streams in proportion to their weights.

    Each stream gives its blocks in the same order, and with the same masks, as in a run on this stream alone.
    """

    unit = "blocks"
    loss = staticmethod(summed_loss)
    score: Callable[[TrainedModel], Score] | None = None

    def __init__(
        self,
        mixture: Mixture,
        objective: StreamObjective,
        schedule: ObjectiveSchedule,
        config: TrainConfig,
        shard: Shard = ALL_ROWS,
    ) -> None:
        """`objective` is for validation, `schedule` for training."""
        self.objective, self.shard, self.shares = objective, shard, mixture.shares
        self._schedule = schedule
        self._validation = dict(zip(mixture.names, mixture.splits("validation"), strict=True))
        self._loaders = [
            BlockLoader(stream, objective, config.sampling, config.seed) for stream in mixture.splits("train")
        ]
        self._apportionment = Apportionment(mixture.weights)
        self._config = config

    def step(self, consumed: int, position: float) -> Batch:
        objective = self._schedule.at(position)
        rows, belongs = self.shard.rows(self._blocks(position))
        sources, numbers = self._apportionment.locate(consumed + rows)
        places = [np.flatnonzero(sources == source) for source in range(len(self._loaders))]
        made = [
            loader.batch(numbers[place], objective)
            for loader, place in zip(self._loaders, places, strict=True)
            if len(place)
        ]
        parts = np.arange(self.objective.length // objective.length)
        order = np.argsort(np.concatenate(places))[:, None] * len(parts) + parts
        return join(made, order.ravel()).weighing_only(np.repeat(belongs, len(parts)))

    def size(self, consumed: int, position: float) -> tuple[int, int]:
        return self._blocks(position), self._blocks(position) * self.objective.length

    def flops_per_token(self, model: TrainedModel) -> float:
        length, source = self.objective.positions, self.objective.source_positions
        of_position = flops_per_token(model, length, self._config.masked_share, source_length=source)
        return of_position * ((length + source) / self.objective.length)

    def validation(self, source: str, tokens: int, rows: int) -> Iterator[Batch]:
        stream = self._validation[source]
        blocks = min(max(1, tokens // self.objective.length), stream.blocks)
        rows *= self.shard.world_size
        for first in range(0, blocks, rows):
            yield validation_batch(stream, self.objective, first, min(rows, blocks - first), self.shard)

    def _blocks(self, position: float) -> int:
        full, warmup = self._config.batch_tokens, self._config.batch_warmup_tokens
        size = batch_size(position, start=self._config.batch_tokens_start, full=full, warmup=warmup)
        return max(1, round(size / self.objective.length))


class PairData:
    """Pairs of a source and a target."""

    unit = "pairs"
    loss = staticmethod(summed_loss)
    score: Callable[[TrainedModel], Score] | None = None

    def __init__(
        self, dataset: PairDataset, objective: PairObjective, config: TrainConfig, shard: Shard = ALL_ROWS
    ) -> None:
        self.shard, self.shares = shard, {dataset.place.name: 1.0}
        self.objective, self._validation = objective, dataset.split("validation")
        train = dataset.split("train")
        self.loader = PairLoader(train, objective, config.batch_tokens, config.seed)
        self._mean_source, self._mean_target = (float(side.mean()) for side in objective.lengths(train))
        if cut := objective.cut(train):
            say(
                f"{cut:,} of {len(train):,} pairs are longer than {objective.positions} tokens, their end included: cut"
            )

    def step(self, consumed: int, position: float) -> Batch:
        return self.loader.batch(consumed, self.shard)

    def size(self, consumed: int, position: float) -> tuple[int, int]:
        return self.loader.size(consumed)

    def flops_per_token(self, model: TrainedModel) -> float:
        return flops_per_token(model, self._mean_target, source_length=self._mean_source)

    def validation(self, source: str, tokens: int, rows: int) -> Iterator[Batch]:
        ends = np.cumsum(sum(self.objective.lengths(self._validation)))
        pairs = min(len(ends), int(np.searchsorted(ends, tokens)) + 1)
        rows *= self.shard.world_size
        for first in range(0, pairs, rows):
            numbers, belongs = self.shard.rows(min(rows, pairs - first))
            yield self.objective.batch(self._validation, first + numbers).weighing_only(belongs)


class Prefetcher:
    """Gives the batches of `data` in order, and makes the next one in a thread while the model computes."""

    def __init__(self, data: TrainingData) -> None:
        self._data = data
        self._pool = ThreadPoolExecutor(1, "batches")
        self._next: tuple[tuple[int, float], Future[Batch]] | None = None

    def step(self, consumed: int, position: float) -> Batch:
        """Return the batch of `data.step`."""
        if self._next is None or self._next[0] != (consumed, position):
            self.begin(consumed, position)
        assert self._next is not None
        return self._next[1].result()

    def begin(self, consumed: int, position: float) -> None:
        """Begin to make the batch of `data.step` in the thread."""
        self._next = (consumed, position), self._pool.submit(self._data.step, consumed, position)

    def close(self) -> None:
        """Discard the prefetched batch."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._next = None


def open_training_data(
    recipe: Recipe,
    mixture: Mixture,
    tokenizer: Tokenizer,
    shard: Shard = ALL_ROWS,
    facts: Mapping[str, Any] | None = None,
) -> TrainingData:
    """Return a rank's batches for `recipe`; `mixture` is from `open_sources` for the recipe's objective.

    For `facts` see `make_objective`.
    """
    dataset = mixture.first
    length = recipe.model.context_length if isinstance(dataset, PairDataset) else dataset.context_length
    objective = make_objective(recipe.objective, length, tokenizer, recipe.model.document_mask, facts)
    if isinstance(dataset, PairDataset):
        assert isinstance(objective, PairObjective)
        return PairData(dataset, objective, recipe.train, shard)
    assert not isinstance(objective, PairObjective)
    if recipe.model.document_mask and dataset.info.get("separator") is None:
        raise ValueError(
            f"model.document_mask needs a separator before each document, but {dataset.place} has no separators: build "
            "the dataset with separators, or leave model.document_mask out"
        )
    return BlockData(mixture, objective, ObjectiveSchedule(recipe, length, tokenizer, facts), recipe.train, shard)

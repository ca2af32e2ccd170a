"""The batches of a task, in order.

The n-th example of a run is a function of seed, lengths and n. So the number of examples consumed is enough to resume.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from torch import Tensor

from lm.costs import flops_per_token
from lm.task_model import TrainedModel
from pipelines.tasks.examples import Encoded, batch_of
from pipelines.training.batch import ALL_ROWS, Array, Batch, Shard
from pipelines.training.batch_loss import summed_loss
from pipelines.training.data import Score

# Batches whose examples are sorted together, so that the examples of a batch have similar lengths.
SORTED_BATCHES = 16


class ExampleOrder:
    """The order of N training examples: each once per epoch, in batches of similar length.

    An epoch is a permutation drawn by (seed, epoch), cut into chunks of SORTED_BATCHES batches. Within a chunk the
    examples are sorted by length and cut into batches. Then all batches of the epoch are shuffled.
    """

    def __init__(self, lengths: Array, batch_size: int, seed: int) -> None:
        self._lengths, self._size, self._seed = lengths, batch_size, seed
        self._epoch = lru_cache(maxsize=2)(self._batches)

    def rows(self, consumed: int) -> Array:
        """Return the example indices of the next batch. The `consumed` examples must be whole batches."""
        epoch, within = divmod(consumed, len(self._lengths))
        batches, starts = self._epoch(epoch)
        place = int(np.searchsorted(starts, within))
        assert starts[place] == within, "examples consumed are no whole batches"
        return batches[place]

    def _batches(self, epoch: int) -> tuple[list[Array], Array]:
        """Return the batches of an epoch, and the number of examples before each batch."""
        generator = np.random.default_rng((self._seed, epoch))
        order, chunk = generator.permutation(len(self._lengths)), SORTED_BATCHES * self._size
        batches: list[Array] = []
        for start in range(0, len(order), chunk):
            near = order[start : start + chunk]
            near = near[np.argsort(self._lengths[near], kind="stable")]
            batches += [near[i : i + self._size] for i in range(0, len(near), self._size)]
        shuffled = [batches[i] for i in generator.permutation(len(batches))]
        return shuffled, np.cumsum([0, *map(len, shuffled)])[:-1]


class TaskData:
    """The training and validation examples of a task, as a `pipelines.training.data.TrainingData`."""

    unit = "examples"

    def __init__(
        self,
        training: Sequence[Encoded],
        validation: Sequence[Encoded],
        batch_size: int,
        seed: int,
        shard: Shard = ALL_ROWS,
        loss: Callable[..., Tensor] = summed_loss,
        score: Callable[[TrainedModel], Score] | None = None,
    ) -> None:
        """`loss`: summed loss of a batch, called like `summed_loss`. `score`: see `TrainingData`."""
        self.shard, self.loss, self.score, self.shares = shard, loss, score, {"validation": 1.0}
        self._training, self._validation = training, validation
        self._tokens = np.array([example.tokens for example in training])
        self._order = ExampleOrder(self._tokens, batch_size, seed)

    @property
    def tokens(self) -> int:
        """Tokens of an epoch, without padding."""
        return int(self._tokens.sum())

    def step(self, consumed: int, position: float) -> Batch:
        return self._batch(self._training, self._order.rows(consumed))

    def size(self, consumed: int, position: float) -> tuple[int, int]:
        rows = self._order.rows(consumed)
        return len(rows), int(self._tokens[rows].sum())

    def flops_per_token(self, model: TrainedModel) -> float:
        mean = float(self._tokens.mean())
        if model.encoder is None or model.encoder is model.stack:
            return flops_per_token(model, mean)
        return flops_per_token(model, mean / 2, source_length=mean / 2)

    def validation(self, source: str, tokens: int, rows: int) -> Iterator[Batch]:
        order = np.argsort([example.tokens for example in self._validation], kind="stable")
        rows *= self.shard.world_size
        for first in range(0, len(order), rows):
            yield self._batch(self._validation, order[first : first + rows])

    def _batch(self, examples: Sequence[Encoded], numbers: Array) -> Batch:
        """Return this rank's rows of the batch of the examples with these indices."""
        rows, belongs = self.shard.rows(len(numbers))
        return batch_of([examples[i] for i in numbers[rows]]).weighing_only(belongs)

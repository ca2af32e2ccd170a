"""Batches made ahead, while the model is busy with the one before."""

from concurrent.futures import Future, ThreadPoolExecutor

from pipelines.training.data import TrainingData
from pipelines.training.loader import Batch


class Prefetcher:
    """Gives the batches of `data` in order."""

    def __init__(self, data: TrainingData) -> None:
        self._data = data
        self._pool = ThreadPoolExecutor(1, "batches")
        self._next: tuple[tuple[int, int], Future[Batch]] | None = None

    def step(self, consumed: int, tokens: int) -> Batch:
        """The batch of `data.step`; the one that follows it is begun."""
        if self._next is None or self._next[0] != (consumed, tokens):
            self._begin(consumed, tokens)
        batch = self._next[1].result()
        examples, more = self._data.size(consumed, tokens)
        self._begin(consumed + examples, tokens + more)
        return batch

    def close(self) -> None:
        """Forget what was begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._next = None

    def _begin(self, consumed: int, tokens: int) -> None:
        self._next = (consumed, tokens), self._pool.submit(self._data.step, consumed, tokens)

"""One run on the cores of a CPU: each has a thread with rows of the batch of its own, and whole products to itself.

Two cores that share every product wait for each other after each, and on a machine with other work every time for the
one that was held up; a thread that has its own rows waits once a step.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from lm.model import LanguageModel
from pipelines.training.config import TrainConfig
from pipelines.training.loader import Batch
from pipelines.training.machine import cores_a_product
from pipelines.training.parallel import OneProcess

LEAST_TOKENS = 1024  # of a thread: with fewer its products are too small to be worth a gradient of its own
MOST = 8  # threads, which share Python's interpreter between their products


def with_threads(parallel: OneProcess, model: LanguageModel, config: TrainConfig) -> OneProcess:
    """`parallel`, or where it is a single process with several cores of a CPU for a large enough batch, its threads.

    Not where they would draw random numbers, in any order; nor for what torch.compile makes: its first gradients in two
    threads were wrong.
    """
    parameters, shape = list(model.parameters()), model.config
    drawn = shape.dropout or shape.stochastic_depth
    if parallel.kind != "none" or parameters[0].device.type != "cpu" or drawn or config.compile:
        return parallel
    cores = torch.get_num_threads()
    threads = thread_count(cores, config.batch_tokens)
    return Threads(parameters, cores, threads) if threads > 1 else parallel


def thread_count(cores: int, tokens: int) -> int:
    """How many threads work on a batch of so many tokens: as many as share the cores evenly."""
    most = max(1, min(cores, MOST, tokens // LEAST_TOKENS))
    return max(count for count in range(1, most + 1) if cores % count == 0)


class Threads(OneProcess):
    """A run on a CPU whose threads each work out the gradient of some rows, in one model. Their sum is taken in the
    order of the rows, so that the same number of cores makes the same bits. Each thread holds a gradient of all
    parameters."""

    def __init__(self, parameters: Iterable[Tensor], cores: int, threads: int) -> None:
        self.cores, self.threads = cores, threads
        self._parameters = list(parameters)
        self._others = ThreadPoolExecutor(threads - 1, "rows")

    @property
    def workers(self) -> str:
        return f"{self.threads} threads with rows of their own"

    def gradient(
        self, batch: Batch, size: int, loss_of: Callable[[Batch], Tensor], scaled: Callable[[Tensor], Tensor]
    ) -> Tensor:
        tokens = batch.inputs.size + (0 if batch.source is None else batch.source.size)
        threads = min(self.threads, len(batch.inputs), thread_count(self.cores, tokens))
        if threads < 2:
            return super().gradient(batch, size, loss_of, scaled)
        first, *others = batch.split(-(-len(batch.inputs) // threads))
        at_once = -(-size // threads)
        cores = self.cores // threads
        with cores_a_product(cores):
            parts = [(cores, part, at_once, loss_of, scaled) for part in others]
            started = [self._others.submit(self._part_of_another, *part) for part in parts]
            try:
                total, gradients = self._part(first, at_once, loss_of, scaled)
            finally:
                wait(started)
        for other_total, other_gradients in (part.result() for part in started):
            total = total + other_total
            _add(gradients, other_gradients)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        return total

    def _part_of_another(self, cores: int, *arguments: Any) -> tuple[Tensor, list[Tensor | None]]:
        # A thread remembers how many cores it had at first, and another number of them makes other bits.
        torch.set_num_threads(cores)
        return self._part(*arguments)

    def _part(
        self, rows: Batch, size: int, loss_of: Callable[[Batch], Tensor], scaled: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The loss of some rows and its gradient, which threads cannot add up in the parameters at once."""
        total = torch.zeros(())
        gradients: list[Tensor | None] = [None] * len(self._parameters)
        for micro in rows.split(size):
            loss = loss_of(micro)
            _add(gradients, torch.autograd.grad(scaled(loss), self._parameters, allow_unused=True))
            total = total + loss.detach()
        return total, gradients


def _add(sums: list[Tensor | None], more: Sequence[Tensor | None]) -> None:
    """Add `more` to `sums`, item by item; None is a parameter without a gradient. Not in place: two parameters may have
    been given one tensor."""
    for number, gradient in enumerate(more):
        if gradient is not None:
            sums[number] = gradient if sums[number] is None else sums[number] + gradient

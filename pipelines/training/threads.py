"""Row threads: the strategy in which several CPU threads train one model, each on its own rows of the batch.

When cores share every operation, they wait for each other hundreds of times per step. Each wait can cost a time slice
if another process uses one of the cores. Row threads wait only a few times per step, and they sleep while they wait.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from lm.optim.optimizer_settings import OptimizerKind
from lm.optim.optimizers import Optimizers, balance, optimizer_classes
from lm.task_model import TrainedModel
from pipelines.machine import cores_per_operation
from pipelines.recipes.config import TrainConfig
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import LossFunction
from pipelines.training.parallel import OneProcess

LEAST_TOKENS = 512  # per thread: below it, Python and a gradient per thread cost more than the second core gains
LEAST_PARAMETERS = 2_000_000  # below it, sharing passes over the parameters gains less than waking a thread costs
MOST = 8  # threads, because Python's interpreter lock allows one at a time between operations

Item = TypeVar("Item")
Result = TypeVar("Result")
Gradients = list[Tensor | None]
"""One gradient per parameter; None for a parameter that the loss does not depend on."""


def with_threads(parallel: OneProcess, model: TrainedModel, config: TrainConfig) -> OneProcess:
    """Return row threads for a single CPU process whose batches are large enough; otherwise return `parallel`.

    Models that draw random numbers train in one thread, because the order of draws in several threads is undefined.
    Compiled models do too, because the first gradients that torch.compile computed in two threads were wrong.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    draws = any(isinstance(module, nn.Dropout) and module.p for module in model.modules())
    draws = draws or model.config.stochastic_depth > 0
    if parallel.kind != "none" or parameters[0].device.type != "cpu" or draws or config.compile:
        return parallel
    cores = torch.get_num_threads()
    threads = thread_count(cores, config.batch_tokens)
    return Threads(parameters, cores, threads) if threads > 1 else parallel


def thread_count(cores: int, tokens: int) -> int:
    """Return the number of threads for a batch of `tokens` tokens: a divisor of `cores`, so all get equally many."""
    most = max(1, min(cores, MOST, tokens // LEAST_TOKENS))
    return max(count for count in range(1, most + 1) if cores % count == 0)


class Threads(OneProcess):
    """Threads that each compute the gradient of their rows and then update their share of the parameters.

    Gradients are summed in the order of the rows, so the same number of cores gives the same bits. Each thread
    allocates a gradient for every parameter.
    """

    def __init__(self, parameters: Iterable[Tensor], cores: int, threads: int) -> None:
        self.cores, self.threads = cores, threads
        self._parameters = list(parameters)
        large = sum(parameter.numel() for parameter in self._parameters) >= LEAST_PARAMETERS
        places = [(place, parameter.numel()) for place, parameter in enumerate(self._parameters)]
        self._portions = balance(places, threads if large else 1)
        self._others = ThreadPoolExecutor(threads - 1, "rows")

    @property
    def workers(self) -> str:
        return f"{self.threads} threads, each with its own rows"

    def gradient(self, loss: LossFunction, batch: Batch, rows: int, weight: float, scale: Tensor | float) -> Tensor:
        parts = self._split(batch)
        if len(parts) < 2:
            return super().gradient(loss, batch, rows, weight, scale)
        of_part = partial(self._gradient_of, loss, -(-rows // len(parts)), weight, scale)
        with self._meanwhile(of_part, parts[1:]) as others:
            first = of_part(parts[0])
        results = [first, *(other.result() for other in others)]
        self._in_threads(partial(self._store_sums, [gradients for _, gradients in results]), self._portions)
        return torch.stack([total for total, _ in results]).sum()

    def measure(self, loss: LossFunction, batch: Batch) -> float:
        return sum(self._in_threads(partial(super().measure, loss), self._split(batch)))

    def clip(self, parameters: Sequence[Tensor], limit: float) -> Tensor:
        portions = [[self._parameters[place] for place in places] for places in self._portions]
        found = ([p.grad for p in portion if p.grad is not None] for portion in portions)
        gradients = [some for some in found if some]
        norms = self._in_threads(torch._foreach_norm, gradients)
        norm: Tensor = torch.linalg.vector_norm(torch.stack([each for some in norms for each in some]))
        factor = limit / (float(norm) + 1e-6)
        if factor < 1.0:
            self._in_threads(lambda some: torch._foreach_mul_(some, factor), gradients)
        return norm

    def optimizer_shares(self, kind: OptimizerKind) -> int:
        by_products = any(optimizer.bound_by_products for optimizer in optimizer_classes(kind))
        return self.threads if by_products else len(self._portions)

    def update(self, optimizers: Optimizers) -> None:
        self._in_threads(optimizers.step_share, range(len(optimizers.shares)))

    def _split(self, batch: Batch) -> list[Batch]:
        """Return each thread's rows. A batch with few rows or tokens uses fewer threads."""
        tokens = batch.inputs.size + (0 if batch.source is None else batch.source.size)
        threads = min(self.threads, len(batch.inputs), thread_count(self.cores, tokens))
        return list(batch.split(-(-len(batch.inputs) // threads)))

    def _gradient_of(
        self, loss: LossFunction, rows: int, weight: float, scale: Tensor | float, batch: Batch
    ) -> tuple[Tensor, Gradients]:
        """Return a part of the mean loss and its gradients, without touching p.grad, which all threads share."""
        total = torch.zeros(())
        gradients: Gradients = [None] * len(self._parameters)
        for micro in batch.split(rows):
            part = loss(micro) / weight
            more = torch.autograd.grad(part * scale, self._parameters, allow_unused=True)
            gradients = [_sum(pair) for pair in zip(gradients, more, strict=True)]
            total = total + part.detach()
        return total, gradients

    def _store_sums(self, gradients: Sequence[Gradients], places: Iterable[int]) -> None:
        """Store the sums over threads in the parameters with the numbers `places`."""
        for place in places:
            self._parameters[place].grad = _sum(part[place] for part in gradients)

    def _in_threads(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results of `work` for all items, in order. This thread takes the first item."""
        with self._meanwhile(work, items[1:]) as others:
            first = work(items[0])
        return [first, *(other.result() for other in others)]

    @contextmanager
    def _meanwhile(self, work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[list[Future[Result]]]:
        """Let other threads do the `work` of each item within the context, whose end waits for them.

        Every thread, this one included, gets the same number of cores.
        """
        cores = self.cores // (1 + len(items))

        def with_cores(item: Item) -> Result:
            torch.set_num_threads(cores)  # a per-thread setting; another number gives other bits
            return work(item)

        with cores_per_operation(cores):
            started = [self._others.submit(with_cores, item) for item in items]
            try:
                yield started
            finally:
                wait(started)


def _sum(gradients: Iterable[Tensor | None]) -> Tensor | None:
    """Return the sum in this order. It is not in place, because autograd may return one tensor for two parameters."""
    total = None
    for gradient in gradients:
        if gradient is not None:
            total = gradient if total is None else total + gradient
    return total

"""A contestant of benchmarks.pretrain. It reads one command per line from standard input and prints one answer each.

`train N` takes N optimizer steps, and `profile N` takes N more under the profiler. `queue N` takes N of our steps and
fails if the host waits for all work of the GPU. `rest` gives unused GPU memory back. Other output to standard output,
such as a library's banner, goes to standard error.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch

from benchmarks.harness import Clock, answers, peak_bytes, reset_peak
from benchmarks.training_models import CASES, OURS, Case, build_ours, build_peer
from benchmarks.training_profile import seconds_by_group
from lm.objectives import masked_token
from lm.optim.optimizers import partition
from lm.optim.schedules import warmup_cosine
from pipelines.training.batch_loss import summed_loss

SPECIAL = {"mask_id": 2, "cls_id": 3, "sep_id": 4, "special_ids": range(5)}
LEARNING_RATE, FINAL, WEIGHT_DECAY, BETAS, EPS, CLIP = 6e-4, 0.1, 0.1, (0.9, 0.95), 1e-8, 1.0


@dataclass(frozen=True)
class Job:
    """The settings of a contestant."""

    peer: str
    model: str
    device: str
    dtype: str
    """dtype of activations and matrix products; weights and their updates are float32."""
    compiled: bool
    tokens: str
    """File of uint16 ids."""
    steps: int
    """Steps of the whole learning-rate schedule."""
    rise: int
    """Warm-up steps of the learning rate."""


def batch_of(case: Case, tokens: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the inputs, targets and weights of a step, each (B, T), the same for all contestants."""
    generator = np.random.default_rng((0, number))
    length = case.config.context_length
    starts = generator.integers(0, len(tokens) - length - 1, size=case.batch)
    blocks = np.stack([tokens[start : start + length + 1] for start in starts]).astype(np.int64)
    if not case.masked:
        parts = [blocks[:, :-1], blocks[:, 1:]]
        return *(np.ascontiguousarray(part) for part in parts), np.ones((case.batch, length), np.float32)
    generators = [generator] * len(blocks)
    return masked_token(blocks[:, : length - 2], generators, vocab_size=case.config.vocab_size, **SPECIAL)


@contextmanager
def no_waits() -> Iterator[None]:
    """Raise RuntimeError at the end of the context if the host has waited for all work of the GPU.

    A wait for an event, such as the end of an earlier step, does not count.
    """
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if waits:
        raise RuntimeError(f"the host waited for all work of the GPU {len(waits)} times in a step")


class OurSteps:
    """The trainer of `bytelm pretrain`, on the batches of `batch_of`."""

    loss = staticmethod(summed_loss)

    def __init__(self, job: Job, case: Case, tokens: np.ndarray) -> None:
        from pipelines.recipes.config import TrainConfig
        from pipelines.training.loop import Trainer

        config = TrainConfig(
            tokens=job.steps * case.tokens,
            batch_tokens=case.tokens,
            micro_batch=case.batch // case.micro_batches,
            lr=LEARNING_RATE,
            min_lr_ratio=FINAL,
            warmup_tokens=job.rise * case.tokens,
            weight_decay=WEIGHT_DECAY,
            beta1=BETAS[0],
            beta2=BETAS[1],
            eps=EPS,
            grad_clip=CLIP,
            compile=job.compiled,
        )
        model = build_ours(case).to(job.device)
        model.compute_dtype = getattr(torch, job.dtype)
        self._case, self._tokens, self._on_gpu = case, tokens, job.device == "cuda"
        self._trainer = Trainer(None, model, self, config)

    def step(self, consumed: int, position: float):
        """Return the batch after `consumed` sequences; the trainer's data interface."""
        from pipelines.training.batch import Batch

        return Batch(*batch_of(self._case, self._tokens, consumed // self._case.batch))

    def size(self, consumed: int, position: float) -> tuple[int, int]:
        """Return the number of sequences and tokens of that batch."""
        return self._case.batch, self._case.tokens

    def train(self) -> torch.Tensor:
        """Take a step and return the loss as a tensor, so that the CPU does not wait for a GPU."""
        return self._trainer.step().numbers.values[0]

    def queue(self) -> None:
        """Take a step. On a GPU, raises RuntimeError if the host waits for more than the end of an earlier step."""
        with no_waits() if self._on_gpu else nullcontext():
            self._trainer.step()


class PeerSteps:
    """The plain training loop of a peer's examples, with fused AdamW and weight decay on matrices only."""

    def __init__(self, job: Job, case: Case, tokens: np.ndarray) -> None:
        self._job, self._case, self._tokens = job, case, tokens
        device, dtype = torch.device(job.device), getattr(torch, job.dtype)
        self._model, self._loss = build_peer(job.peer, case, device, dtype, job.compiled)
        ((decayed, kept),) = partition(self._model, "adamw").values()
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": kept, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS, fused=True)
        self._done = 0

    def train(self) -> torch.Tensor:
        """Take a step and return the loss as a tensor, so that the CPU does not wait for a GPU."""
        rate = warmup_cosine(self._done, warmup=self._job.rise, total=self._job.steps, final=FINAL)
        for group in self._optimizer.param_groups:
            group["lr"] = rate * LEARNING_RATE
        inputs, targets, weights = batch_of(self._case, self._tokens, self._done)
        labels = np.where(weights == 0, -100, targets)
        device, parts, loss = self._job.device, self._case.micro_batches, torch.zeros((), device=self._job.device)
        # Each part has as many targets as the others, except in masked batches, which have one part.
        for some in zip(*(torch.from_numpy(part).chunk(parts) for part in (inputs, labels)), strict=True):
            mean = self._loss(*(part.to(device) for part in some)) / parts
            mean.backward()
            loss += mean.detach()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._done += 1
        return loss


def train(step: Callable, steps: int, device: str) -> dict:
    """Return the seconds and losses (nats) of `steps` steps, and their peak memory in bytes."""
    reset_peak(device)
    clock, losses = Clock(device), []
    for _ in range(steps):
        losses.append(step())
        clock.mark()
    seconds = clock.seconds()
    return {"seconds": seconds, "losses": [float(loss) for loss in losses], "peak": peak_bytes(device)}


def main() -> None:
    answer = answers()
    started = time.perf_counter()
    job = Job(**json.loads(sys.argv[1]))
    steps = (OurSteps if job.peer == OURS else PeerSteps)(
        job, CASES[job.model], np.memmap(job.tokens, dtype=np.uint16, mode="r")
    )
    answer({"ready": time.perf_counter() - started, "version": None if job.peer == OURS else version(job.peer)})
    for line in sys.stdin:
        command, _, number = line.strip().partition(" ")
        if command == "rest":
            if job.device == "cuda":
                torch.cuda.empty_cache()
            answer({})
        elif command == "train":
            answer(train(steps.train, int(number), job.device))
        elif command == "queue":
            for _ in range(int(number)):
                steps.queue()
            answer({"queued": int(number)})
        else:
            answer(seconds_by_group(steps.train, int(number), job.device))


if __name__ == "__main__":
    main()

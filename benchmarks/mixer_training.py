"""Small models of sequence mixers with equal parameters, and a worker of benchmarks.mixers that trains them.

The worker takes orders, each a `Job` as JSON. It answers with points of the learning curve, then with the results.
"""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import Clock, answers
from lm.config import ModelConfig
from lm.config_costs import flops_per_token, parameter_table
from lm.model import LanguageModel
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers
from lm.optim.schedules import warmup_cosine

Batch = tuple[Tensor, Tensor, Tensor]
"""ids (B, T), the positions of the B x T that are predicted, and their targets: all int64."""

TEXT = ModelConfig(vocab_size=256, context_length=256, layers=4, width=144, heads=3)
RECALL = ModelConfig(vocab_size=9 * 64 + 8, context_length=128, layers=2, width=64, heads=2, initialization="xavier")
PAIRS = (8, 16, 32, 64)
KEYS, VALUES = 64, 8  # of recall
POINTS = 10  # of a learning curve
CURVE_SHARE = 8  # points of a curve are measured on this part of the held-out tokens
RECALL_TOKENS = 1024  # in each batch
NAMES = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training. `text`: folder with the bytes of the splits; empty for recall."""

    mixers: str
    """Pattern, such as mamba2 + attention"""
    seed: int
    tokens: int
    lr: float
    batch_tokens: int
    test_tokens: int
    """Held-out tokens; of recall, for each number of pairs"""
    text: str = ""
    device: str = "cpu"
    threads: int = 1


def fitted(base: ModelConfig, mixers: str) -> ModelConfig:
    """Return the model with other mixers, and the width of the MLP that keeps the number of parameters.

    `mixers` as in `Job`. The uniform average has learned positions, since it cannot tell positions apart.
    """
    pattern = tuple(mixers.split(" + "))
    positions = "learned" if pattern == ("average",) else base.positions

    def shape(width: int) -> ModelConfig:
        return replace(base, mixers=pattern, positions=positions, mlp_width=width)

    wanted = parameters(base)
    one, two = parameters(shape(1)), parameters(shape(2))
    return shape(max(1, round(1 + (wanted - one) / (two - one))))


def parameters(config: ModelConfig) -> int:
    return parameter_table(config)["total"]


def crops(data: np.ndarray, sequences: int, length: int, generator: torch.Generator) -> Batch:
    """Return random pieces of a text, whose every byte is predicted."""
    starts = torch.randint(len(data) - length, (sequences,), generator=generator)
    return whole_blocks(data, starts.numpy(), length)


def whole_blocks(data: np.ndarray, starts: np.ndarray, length: int) -> Batch:
    rows = torch.from_numpy(np.stack([data[start : start + length + 1] for start in starts]).astype(np.int64))
    return rows[:, :-1], torch.arange(rows[:, 1:].numel()), rows[:, 1:].flatten()


def recall(sequences: int, pairs: int, generator: torch.Generator) -> Batch:
    """Return sequences of pairs of a key and a value, then the keys in another order, whose values are predicted.

    A pair is one token, so that one lookup finds a value. Keys differ within a sequence.
    """
    keys = torch.rand(sequences, KEYS, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (sequences, pairs), generator=generator)
    order = torch.rand(sequences, pairs, generator=generator).argsort(1)
    ids = torch.cat((VALUES * keys + values, KEYS * VALUES + keys.gather(1, order)), dim=1)
    asked = torch.arange(sequences)[:, None] * 2 * pairs + torch.arange(pairs, 2 * pairs)
    return ids, asked.flatten(), KEYS * (VALUES + 1) + values.gather(1, order).flatten()


class Training:
    """One training of a language model with AdamW, warm-up and a cosine, and clipped gradients."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.config = fitted(TEXT if job.text else RECALL, job.mixers)
        self.model = LanguageModel(self.config, seed=job.seed).to(job.device)
        self.optimizers = build_optimizers(self.model, OptimizerSettings(lr=job.lr))
        self.generator = torch.Generator().manual_seed(job.seed)
        self.steps = max(1, round(job.tokens / job.batch_tokens))
        self.seconds = 0.0
        """Of training steps, without measurements; on a CPU, CPU time"""

    def batch(self, step: int) -> Batch:
        if self.job.text:
            length = self.config.context_length
            return crops(text_split(self.job.text, "train"), self.job.batch_tokens // length, length, self.generator)
        pairs = PAIRS[step % len(PAIRS)]
        return recall(self.job.batch_tokens // (2 * pairs), pairs, self.generator)

    def step(self, step: int) -> None:
        ids, rows, targets = (each.to(self.job.device) for each in self.batch(step))
        factor = warmup_cosine(step, warmup=self.steps / 20, total=self.steps)
        self.optimizers.schedule(factor)
        loss = self.model.loss(self.model(ids, rows=rows), targets) / len(targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizers.step()
        self.optimizers.zero_grad()

    def points(self) -> Iterator[dict]:
        """Train, and yield points of the learning curve."""
        for number in range(POINTS):
            first, stop = (self.steps * n // POINTS for n in (number, number + 1))
            if first == stop:
                continue
            clock = Clock(self.job.device, cpu_time=True)
            for step in range(first, stop):
                self.step(step)
            clock.mark()
            self.seconds += sum(clock.seconds())
            yield {"tokens": stop * self.job.batch_tokens, **self.measure(self.job.test_tokens // CURVE_SHARE)}

    @torch.inference_mode()
    def measure(self, tokens: int) -> dict:
        """Return the bits per byte of `tokens` held-out tokens, or the accuracy by number of pairs."""
        if self.job.text:
            length, data = self.config.context_length, text_split(self.job.text, "validation")
            blocks = max(1, tokens // length)
            starts = np.linspace(0, len(data) - length - 1, blocks).astype(np.int64)
            parts = [whole_blocks(data, part, length) for part in np.array_split(starts, -(-blocks // 32))]
            nats = sum(float(self.model.loss(self.hidden(part), part[2].to(self.job.device))) for part in parts)
            return {"bits": nats / math.log(2) / sum(len(part[2]) for part in parts)}
        generator = torch.Generator().manual_seed(2**32 + 1)  # no seed of training
        tests = {pairs: recall(max(1, tokens // (2 * pairs)), pairs, generator) for pairs in PAIRS}
        return {"accuracy": {str(pairs): self.accuracy(test) for pairs, test in tests.items()}}

    def accuracy(self, batch: Batch) -> float:
        predicted = self.model.logits(self.hidden(batch)).argmax(-1).cpu()
        return (predicted == batch[2]).double().mean().item()

    def hidden(self, batch: Batch) -> Tensor:
        ids, rows, _ = batch
        return self.model(ids.to(self.job.device), rows=rows.to(self.job.device))


@cache
def text_split(folder: str, name: str) -> np.ndarray:
    return np.fromfile(Path(folder) / name, dtype=np.uint8)


def result(training: Training) -> dict:
    """Return what a job measured at its end, and what the model costs."""
    config = training.config
    return {
        **training.measure(training.job.test_tokens),
        "seconds": training.seconds,
        "parameters": parameters(config),
        "flops_per_token": flops_per_token(config),
        "model": asdict(config),
    }


def main() -> None:
    answer = answers()
    answer({"torch": torch.__version__})
    for order in sys.stdin:
        job = Job(**json.loads(order))
        torch.set_num_threads(job.threads)
        torch.set_float32_matmul_precision("high")
        training = Training(job)
        for point in training.points():
            answer({"point": point})
        answer(result(training))


if __name__ == "__main__":
    main()

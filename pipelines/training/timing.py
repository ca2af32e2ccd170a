"""The speed of a training on this machine, measured before the training begins."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lm.costs import flops_per_token, meta_model
from lm.lora import add_lora
from lm.model import LanguageModel
from lm.task_model import TrainedModel
from pipelines.cli.display import duration, quantity, show
from pipelines.cli.waiting import doing
from pipelines.machine import Machine, choose_machine, measured_flops
from pipelines.recipes.recipe import Recipe
from pipelines.training.batch import Batch
from pipelines.training.data import BlockData, TrainingData, open_training_data
from pipelines.training.loop import Trainer
from pipelines.training.mixture import Mixture
from tokenizer import Tokenizer

WARM_UP_STEPS = 2
MEASURED_STEPS, MEASURED_SECONDS = 30, 3.0  # whichever ends first
# The time of a longer step is not measured, but estimated from the speed of matrix products.
LONGEST_STEP = 5.0
# Share of the speed of a large matrix product that training reaches: 0.35 to 0.5 for the recipes that come with bytelm.
UTILISATION = 0.4


@dataclass(frozen=True)
class Speed:
    """The speed of a training."""

    tokens_per_second: float
    measured: bool
    """False if it is estimated from the speed of matrix products"""

    def time_of(self, tokens: int) -> str:
        """Return a sentence about the time of training on `tokens` tokens."""
        how = "measured over a few steps" if self.measured else "estimated from the speed of matrix products"
        rate = quantity(self.tokens_per_second, "tok")
        return f"training takes about {duration(tokens / self.tokens_per_second)}, at {rate}/s ({how})"


def training_flops(machine: Machine) -> float:
    """Return about how many operations per second training reaches on `machine`."""
    settings = torch.get_num_threads(), torch.get_float32_matmul_precision()
    return UTILISATION * measured_flops(machine.device, machine.dtype, *settings)


def training_speed(recipe: Recipe, mixture: Mixture, facts: Mapping[str, Any] | None = None) -> Speed:
    """Return the speed of training `recipe` on `mixture`, from a few steps of a temporary model.

    If a step would take many seconds, no model is built. For `facts` see `make_objective`.
    """
    doing("measuring the speed of training")
    machine = choose_machine(recipe.train.device, recipe.train.dtype, half=True)
    per_second = training_flops(machine) / flops_per_token(meta_model(recipe.model))
    if recipe.train.batch_tokens / per_second > LONGEST_STEP:
        return Speed(per_second, measured=False)
    data = open_training_data(recipe, mixture, Tokenizer.load(mixture.first.folder), facts=facts)

    def build() -> LanguageModel:
        model = LanguageModel(recipe.model, recipe.train.seed)
        add_lora(model, recipe.lora, recipe.train.seed)
        return model

    return measured_speed(recipe, build, data)


class RandomBlocks(BlockData):
    """Blocks of random tokens for a decoder. A step on them takes as long as a step on text."""

    def __init__(self, recipe: Recipe) -> None:
        self.shares = {}  # nothing is validated
        length = recipe.model.context_length
        self._size = recipe.step_tokens // length, length
        self._vocab_size = recipe.model.vocab_size

    def step(self, consumed: int, position: float) -> Batch:
        rows, length = self._size
        ids = np.random.default_rng(consumed).integers(self._vocab_size, size=(rows, length + 1))
        return Batch(ids[:, :-1].copy(), ids[:, 1:].copy(), np.ones((rows, length), np.float32))

    def size(self, consumed: int, position: float) -> tuple[int, int]:
        return self._size[0], self._size[0] * self._size[1]

    def flops_per_token(self, model: TrainedModel) -> float:
        return flops_per_token(model, self._size[1])

    def validation(self, source: str, tokens: int, rows: int) -> Iterator[Batch]:
        return iter(())


def speed_without_data(recipe: Recipe) -> Speed:
    """Return the speed of training the decoder of `recipe`, from about a second of steps on random tokens."""
    return measured_speed(recipe, lambda: LanguageModel(recipe.model, recipe.train.seed), RandomBlocks(recipe), 1.0)


def measured_speed(
    recipe: Recipe, build: Callable[[], TrainedModel], data: TrainingData, seconds: float = MEASURED_SECONDS
) -> Speed:
    """Return the speed of training the model that `build` makes on `data`, from a few steps in about `seconds`."""
    doing("measuring the speed of training")
    train = replace(recipe.train, compile=False)  # compilation takes longer than the steps
    machine = choose_machine(train.device, train.dtype, half=True)
    model = build().to(machine.device)
    model.compute_dtype = machine.dtype
    with show(quiet=True):  # the micro-batches of a trial interest nobody
        trainer = Trainer(None, model, data, train)
    try:
        for _ in range(WARM_UP_STEPS):
            trainer.step()
        started, warm = time.perf_counter(), trainer.at.tokens
        for _ in range(MEASURED_STEPS):
            trainer.step()
            if time.perf_counter() - started > seconds:
                break
        return Speed((trainer.at.tokens - warm) / (time.perf_counter() - started), measured=True)
    finally:
        trainer.batches.close()

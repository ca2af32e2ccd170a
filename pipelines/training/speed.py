"""How fast this machine trains a recipe, measured on a model that is thrown away."""

import time

import torch

from lm.model import build_model
from pipelines.cli.display import quantity, say
from pipelines.dataset.reader import TokenDataset
from pipelines.run.recipe import Recipe
from pipelines.training.data import open_training_data
from pipelines.training.loop import Trainer
from pipelines.training.machine import choose_machine
from tokenizer import Tokenizer

WARM_UP_STEPS = 2
MEASURED_SECONDS = 4.0


def measure_tokens_per_second(recipe: Recipe, dataset: TokenDataset) -> float:
    """Training tokens a second of `recipe` on `dataset`, over about `MEASURED_SECONDS` after warming up."""
    machine = choose_machine(recipe.train.device, recipe.train.dtype, half=True)
    model = build_model(recipe.model, recipe.train.seed).to(machine.device)
    model.compute_dtype = machine.dtype
    data = open_training_data(recipe, dataset, Tokenizer.load(dataset.folder))
    trainer = Trainer(None, model, data, recipe.train)
    for _ in range(WARM_UP_STEPS):
        trainer.step()
    _finish(machine.device)
    started, warm = time.perf_counter(), trainer.at.tokens
    while time.perf_counter() - started < MEASURED_SECONDS:
        trainer.step()
        _finish(machine.device)
    rate = (trainer.at.tokens - warm) / (time.perf_counter() - started)
    say(f"this machine trains it at about {quantity(rate, 'tok')}/s")
    return rate


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""Print the collectives and the norm of one step's gradient as JSON, in the processes that torchrun started."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lm.model import LanguageModel
from pipelines.recipes.recipe import load_recipe
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import summed_loss
from pipelines.training.fully_sharded import FullySharded
from pipelines.training.launch import processes

MICRO_BATCHES = 3


class Messages(TorchDispatchMode):
    """Counts collectives by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        namespace, name = function._schema.name.split("::")
        if namespace == "c10d":
            self.counts[name.strip("_")] += 1
        return function(*args, **(kwargs or {}))


def count(parallel, config):
    """Return the messages of one step, and the norm of its gradient."""
    model = LanguageModel(config, seed=0)
    forward = parallel.wrap(model, compiled=False)
    ids = np.random.default_rng(parallel.rank).integers(config.vocab_size, size=(2 * MICRO_BATCHES, 9))
    batch = Batch(ids[:, :-1], ids[:, 1:], np.ones((len(ids), 8), np.float32))
    weight = parallel.sum(float(batch.weights.sum()))

    def loss(micro):
        return summed_loss(model, forward, micro, device=torch.device("cpu"))

    with Messages() as messages:
        parallel.gradient(loss, batch, 2, weight, 1.0)
    return {"counts": messages.counts, "norm": float(parallel.clip(list(model.parameters()), 1e9))}


def main():
    recipe = load_recipe("gpt-tiny")
    config = replace(recipe.model, layers=2, width=32, heads=2, vocab_size=64, context_length=8, dropout=0.0)
    with processes("fsdp", recipe.train) as parallel:
        two = parallel.world_size
        results = {
            "every": count(FullySharded("cpu", two, whole_gradients=False), config),
            "last": count(FullySharded("cpu", two, whole_gradients=True), config),
            "nodes": count(FullySharded("cpu", 1, whole_gradients=False), config),
        }
        if parallel.is_main:
            print(json.dumps(results))


if __name__ == "__main__":
    main()

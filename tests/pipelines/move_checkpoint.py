"""Restore a run's newest checkpoint and write it into another folder, in the processes that torchrun started."""

import sys
from pathlib import Path

from lm.model import LanguageModel
from lm.optim.averaging import WeightAverage
from lm.optim.optimizer import Execution
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers
from pipelines.run.folder import Run
from pipelines.training.checkpoints import CheckpointWriter, take_snapshot
from pipelines.training.launch import processes
from pipelines.training.resuming import resume


def move(source: Path, target: Path, kind: str) -> None:
    run = Run(source)
    with processes(kind, run.recipe.train) as parallel:
        model = LanguageModel(run.recipe.model, seed=123)
        parallel.wrap(model, compiled=False)
        settings = OptimizerSettings(kind=run.recipe.train.optimizer)
        optimizers = build_optimizers(model, settings, Execution(spread=parallel.spread))
        average = WeightAverage(model, run.recipe.train.average)
        state = resume(source, model, optimizers, run.settings, average, parallel)
        writer = CheckpointWriter(target, run.recipe.train, run.settings, parallel.checkpoint_group)
        writer.write(take_snapshot(model, optimizers, average, parallel), state)
        writer.wait()


if __name__ == "__main__":
    move(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

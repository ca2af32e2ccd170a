"""Load a trained model from its run folder."""

from dataclasses import dataclass
from pathlib import Path

from lm.model import LanguageModel, build_model
from pipelines.cli.waiting import doing
from pipelines.run.folder import Run
from pipelines.training.checkpoint_reader import load_weights
from pipelines.training.machine import Machine, choose_machine
from pipelines.training.resuming import set_weights


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode, its machine, and the folder of its checkpoint."""

    model: LanguageModel
    machine: Machine
    checkpoint: Path


def load_trained(
    run: Run, device: str = "auto", dtype: str = "float32", checkpoint: str = "newest", needs: str = ""
) -> Trained:
    """Return the model of a checkpoint, with averaged weights if the run averages them.

    `checkpoint` is "newest" (the newest whole one), "best" (the lowest validation loss), or the number of a step.
    `needs`: see `choose_machine`. Raises ValueError if there is no such checkpoint, or if config.toml does not
    match it.
    """
    doing("loading the model")
    machine = choose_machine(device, dtype, needs=needs)
    folder, weights = load_weights(run.folder, run.settings, checkpoint)
    model = build_model(run.recipe.model, seed=0)
    set_weights(folder, model, weights)
    model.compute_dtype = machine.dtype
    return Trained(model.to(machine.device).eval(), machine, folder)

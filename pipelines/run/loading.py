"""A trained model, straight from its run folder."""

from dataclasses import dataclass
from pathlib import Path

from lm.model import LanguageModel, build_model
from pipelines.cli.waiting import doing
from pipelines.run.folder import Run
from pipelines.training.checkpoints import load_weights, put_weights
from pipelines.training.machine import Machine, choose_machine


@dataclass(frozen=True)
class Trained:
    """A model ready to predict, the machine that it is on, and the checkpoint that it came from."""

    model: LanguageModel
    machine: Machine
    checkpoint: Path


def load_trained(run: Run, device: str = "auto", dtype: str = "float32", checkpoint: str = "newest") -> Trained:
    """The model of a run's checkpoint, with its weights averaged where the run averages them: the newest whole one,
    the "best", of the lowest validation loss, or that of a step.

    Raises ValueError without such a checkpoint, and for a config.toml that does not match it.
    """
    doing("loading the model")
    machine = choose_machine(device, dtype)
    folder, weights = load_weights(run.folder, run.settings, checkpoint)
    model = build_model(run.recipe.model, seed=0)
    put_weights(folder, model, weights)
    model.compute_dtype = machine.dtype
    return Trained(model.to(machine.device).eval(), machine, folder)

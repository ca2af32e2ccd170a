"""A trained model, straight from its run folder."""

from dataclasses import dataclass
from pathlib import Path

from lm.model import LanguageModel, build_model
from pipelines.training.checkpoints import latest_checkpoint, load_model
from pipelines.training.machine import Machine, choose_machine
from pipelines.training.run import Run


@dataclass(frozen=True)
class Trained:
    """A model ready to predict, the machine that it is on, and the checkpoint that it came from."""

    model: LanguageModel
    machine: Machine
    checkpoint: Path


def load_trained(run: Run, device: str = "auto", dtype: str = "float32") -> Trained:
    """The model of a run's newest checkpoint.

    Raises ValueError when there is no checkpoint, or when it is damaged or of another model.
    """
    machine = choose_machine(device, dtype)
    model = build_model(run.recipe.model, seed=0)
    checkpoint = latest_checkpoint(run.folder)
    try:
        load_model(checkpoint, model)
    except ValueError:
        # A training run that goes on removes old checkpoints: there is a newer one then.
        if checkpoint.exists():
            raise
        checkpoint = latest_checkpoint(run.folder)
        load_model(checkpoint, model)
    model.compute_dtype = machine.dtype
    return Trained(model.to(machine.device).eval(), machine, checkpoint)

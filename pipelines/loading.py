"""A trained model, straight from its run folder."""

import torch

from lm.model import LanguageModel, build_model
from pipelines.training.checkpoints import latest_checkpoint, load_model
from pipelines.training.machine import Machine, choose_machine
from pipelines.training.run import Run


def load_trained(run: Run, device: str = "auto", dtype: str = "float32") -> tuple[LanguageModel, Machine]:
    """The model of a run's newest checkpoint, ready to predict, and the machine it is on.

    Raises ValueError when there is no checkpoint, or when it is damaged or of another model.
    """
    machine = choose_machine(device, dtype)
    with torch.device("cpu"):
        model = build_model(run.recipe.model, seed=0)
    load_model(latest_checkpoint(run.folder), model)
    model.compute_dtype = machine.dtype
    return model.to(machine.device).eval(), machine

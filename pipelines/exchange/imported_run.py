"""A run folder with the weights and the tokenizer of an imported model."""

from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lm.task_model import build_model
from lm.warn import warn
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import Recipe, save_config
from pipelines.run.folder import Run
from pipelines.run.provenance import provenance
from pipelines.training.checkpoints import take_snapshot, write_checkpoint
from pipelines.training.progress import Progress
from tokenizer import Tokenizer

Objective = Literal["next-token", "masked-token", "sequence-pairs", "span-corruption"]
DEFAULT_OBJECTIVES: dict[str, Objective] = {
    "decoder": "next-token",
    "encoder": "masked-token",
    "encoder-decoder": "sequence-pairs",
}


def write_imported_run(
    folder: Path, recipe: Recipe, weights: dict[str, Tensor], tok: Tokenizer, imported: dict[str, Any]
) -> None:
    """Write a run with one checkpoint, of step 0, whose optimizer has no state yet."""
    model = build_model(recipe.model, recipe.head, seed=None)
    model.load_state_dict(weights)
    facts = {
        "data": "",
        "dataset_fingerprint": "",
        "tokenizer_fingerprint": tok.fingerprint,
        **provenance(),
        **imported,
    }
    tok.save(folder)
    save_config(folder / "config.toml", recipe, facts)
    write_checkpoint(folder, take_snapshot(model), Progress().as_state(), TrainConfig(), Run(folder).settings)


def warn_of_new_head(source: str) -> None:
    """Warn that an encoder got a masked-token head with random weights."""
    warn(
        f"{source} has no masked-token head: the run gets one with random weights. finetune does not need it; "
        "pretraining with `init_from` trains it"
    )

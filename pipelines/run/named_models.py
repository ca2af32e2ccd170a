"""Models by name: presets, recipes and runs."""

from pathlib import Path

from lm.config import ModelConfig
from lm.optim.optimizer_settings import OptimizerKind
from lm.presets import PRESETS
from pipelines.cli.errors import did_you_mean
from pipelines.recipes.recipe import load_recipe, recipe_names
from pipelines.run.folder import Run


def named_model(name: str) -> tuple[ModelConfig, OptimizerKind]:
    """Return the model and the optimizer that `name` stands for: a preset, a run's folder, or a recipe's name or file.

    Presets have no optimizer of their own: AdamW. Raises ValueError, with the nearest name, if there is no such model,
    and for a run with the head of a task.
    """
    if name in PRESETS:
        return PRESETS[name], "adamw"
    if (Path(name) / "config.toml").is_file():
        run = Run(name)
        run.require_language_model()
        recipe = run.recipe
        return recipe.model, recipe.train.optimizer
    if name in recipe_names() or Path(name).is_file():
        recipe = load_recipe(name)
        return recipe.model, recipe.train.optimizer
    known = [*PRESETS, *(recipe for recipe in recipe_names() if recipe not in PRESETS)]
    hint = did_you_mean(name, known)
    raise ValueError(f"there is no model {name!r}: {hint}give {', '.join(known)}, a .toml file or a run's folder")

"""The plan that `bytelm pretrain --dry-run` prints."""

from pathlib import Path

from pipelines.cli.display import answer, quantity
from pipelines.run.model_costs import model_costs
from pipelines.run.recipe import Recipe
from pipelines.run.retention import checkpoint_folders
from pipelines.training.data import Dataset


def print_plan(recipe: Recipe, dataset: Dataset, out: Path) -> None:
    """Print what training `recipe` on `dataset` in the run `out` takes. The recipe has the dataset's vocabulary."""
    train = recipe.train
    costs = model_costs(recipe.model, "float32", train.optimizer)
    available = dataset.split("train").tokens
    memory = costs["training_bytes"]
    checkpoint = memory["weights"] * (2 if train.average else 1) + memory["moments"]
    retained = train.keep_checkpoints + train.keep_best
    parameters = quantity(costs["parameters"]["total"], "")
    answer(
        f"would train {parameters} parameters on {quantity(train.tokens, 'tok')} of {dataset.folder} "
        f"({train.tokens / available:.3g} epochs of {quantity(available, 'tok')}), in batches of {batch_words(recipe)}"
    )
    answer(f"compute: {quantity(costs['flops_per_token'] * train.tokens, 'FLOP')}")
    answer(
        f"memory: {quantity(sum(memory[part] for part in ('weights', 'gradients', 'moments')), 'B')} for weights, "
        f"gradients and optimizer, and about {quantity(memory['activations'], 'B')} of activations per sequence"
    )
    state = "resume the run" if checkpoint_folders(out) else "make a run"
    answer(f"would {state} in {out}, with {retained} checkpoints of about {quantity(checkpoint, 'B')} each")


def batch_words(recipe: Recipe) -> str:
    """Return the batch size of `recipe` in words."""
    train = recipe.train
    if train.batch_tokens_start:
        final = f"{train.batch_tokens:,} after {train.batch_warmup_tokens:,}"
        return f"{train.batch_tokens_start:,} tokens, growing to {final}"
    return f"{'at most ' if recipe.objective == 'sequence-pairs' else ''}{train.batch_tokens:,} tokens"

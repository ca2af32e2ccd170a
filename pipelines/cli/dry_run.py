"""What --dry-run prints: the planned work, its size and its output path."""

from pathlib import Path

from pipelines.cli.display import answer, quantity
from pipelines.run.recipe import Recipe


def plan_pretraining(recipe: Recipe, data: Path, out: Path) -> None:
    """Print the plan of training `recipe` on `data`; ValueError if recipe and dataset do not fit together."""
    from pipelines.params import count
    from pipelines.pretrain import batches, fit_to_data
    from pipelines.run.retention import checkpoint_folders
    from pipelines.training.data import open_dataset

    dataset = open_dataset(data, recipe.objective)
    recipe = fit_to_data(recipe, dataset)
    train = recipe.train
    costs = count(recipe.model, "float32", train.optimizer)
    there = dataset.split("train").tokens
    memory = costs["training_bytes"]
    checkpoint = memory["weights"] * (2 if train.average else 1) + memory["moments"]
    kept = train.keep_checkpoints + train.keep_best
    parameters = quantity(costs["parameters"]["total"], "")
    answer(
        f"would train {parameters} parameters on {quantity(train.tokens, 'tok')} of {data} "
        f"({train.tokens / there:.3g} epochs of {quantity(there, 'tok')}), in batches of {batches(recipe)}"
    )
    answer(f"compute: {quantity(costs['flops_per_token'] * train.tokens, 'FLOP')}")
    answer(
        f"memory: {quantity(sum(memory[part] for part in ('weights', 'gradients', 'moments')), 'B')} for weights, "
        f"gradients and optimizer, and about {quantity(memory['activations'], 'B')} of activations per sequence"
    )
    state = "resume the run" if checkpoint_folders(out) else "make a run"
    answer(f"would {state} in {out}, with {kept} checkpoints of about {quantity(checkpoint, 'B')} each")


def plan_dataset(
    tokenizer: Path, entries: int, text_bytes: int | None, context_length: int | None, split: str, out: Path
) -> None:
    """Print the plan of encoding `text_bytes` of text."""
    per_token = 2 if entries <= 1 << 16 else 4
    shape = f"blocks of {context_length:,} tokens" if context_length else "pairs"
    answer(
        f"would encode {_size(text_bytes)} with the {entries:,} entries of {tokenizer} into {shape}, split by {split}"
    )
    most = "" if text_bytes is None else f", at most {quantity(text_bytes * per_token, 'B')}"
    answer(f"would write the folder {out}: {per_token} bytes per token{most}")


def plan_tokenizer(
    vocab_size: int, text_bytes: int | None, split: str | None, pattern: str, out: Path, save_counts: Path | None
) -> None:
    """Print the plan of training a vocabulary on `text_bytes` of text."""
    text = _size(text_bytes) + (f", the training split ({split})" if split else ", counted before")
    answer(f"would train a vocabulary of {vocab_size:,} entries with the pattern {pattern} on {text}")
    answer(f"would write {out / 'tokenizer.json'}" + (f" and {save_counts}" if save_counts else ""))


def _size(text_bytes: int | None) -> str:
    return "text of unknown size" if text_bytes is None else f"about {quantity(text_bytes, 'B')} of text"

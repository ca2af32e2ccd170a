"""Train a run for some steps after its vocabulary has changed, as `pretrain` does with `init_from`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from lm.lora_config import LoraConfig
from pipelines.cli.display import Bar
from pipelines.cli.process import StoppedBySignal
from pipelines.dataset.block_dataset import write_blocks
from pipelines.recipes.recipe import Recipe
from pipelines.run.checkpoint_reader import load_weights
from pipelines.run.folder import Run
from pipelines.training.pretraining import train
from tokenizer import Tokenizer

if TYPE_CHECKING:
    from corpora import Corpus

WARMUP_SHARE = 0.1


def weights_after(run: Run, tok: Tokenizer, corpus: "Corpus", steps: int, work: Path) -> dict[str, Tensor]:
    """Return the weights of a run after `steps` optimizer steps on the training split of a corpus.

    `tok`: the tokenizer of the run. `work`: a new folder for the dataset and the training. Raises KeyboardInterrupt
    after Ctrl-C or SIGTERM.
    """
    recipe, data, out = _of_steps(run.recipe, steps), work / "data", work / "runs" / run.name
    data.mkdir(parents=True)
    tok.save(data)
    separator = run.facts.get("separated", True)
    with Bar("encoding", corpus.text_bytes_estimate, "B") as bar:
        write_blocks(corpus, tok, recipe.model.context_length, data, separator=separator, progress=bar.update)
    if status := train(recipe, {data: 1}, out, "none", init_from=run.folder):
        raise StoppedBySignal(status - 128)
    trained = Run(out)
    return load_weights(trained.folder, trained.settings)[1]


def _of_steps(recipe: Recipe, steps: int) -> Recipe:
    """Return a recipe that trains all weights; its schedule has `steps` steps, and one validation at the end."""
    tokens = steps * recipe.step_tokens
    changed = replace(
        recipe.train,
        tokens=tokens,
        words=0,
        minutes=0.0,
        batch_tokens_start=0,
        batch_warmup_tokens=0,
        warmup_tokens=min(recipe.train.warmup_tokens, round(WARMUP_SHARE * tokens)),
        validate_every_tokens=tokens,
        checkpoint_every_tokens=tokens,
        keep_words=0,
        keep_checkpoints=1,
        keep_best=False,
        patience=0,
        average=0.0,
        device="auto",  # the run may have been trained on another machine
        dtype="auto",
    )
    return replace(recipe.without_task(), lora=LoraConfig(), train=changed)

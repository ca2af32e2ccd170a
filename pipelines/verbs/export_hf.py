"""Exchange: write a run as a folder that transformers opens.

Examples:
    bytelm export-hf runs/gpt --out gpt-hf
    bytelm export-hf runs/adapted --adapter --out gpt-lora
"""

from pathlib import Path

from pipelines.cli.arguments import Checkpoint, RunFolder
from pipelines.cli.display import say
from pipelines.cli.verbs import verb
from pipelines.recipes.config import TrainConfig
from pipelines.run.folder import Run, opened
from pipelines.run.retention import checkpoint_folders, checkpoints_of_words

ADAPTER_FILES = "adapter_config.json", "adapter_model.safetensors"


@verb
def export_hf(
    run: RunFolder,
    *,
    out: Path,
    checkpoint: Checkpoint = "auto",
    start_token: bool = False,
    by_words: bool = False,
    adapter: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write the model and the tokenizer of a run as a folder that transformers opens, and return the folder.

    AutoModelForCausalLM opens a decoder, AutoModelForMaskedLM an encoder, AutoModelForSeq2SeqLM an encoder-decoder, and
    AutoTokenizer the tokenizer. A run with the head of a task is opened by the class of its head, such as
    AutoModelForSequenceClassification, and by pipeline("text-classification"). Weights are float32, with adapters
    folded in; README.md is a model card.

    Raises ValueError, naming the fields, for a model that no format of transformers can express.

    Args:
        out: Folder to write.
        start_token: Let the tokenizer of a decoder put its start token before a text, as in training, so that the
            first token of a text has a probability.
        by_words: Write a folder for each number of words in train.keep_words, such as chck_1M for the checkpoint
            after a million words.
        adapter: Write only the adapters of a run that trained some, as a folder that peft opens.
        overwrite: Replace an existing export.
    """

    def replaceable(folder: Path) -> bool:
        names = ADAPTER_FILES if adapter else ("config.json", "model.safetensors")
        return overwrite and all((folder / name).is_file() for name in names)

    found = opened(run, checkpoint, any_task=not adapter)
    if adapter and not found.recipe.lora.rank:
        raise ValueError(f"{found.folder} has no adapters: leave `adapter` out")
    if adapter and (start_token or by_words):
        raise ValueError(
            f"`adapter` cannot be combined with `{'start_token' if start_token else 'by_words'}`: leave one of them out"
        )
    exports = _by_words(found, checkpoint, out) if by_words else [(checkpoint, out)]
    for _, folder in exports:
        if folder.exists() and not replaceable(folder):
            raise ValueError(f"{folder} exists already: choose another `out` (or replace an export with `overwrite`)")
    from pipelines.exchange.transformers_export import write_adapter_folder, write_transformers_folder

    for which, folder in exports:
        if adapter:
            say(write_adapter_folder(found, which, folder, replaceable))
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            say(write_transformers_folder(found, which, folder, replaceable, start_token))
    return out


def _by_words(run: Run, checkpoint: str, out: Path) -> list[tuple[str, Path]]:
    """Return the step of each checkpoint kept by words, and its folder. Raises ValueError if one is missing."""
    train = run.recipe.train
    if checkpoint != "auto":
        raise ValueError("`checkpoint` names one checkpoint and `by_words` several: leave one of them out")
    if not isinstance(train, TrainConfig) or not train.keep_words:
        raise ValueError(f"{run.folder} keeps no checkpoints by words: train with `train.words` and `train.keep_words`")
    kept = checkpoints_of_words(checkpoint_folders(run.folder), train)
    if missing := sorted(set(train.keep_words) - set(kept)):
        raise ValueError(f"{run.folder} has no checkpoint of {missing[0]:,} words yet: continue its training")
    return [(f"{int(folder.name[5:])}", out / f"chck_{_short(words)}") for words, folder in kept.items()]


def _short(words: int) -> str:
    """Return a number of words as BabyLM's checkpoint names spell it, such as 1M; others such as 1500k or 50."""
    for unit, name in ((10**6, "M"), (10**3, "k")):
        if words % unit == 0:
            return f"{words // unit}{name}"
    return f"{words}"

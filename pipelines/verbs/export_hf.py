"""Exchange: write a run as a folder that transformers opens.

Examples:
    bytelm export-hf runs/gpt --out gpt-hf
    bytelm export-hf runs/gpt --start-token --by-words --out babylm
    bytelm export-hf runs/adapted --adapter --out gpt-lora
"""

from pathlib import Path

from pipelines.cli.arguments import Checkpoint, RunFolder
from pipelines.cli.display import say
from pipelines.cli.verbs import verb
from pipelines.run.folder import opened
from pipelines.run.retention import named_by_words

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
        start_token: For a decoder: the exported tokenizer puts the start token from training before each text, so that
            programs that read what the tokenizer returns score the first token as well.
        by_words: Write a folder for each checkpoint of `train.keep_words` into `out`, with BabyLM's names: chck_1M,
            chck_2M and so on.
        adapter: Write only the adapters of a run that trained some, as a folder that peft opens.
        overwrite: Replace an existing export.
    """

    def replaceable(folder: Path) -> bool:
        names = ADAPTER_FILES if adapter else ("config.json", "model.safetensors")
        return overwrite and all((folder / name).is_file() for name in names)

    if by_words and checkpoint != "auto":
        raise ValueError(f"`checkpoint` is {checkpoint}, but `by_words` exports several checkpoints: give one of them")
    found = opened(run, checkpoint, any_task=not adapter)
    steps = {out: checkpoint}
    if by_words:
        steps = {out / name: step for name, step in named_by_words(found.folder, found.recipe.train).items()}
    for folder in steps:
        if folder.exists() and not replaceable(folder):
            raise ValueError(f"{folder} exists already: choose another `out` (or replace an export with `overwrite`)")
    if adapter and not found.recipe.lora.rank:
        raise ValueError(f"{found.folder} has no adapters: leave `adapter` out")
    if adapter and start_token:
        raise ValueError("`start_token` has no effect on `adapter`, which writes no tokenizer: leave one of them out")
    from pipelines.exchange.transformers_export import write_adapter_folder, write_transformers_folder

    for folder, step in steps.items():
        if adapter:
            say(write_adapter_folder(found, step, folder, replaceable))
        else:
            say(write_transformers_folder(found, step, folder, replaceable, start_token))
    return out

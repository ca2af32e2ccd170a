"""Exchange: write a run as a folder that transformers opens.

Examples:
    bytelm export-hf runs/gpt --out gpt-hf
    bytelm export-hf runs/gpt --checkpoint best --out gpt-hf
    bytelm export-hf runs/adapted --adapter --out gpt-lora
"""

from pathlib import Path

from pipelines.cli.arguments import Checkpoint, RunFolder
from pipelines.cli.display import say
from pipelines.cli.verbs import verb
from pipelines.run.folder import opened

ADAPTER_FILES = "adapter_config.json", "adapter_model.safetensors"


@verb
def export_hf(
    run: RunFolder,
    *,
    out: Path,
    checkpoint: Checkpoint = "auto",
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
        adapter: Write only the adapters of a run that trained some, as a folder that peft opens.
        overwrite: Replace an existing export.
    """

    def replaceable(folder: Path) -> bool:
        names = ADAPTER_FILES if adapter else ("config.json", "model.safetensors")
        return overwrite and all((folder / name).is_file() for name in names)

    if out.exists() and not replaceable(out):
        raise ValueError(f"{out} exists already: choose another `out` (or replace an export with `overwrite`)")
    found = opened(run, checkpoint, any_task=not adapter)
    if adapter and not found.recipe.lora.rank:
        raise ValueError(f"{found.folder} has no adapters: leave `adapter` out")
    from pipelines.exchange.transformers_export import write_adapter_folder, write_transformers_folder

    write = write_adapter_folder if adapter else write_transformers_folder
    say(write(found, checkpoint, out, replaceable))
    return out

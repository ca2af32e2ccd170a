"""Exchange: write a run as a folder that transformers opens.

Examples:
    bytelm export-hf runs/gpt --out gpt-hf
    bytelm export-hf runs/gpt --checkpoint best --out gpt-hf
"""

from pathlib import Path

from pipelines.cli.arguments import Checkpoint, RunFolder
from pipelines.cli.display import say
from pipelines.cli.verbs import verb
from pipelines.run.folder import opened


@verb
def export_hf(run: RunFolder, *, out: Path, checkpoint: Checkpoint = "newest", overwrite: bool = False) -> Path:
    """Write the model and the tokenizer of a run as a folder that transformers opens, and return the folder.

    AutoModelForCausalLM opens a decoder, AutoModelForMaskedLM an encoder, AutoModelForSeq2SeqLM an encoder-decoder, and
    AutoTokenizer the tokenizer. A run with the head of a task is opened by the class of its head, such as
    AutoModelForSequenceClassification, and by pipeline("text-classification"). Weights are float32; README.md is a
    model card.

    Raises ValueError, naming the fields, for a model that no format of transformers can express.

    Args:
        out: Folder to write.
        overwrite: Replace an existing export.
    """

    def replaceable(folder: Path) -> bool:
        return overwrite and all((folder / name).is_file() for name in ("config.json", "model.safetensors"))

    if out.exists() and not replaceable(out):
        raise ValueError(f"{out} exists already: choose another `out` (or replace an export with `overwrite`)")
    found = opened(run, checkpoint, any_task=True)
    from pipelines.exchange.transformers_export import write_transformers_folder

    say(write_transformers_folder(found, checkpoint, out, replaceable))
    return out

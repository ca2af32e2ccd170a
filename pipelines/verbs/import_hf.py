"""Exchange: import a model of transformers, from a folder or the hub, as a run.

Examples:
    bytelm import-hf hub:openai-community/gpt2 --out runs/gpt2
    bytelm import-hf gpt-hf --out runs/gpt
    bytelm import-hf my-classifier/ --out runs/labels
    bytelm import-hf gpt-hf --adapter gpt-lora --out runs/adapted
"""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from pipelines.cli.arguments import TokenizerPattern
from pipelines.cli.display import say
from pipelines.cli.verbs import verb
from pipelines.files import read_json
from pipelines.run.folder import Run


@verb
def import_hf(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR", help="A folder, or hub:owner/name.")],
    *,
    out: Path,
    objective: Literal["next-token", "masked-token", "sequence-pairs", "span-corruption"] | None = None,
    pattern: TokenizerPattern = None,
    adapter: Path | None = None,
    without_head: bool = False,
    columns: tuple[str, ...] = (),
    overwrite: bool = False,
) -> Path:
    """Import a model that transformers saved as a run; return the run's folder.

    The families are GPT-2, GPT-NeoX, Llama, BERT, RoBERTa, DistilBERT, ModernBERT and T5. DIR holds config.json,
    model.safetensors (or its shards and their index) and a byte-level BPE, WordPiece or Unigram tokenizer.

    A fine-tuned model, such as BertForSequenceClassification, becomes a run of its task, which bytelm predict uses.
    `without_head` makes a language model or an encoder of it, which can be trained further.

    Parts that our models do not have, such as the pooler of an encoder, are left out, and a message names them. An
    encoder without a masked-token head gets one with random weights.

    The run has one checkpoint, of step 0, with float32 weights. Use it as any other run; to evaluate it, name a dataset
    with `data`, or a file of examples of its task.

    Texts begin and end with the ids that config.json, generation_config.json and the tokenizer name, as in
    transformers, or else with <|endoftext|>. The mask token is that of tokenizer_config.json; sentinels are
    <extra_id_0>, <extra_id_1> and so on.

    Raises ValueError, naming the setting or tensor, for models that are incomplete, damaged or not supported.

    Args:
        out: Folder of the run to make.
        objective: Objective of the model. By default next-token for a decoder, masked-token for an encoder, and
            sequence-pairs for an encoder-decoder.
        adapter: Folder of LoRA adapters that peft saved, to fold into the weights.
        without_head: Leave out the head of a fine-tuned model.
        columns: Columns that the task of a fine-tuned model reads, inputs first and the target last. By default those
            with usual names, of one text.
        overwrite: Replace an existing imported run.
    """

    def replaceable(folder: Path) -> bool:
        return overwrite and (folder / "config.toml").is_file() and "imported_from" in Run(folder).facts

    if out.exists() and not replaceable(out):
        raise ValueError(f"{out} exists already: choose another `out` (or replace an imported run with `overwrite`)")
    if not source.startswith("hub:"):
        if not Path(source).is_dir():
            raise ValueError(f"{source} is not a folder: name one, or a model of the hub as hub:owner/name")
        read_json(Path(source) / "config.json", "import a folder that transformers' save_pretrained wrote")
    if adapter is not None:
        read_json(adapter / "adapter_config.json", "name a folder that peft's save_pretrained wrote")
    from pipelines.exchange.transformers_import import import_model  # imports PyTorch, which takes seconds

    for line in import_model(source, objective, out, replaceable, pattern, adapter, without_head, columns):
        say(line)
    return out

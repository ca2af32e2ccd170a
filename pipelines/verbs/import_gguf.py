"""Exchange: import a model of a GGUF file as a run.

Examples:
    bytelm import-gguf gpt.gguf --out runs/gpt
    bytelm import-gguf gpt-q8.gguf --out runs/gpt --overwrite
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import tyro

from pipelines.cli.display import say
from pipelines.cli.verbs import verb
from pipelines.run.folder import Run


@verb
def import_gguf(
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help="A GGUF file.")],
    *,
    out: Path,
    overwrite: bool = False,
) -> Path:
    """Import the model and the tokenizer of a GGUF file as a run; return the run's folder.

    The architectures are gpt2, gptneox, llama, qwen3 and bert, in F32, F16, BF16 or Q8_0. The run has one checkpoint,
    of step 0, with float32 weights. Use it as any other run; to evaluate it, name a dataset with `data`.

    The tokenizer is byte-level BPE with a pre-tokenizer that bytelm knows, WordPiece, or any tokenizer that the file
    holds as tokenizer.json. An encoder gets a masked-token head with random weights.

    Raises ValueError, naming the key or tensor, for a file that is damaged or not supported.

    Args:
        out: Folder of the run to make.
        overwrite: Replace an existing imported run.
    """
    if find_spec("gguf") is None:
        raise ValueError("import-gguf needs the package gguf: pip install 'bytelm[gguf]'")
    replaceable = overwrite and (out / "config.toml").is_file() and "imported_from" in Run(out).facts
    if out.exists() and not replaceable:
        raise ValueError(f"{out} exists already: choose another `out` (or replace an imported run with `overwrite`)")
    if not file.is_file():
        raise ValueError(f"{file} is not a file: name a GGUF file")
    from pipelines.exchange.gguf_import import import_gguf_file  # imports PyTorch, which takes seconds

    for line in import_gguf_file(file, out, replaceable):
        say(line)
    return out

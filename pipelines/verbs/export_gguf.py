"""Exchange: write a run as a GGUF file for llama.cpp.

Examples:
    bytelm export-gguf runs/gpt --out gpt.gguf
    bytelm export-gguf runs/gpt --dtype q8_0 --out gpt-q8.gguf
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pipelines.cli.arguments import Checkpoint, RunFolder
from pipelines.cli.display import say
from pipelines.cli.verbs import verb
from pipelines.files import with_a_name
from pipelines.run.folder import opened


@verb
def export_gguf(
    run: RunFolder,
    *,
    out: Path,
    dtype: Literal["f32", "f16", "bf16", "q8_0"] = "f32",
    approximate: bool = False,
    checkpoint: Checkpoint = "auto",
    overwrite: bool = False,
) -> Path:
    """Write the model and the tokenizer of a run as a GGUF file, and return its path.

    llama.cpp, and programs built on it, run the file. A decoder becomes the architecture gptneox (rotary positions and
    layer norms), llama (RMS norms and SwiGLU), qwen3 (the same with normalised queries and keys) or gpt2 (learned
    positions). An encoder becomes bert, which computes embeddings of texts. The file has the special tokens and the
    chat template of the run. FILE.gguf.md is a model card.

    Raises ValueError, naming the fields, for a model or tokenizer that llama.cpp cannot express.

    Args:
        out: File to write, such as model.gguf.
        dtype: Dtype of matrices. q8_0 has 8 bits for each number and a scale for each 32. Vectors are f32.
        approximate: Allow a tokenizer, such as o200k, that llama.cpp applies differently to some texts.
        overwrite: Replace an existing file.
    """
    if find_spec("gguf") is None:
        raise ValueError("export-gguf needs the package gguf: pip install 'bytelm[gguf]'")
    out = with_a_name(out)
    existing = [path for path in (out, out.with_name(f"{out.name}.md")) if path.exists()]
    if existing and not (overwrite and out.is_file()):
        raise ValueError(f"{existing[0]} exists already: choose another `out` (or replace an export with `overwrite`)")
    found = opened(run, checkpoint)
    from pipelines.exchange.gguf_export import write_gguf_file  # imports PyTorch, which takes seconds

    for line in write_gguf_file(found, checkpoint, out, dtype, approximate):
        say(line)
    return out

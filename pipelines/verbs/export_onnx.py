"""Exchange: write a run's model as an ONNX file.

Examples:
    bytelm export-onnx runs/gpt --out gpt.onnx
    bytelm export-onnx runs/gpt --checkpoint best --out gpt.onnx
"""

from importlib.util import find_spec
from pathlib import Path

from pipelines.cli.arguments import Checkpoint, RunFolder
from pipelines.cli.display import say
from pipelines.cli.verbs import verb
from pipelines.files import with_a_name
from pipelines.run.folder import opened

PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@verb
def export_onnx(run: RunFolder, *, out: Path, checkpoint: Checkpoint = "auto", overwrite: bool = False) -> Path:
    """Write the model of a run as an ONNX file and compare its logits in onnxruntime with the model's; return the
    path.

    Inputs are int64, of any batch size and any length up to the context. A decoder takes input_ids. An encoder also
    takes attention_mask, 0 at padding, and token_type_ids if it has token types. An encoder-decoder takes input_ids and
    attention_mask of the source, and decoder_input_ids of the target. The output is logits, float32 (batch, length,
    vocabulary).

    A model above 2 GB has its weights in a second file, FILE.onnx.data. FILE.onnx.md is a model card.

    Raises ValueError if a package is missing, or if a logit differs by more than 1e-4 of the largest.

    Args:
        out: File to write, such as model.onnx.
        overwrite: Replace an existing file.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ValueError(f"export-onnx needs the package {missing[0]}: pip install 'bytelm[onnx]'")
    out = with_a_name(out)
    files = (out, out.with_name(f"{out.name}.data"), out.with_name(f"{out.name}.md"))
    existing = [path for path in files if path.exists()]
    if existing and not (overwrite and out.is_file()):
        raise ValueError(f"{existing[0]} exists already: choose another `out` (or replace an export with `overwrite`)")
    found = opened(run, checkpoint)
    from pipelines.exchange.onnx_export import write_onnx

    error = write_onnx(found, checkpoint, out)
    say(f"{out}: its logits in onnxruntime differ from the model's by at most {error:.2g} of the largest")
    return out

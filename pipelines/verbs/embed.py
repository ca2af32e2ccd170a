"""Use: write a vector for each document of a corpus, for search, clusters or a classifier of your own.

Examples:
    bytelm embed runs/bert my-text/ --out vectors.parquet
    bytelm embed runs/gpt reviews.csv --layer 2 --pooling last --out v.npy
"""

from pathlib import Path
from typing import Unpack

from lm.warn import warn
from pipelines.cli.arguments import Checkpoint, Device, Dtype, RunFolder, TextPooling, check_layer, check_writable
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, say_left_out
from pipelines.cli.display import Bar, say
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb
from pipelines.run.folder import opened

ENVIRONMENT = PASSIVE_THREADS
SUFFIXES = (".parquet", ".npy")

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("run corpus", ""),
    "Reading files": READING,
    "Vectors": ("layer pooling", ""),
    "Model": ("checkpoint device dtype", ""),
    "Output": ("out", ""),
}


@verb
def embed(
    run: RunFolder,
    corpus: CorpusNames,
    *,
    layer: int = -1,
    pooling: TextPooling = "mean",
    out: Path,
    checkpoint: Checkpoint = "auto",
    device: Device = "auto",
    dtype: Dtype = "float32",
    **reading: Unpack[ReadingOptions],
) -> Path:
    """Write the hidden states of each document of a corpus as one vector, float32, and return the path of the file.

    A document longer than the context is cut. All splits of the corpus are read. For a fine-tuned run, the default
    layer is the input of the task's head.

    Args:
        layer: Hidden states: 0 is the embedding, 1 the output of the first layer, -1 the input of the head.
        pooling: Positions of the vector: mean over all positions, cls or first (the same), or last.
        out: File to write. .parquet has the columns document (index in the corpus, from 0), start (the first 100
            characters) and embedding. .npy has an array (documents, width).
    """
    found = opened(run, checkpoint, device, dtype, any_task=True)
    if out.suffix not in SUFFIXES or out.is_dir():
        raise ValueError(f"`out` is {out}: give a file that ends in {' or '.join(SUFFIXES)}")
    check_layer(layer, found.recipe.model.layers)
    check_writable("`out`", out, "choose another `out`")
    from corpora import open_corpus

    source = open_corpus(corpus, split="none", **reading)
    from pipelines.run.loaded_run import LoadedRun  # imports PyTorch, which takes seconds
    from pipelines.run.vectors_file import CorpusVectors, write_vectors

    loaded = found.loaded or LoadedRun(found, checkpoint, device, dtype)
    vectors, width = CorpusVectors(loaded, layer, pooling), loaded.config.model.width
    facts = {"run": found.name, "checkpoint": loaded.loaded.checkpoint.name, "layer": layer, "pooling": pooling}
    with Bar(f"embedding {source.name}", source.text_bytes_estimate, "B") as bar:
        write_vectors(out, vectors.of(source, bar.update), width, facts)
    say_left_out(source.dropped, source.skipped_files)
    if vectors.cut:
        context = loaded.config.model.context_length
        warn(
            f"{vectors.cut:,} of {vectors.documents:,} documents are longer than the {context:,} tokens that the model "
            "reads: their vectors are of their first tokens"
        )
    say(f"{vectors.documents:,} vectors of {width:,} numbers in {out}")
    return out

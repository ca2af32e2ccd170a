"""The `bytelm` command: its first word is a verb, and only the module of this verb is imported."""

import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable

from pipelines import own_version
from pipelines.cli.errors import UsageError, complain, one_sentence
from pipelines.cli.stdout import STDOUT, Stdout

# Each verb is a module with a `main(arguments)`; hyphens become underscores.
VERBS = {
    "demo": "train and evaluate two small models on the built-in corpus in minutes",
    "corpus": "list the named corpora, or describe one",
    "train-tokenizer": "train a BPE, WordPiece or Unigram vocabulary on a corpus",
    "tokenize": "show the tokens of a text or a file",
    "build-dataset": "encode a corpus into blocks of token ids",
    "dataset": "verify the files of a dataset",
    "pretrain": "train the model of a recipe on a dataset",
    "evaluate": "measure a run: cross-entropy, perplexity, bits per byte and more",
    "score": "show how well a run predicts a text, token by token, or rank continuations",
    "sweep-vocabulary": "compare kinds and sizes of vocabularies in bits per byte at equal compute",
    "entropy": "measure a text without a model: entropies, mutual information, Zipf's and Heaps' laws",
    "generate": "continue a prompt, write the target of a source, or fill masks",
    "serve": "serve runs in the browser and through OpenAI's completions API",
    "params": "print the parameters, FLOPs and memory of a model",
    "finetune": "train a classifier from a trained encoder and labelled texts",
    "classify": "label texts with a classifier",
    "runs": "list the runs in a folder with their progress and results",
    "report": "write a self-contained HTML page about one or several runs",
    "export-hf": "write a run as a folder that transformers opens",
    "import-hf": "import a model of transformers, from a folder or the hub, as a run",
    "export-onnx": "write a run's model as an ONNX file",
}
# Verbs that compute for seconds on all cores. OpenMP threads that spin while they wait waste CPU time when other
# processes share the cores. In these verbs they sleep instead, unless the environment sets OMP_WAIT_POLICY.
COMPUTING = ("demo", "pretrain", "sweep-vocabulary", "finetune", "evaluate", "score", "entropy", "report", "serve")
# Messages of libraries that run out of memory; the last one is oneDNN's.
OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "bad_alloc",
    "failed to map segment",
    "can't start new thread",
    "could not create a primitive",
)
# PyTorch and oneDNN keep the code of every shape of a matrix product, by default of 1,024 shapes. A server meets new
# shapes all the time: fewer keep its memory flat and take no more time.
SHAPE_CACHES = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}


def module_name(verb: str) -> str:
    """Return the name of a verb's module in `pipelines`. `bytelm dataset` has a name that is a package there."""
    return "verify_dataset" if verb == "dataset" else verb.replace("-", "_")


def usage() -> str:
    """Return the text of `bytelm --help`."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {summary}" for verb, summary in VERBS.items())
    return (
        "usage: bytelm VERB [options]      (bytelm VERB --help explains one verb)\n\n"
        "From text to a tokenizer, a dataset, a trained transformer and its validation perplexity.\n\n"
        f"{verbs}\n\n"
        "A CORPUS is a name from `bytelm corpus list`, a file, a folder, a glob, s3://bucket/key or hub:owner/name.\n"
        "Folders and globs: .txt .jsonl .parquet .arrow, others with --suffix; text also as .gz .xz .zst.\n\n"
        "  -V, --version         print the version\n"
        "  --completion SHELL    print a completion script for bash, zsh or fish, for use as:\n"
        '                        eval "$(bytelm --completion bash)"\n'
        "  BYTELM_DEBUG=1        environment variable: show tracebacks\n"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run a verb and return the exit status: 0, 1 for an error, 2 for wrong usage, 130 for Ctrl-C, 143 for SIGTERM."""
    if arguments is not None:
        return _run(arguments)
    from pipelines.cli import process

    process.prepare()
    try:
        status = _run(sys.argv[1:], process.end_at_once)
    except SystemExit as leaving:  # --help, or a usage error
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        if not process.interrupts:
            raise
        # An import that Ctrl-C interrupts can fail with any error.
        status = _interrupted("".join(sys.argv[1:2]), error)
    process.finish()
    return status


def _run(arguments: list[str], end_at_once: Callable[[int], int] = int) -> int:
    verb = arguments[0] if arguments else "--help"
    warnings.showwarning = lambda message, *_, **__: _warn(verb, message)
    try:
        if verb in ("-h", "--help", "help", "-V", "--version"):
            return _printed(_version() if verb in ("-V", "--version") else usage())
        if verb == "--completion":
            return _completion(*arguments[1:2])
        return _verb(verb, arguments[1:]) if verb in VERBS else _unknown(verb)
    except KeyboardInterrupt as error:
        status = _interrupted(verb, error)
        # A server has nothing left to save, and Python needs half a second to shut down once PyTorch is imported.
        return end_at_once(status) if verb == "serve" else status
    except (MemoryError, ImportError, RuntimeError, SystemError) as error:
        if not _is_about_memory(error) or os.environ.get("BYTELM_DEBUG"):
            raise
        if not _is_from_an_import(error):
            return _out_of_memory(verb, error)
        complain(verb, "there is not enough memory to load the libraries of this verb: close other programs")
        return end_at_once(1)  # a library that is loaded in part can crash when Python ends
    except (ValueError, OSError, FloatingPointError) as error:
        about_output = isinstance(error, OSError) and error.filename == STDOUT
        if about_output:
            Stdout().discard()
        if about_output and isinstance(error, BrokenPipeError):
            return 0  # the reader has left, as after `| head`
        if os.environ.get("BYTELM_DEBUG"):
            raise
        complain(verb if verb in VERBS else "", one_sentence(error))
        return 2 if isinstance(error, UsageError) else 1


def _verb(verb: str, arguments: list[str]) -> int:
    if verb in COMPUTING:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # OpenMP reads it when torch loads
    if verb == "serve":
        for name, capacity in SHAPE_CACHES.items():
            os.environ.setdefault(name, capacity)
    module = importlib.import_module("pipelines." + module_name(verb))
    try:
        return module.main(arguments) or 0
    except SystemExit as leaving:
        if not leaving.code:
            Stdout().flush()
        raise


def _completion(shell: str = "") -> int:
    from pipelines.cli.completion import print_script

    try:
        print_script({verb: module_name(verb) for verb in VERBS}, shell)
    except SystemExit:
        Stdout().flush()
    return 0


def _unknown(verb: str) -> int:
    from difflib import get_close_matches

    nearest = get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    complain("", f"there is no verb {verb!r}: {hint}`bytelm --help` lists all verbs")
    return 2


def _version() -> str:
    return f"bytelm {own_version()}\n"


def _printed(text: str) -> int:
    Stdout().write(text)
    Stdout().flush()
    return 0


def _warn(verb: str, message: Warning | str) -> None:
    """Print a warning. Print none after Ctrl-C: interrupted imports cause misleading warnings."""
    from pipelines.cli.process import interrupts

    if not interrupts:
        complain(verb, f"warning: {message}")


def _interrupted(verb: str, error: BaseException) -> int:
    """Print that a signal ended the verb, with the notes of `error`, and return the exit status.

    Of the processes that torchrun starts, only the first prints it.
    """
    from pipelines.cli.process import interrupts

    if os.environ.get("RANK", "0") == "0":
        complain(verb, ": ".join(["interrupted", *getattr(error, "__notes__", ())]))
    return 128 + (interrupts or [signal.SIGINT])[0]


def _is_about_memory(error: BaseException | None) -> bool:
    """Return whether `error`, or an error that led to it, says that memory ran out."""
    if error is None:
        return False
    return (
        isinstance(error, MemoryError)
        or any(each in str(error) for each in OUT_OF_MEMORY)
        or _is_about_memory(error.__cause__ or error.__context__)
    )


def _is_from_an_import(error: BaseException) -> bool:
    """Return whether `error` comes from importing a module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_name != "<module>":
        trace = trace.tb_next
    return isinstance(error, ImportError) or trace is not None


def _out_of_memory(verb: str, error: BaseException) -> int:
    remedies = {
        "pretrain": "choose a smaller --train.micro-batch, context or model",
        "train-tokenizer": "set --memory, or lower --max-document",
        "build-dataset": "lower --max-document or --threads",
        "corpus": "lower --max-document",
        "tokenize": "give a shorter text",
        "sweep-vocabulary": "lower --workers, or choose a smaller --recipe",
        "entropy": "lower --sample, or give a smaller corpus",
    }
    remedy = remedies.get(verb, "choose a smaller context or model")
    complain(verb, f"there is not enough memory: {remedy} ({one_sentence(error)[:200]})")
    return 1

"""The `bytelm` command: its first word is a verb, and only the module of this verb is imported."""

import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from pipelines import own_version
from pipelines.cli.errors import UsageError, complain, did_you_mean, one_sentence
from pipelines.cli.process import STDOUT, Stdout, StoppedBySignal, end_at_once, finish, interrupts, prepare
from pipelines.cli.waiting import is_first_process

# The groups of verbs in the order of --help. The first line of a verb's module is "Group: summary."
GROUPS = ("Text", "Training", "Measurement", "Use", "Exchange")
FOLDER = Path(__file__).parents[1] / "verbs"
# Messages of libraries that run out of memory; the last one is oneDNN's.
OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "bad_alloc",
    "failed to map segment",
    "can't start new thread",
    "could not create a primitive",
)


def verbs() -> dict[str, tuple[str, str]]:
    """Return the group and the summary of each verb, by group and name.

    Each verb is a module of `pipelines.verbs`, in which underscores stand for the hyphens of its name.
    """
    described = {}
    for path in sorted(FOLDER.glob("[!_]*.py")):
        with path.open(encoding="utf-8") as lines:
            group, _, summary = next(lines).strip().strip('"').partition(": ")
        described[path.stem.replace("_", "-")] = group, summary.rstrip(".")
    return dict(sorted(described.items(), key=lambda verb: GROUPS.index(verb[1][0])))


def usage() -> str:
    """Return the text of `bytelm --help`."""
    every = verbs()
    width = max(map(len, every))
    lists = "\n\n".join(
        "\n".join([f"{group}:", *(f"  {verb:<{width}}  {text}" for verb, (of, text) in every.items() if of == group)])
        for group in GROUPS
    )
    return (
        "usage: bytelm VERB [options]      (bytelm VERB --help explains a verb)\n\n"
        "From text to a tokenizer, a dataset, a trained transformer and its validation perplexity.\n"
        "`bytelm train my-text/` does all of it; the other verbs do one step, or more with the result.\n\n"
        f"{lists}\n\n"
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
    prepare()
    try:
        status = _run(sys.argv[1:], end_at_once)
    except SystemExit as leaving:  # --help, or a usage error
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException as error:
        if not interrupts:
            raise
        # An import that Ctrl-C interrupts can fail with any error.
        status = _end_interrupted("".join(sys.argv[1:2]), error)
    finish()
    return status


def _run(arguments: list[str], end: Callable[[int], int] = int) -> int:
    verb = arguments[0] if arguments else "--help"
    warnings.showwarning = lambda message, *_, **__: _warn(verb, message)
    try:
        if verb == "help" and arguments[1:]:
            verb, arguments = arguments[1], [*arguments[1:], "--help"]
        if verb in ("-h", "--help", "--help-all", "help", "-V", "--version"):
            return _print_error(_version() if verb in ("-V", "--version") else usage())
        if verb == "--completion":
            return _completion(*arguments[1:2])
        return _verb(verb, arguments[1:]) if _is_verb(verb) else _unknown(verb)
    except KeyboardInterrupt as error:
        status = _end_interrupted(verb, error)
        # A server has nothing left to save, and Python needs half a second to shut down once PyTorch is imported.
        return end(status) if verb == "serve" else status
    except (MemoryError, ImportError, RuntimeError, SystemError) as error:
        if not _is_about_memory(error) or os.environ.get("BYTELM_DEBUG"):
            raise
        if not _is_from_an_import(error):
            return _out_of_memory(verb, error)
        complain(verb, "there is not enough memory to load the libraries of this verb: close other programs")
        return end(1)  # a half-loaded library can crash when Python exits
    except (ValueError, OSError, FloatingPointError) as error:
        about_output = isinstance(error, OSError) and error.filename == STDOUT
        if about_output:
            Stdout().discard()
        if about_output and isinstance(error, BrokenPipeError):
            return 0  # the reader has left, as after `| head`
        if os.environ.get("BYTELM_DEBUG"):
            raise
        complain(verb if _is_verb(verb) else "", one_sentence(error))
        return 2 if isinstance(error, UsageError) else 1


def _is_verb(word: str) -> bool:
    """Return whether a word of the command line is a verb."""
    return word in verbs()


def _module_name(verb: str) -> str:
    return f"pipelines.verbs.{verb.replace('-', '_')}"


def _verb(verb: str, arguments: list[str]) -> int:
    module = importlib.import_module(_module_name(verb))
    for name, value in getattr(module, "ENVIRONMENT", {}).items():
        os.environ.setdefault(name, value)
    try:
        if hasattr(module, "main"):
            return module.main(arguments) or 0
        from pipelines.cli.parsing import parse  # imports tyro, which takes a tenth of a second

        parse(getattr(module, verb.replace("-", "_")), arguments, verb)
        return 0
    except SystemExit as leaving:
        if not leaving.code:
            Stdout().flush()
        raise


def _completion(shell: str = "") -> int:
    from pipelines.cli.completion import print_script

    try:
        print_script(list(verbs()), shell)
    except SystemExit:
        Stdout().flush()
    return 0


def _unknown(verb: str) -> int:
    complain("", f"there is no verb {verb!r}: {did_you_mean(verb, verbs())}`bytelm --help` lists all verbs")
    return 2


def _version() -> str:
    return f"bytelm {own_version()}\n"


def _print_error(text: str) -> int:
    Stdout().write(text)
    Stdout().flush()
    return 0


def _warn(verb: str, message: Warning | str) -> None:
    """Print a warning. Print none after Ctrl-C: interrupted imports cause misleading warnings."""
    if not interrupts:
        complain(verb, f"warning: {message}")


def _end_interrupted(verb: str, error: BaseException) -> int:
    """Print that a signal ended the verb, with the notes of `error`, and return the exit status.

    If torchrun started this process, only rank 0 prints it.
    """
    if is_first_process():
        complain(verb, ": ".join(["interrupted", *getattr(error, "__notes__", ())]))
    return 128 + (error.number if isinstance(error, StoppedBySignal) else (interrupts or [signal.SIGINT])[0])


def _is_about_memory(error: BaseException | None) -> bool:
    """Return whether `error`, or an error that led to it, says that memory ran out."""
    if error is None:
        return False
    return (
        isinstance(error, MemoryError)
        or any(message in str(error) for message in OUT_OF_MEMORY)
        or _is_about_memory(error.__cause__ or error.__context__)
    )


def _is_from_an_import(error: BaseException) -> bool:
    """Return whether `error` comes from importing a module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_name != "<module>":
        trace = trace.tb_next
    return isinstance(error, ImportError) or trace is not None


def _out_of_memory(verb: str, error: BaseException) -> int:
    """Print what to do about too little memory: the verb's own remedy, or one for models."""
    module = sys.modules.get(_module_name(verb))
    remedy = getattr(module, "OUT_OF_MEMORY", "choose a smaller context or model")
    complain(verb, f"there is not enough memory: {remedy} ({one_sentence(error)[:200]})")
    return 1

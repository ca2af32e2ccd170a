"""Arguments that several verbs share, and the checks of their values."""

import math
import re
import reprlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import tyro

from pipelines.cli.errors import UsageError
from tokenizer.kinds.registry import KINDS

OR_LOADED = "or a loaded run"
"""Marks an argument for which callers in Python may give a loaded run instead of the folder of a run."""
if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun
    from tokenizer.kinds.registry import Model as Model

    SweptKind: TypeAlias = Model | Literal["superwords"]
    AnyRun: TypeAlias = Path | LoadedRun
    RunFolder: TypeAlias = AnyRun
    RunFolders: TypeAlias = AnyRun | Sequence[AnyRun]
    OtherRun: TypeAlias = AnyRun | None
else:
    Model = Literal[KINDS]  # kinds of vocabularies
    SweptKind = Literal[(*KINDS, "superwords")]
    RunFolder = Annotated[Path, OR_LOADED, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="Folder of a run.")]
    RunFolders = Annotated[
        Path | Sequence[Path], OR_LOADED, tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")
    ]
    OtherRun = Annotated[Path | None, OR_LOADED]

TokenizerPath = Annotated[
    Path,
    tyro.conf.arg(metavar="PATH", help="Folder of the tokenizer, or its file in a published format."),
]
TokenizerOrRun = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="TOKENIZER | RUN", help="Folder or file of a tokenizer, or folder of a run."),
]
TokenizerPattern = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="PATTERN",
        help="Split pattern for files without one, such as .tiktoken and tokenizer.model: cl100k, llama3, another name "
        "or a regular expression; for vocab.txt bert-uncased or bert-cased. Published files do not need it.",
    ),
]
DryRun = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.arg(help="Print the planned work and its output path. Do nothing else."),
]
Engine = Annotated[
    Literal["local", "ray"],
    tyro.conf.arg(
        help="Workers: the threads of this process, or processes of a Ray cluster (needs bytelm[ray]). The result is "
        "the same. With ray, the same command resumes after a failure."
    ),
]
Address = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="HOST:PORT",
        help="Ray cluster to join; without it, ray starts a cluster on this machine and stops it at the end.",
    ),
]
DatasetPlace = Annotated[str | Path, tyro.conf.arg(metavar="DIR | URI")]
Checkpoint = Annotated[
    str,
    tyro.conf.arg(
        metavar="NAME",
        help="Checkpoint of the run: newest, best (lowest validation loss, or best score of a task with patience), or "
        "the number of a step. auto: best with patience, otherwise newest.",
    ),
]
Adapter = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="DIR",
        help="Folder of a LoRA adapter of the run, in the format of peft, to merge into the weights.",
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], tyro.conf.arg(help="Device to compute on.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"],
    tyro.conf.arg(help="Dtype of activations and matrix products; auto is the fastest of this machine."),
]
TextPooling = Literal["mean", "cls", "first", "last"]
"""The hidden states that stand for a text; cls is the first position."""
AsJson = Annotated[bool, tyro.conf.arg(name="json")]
SHORT = ("-q",)
"""Short names of options"""
Quiet = Annotated[
    bool,
    tyro.conf.FlagCreatePairsOff,
    tyro.conf.arg(aliases=SHORT, help="Print results and errors only."),
]
HelpAll = Annotated[
    bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="Print all options and their whole descriptions.")
]
# Each beam has its own keys and values; a mistyped number should not fill the memory.
MOST_BEAMS = 100
LARGEST_COUNT = 2**63 - 1  # as in TOML
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


def check_engine(engine: str, address: str | None, threads: int | None, without: Mapping[str, object]) -> None:
    """Raise ValueError for options that contradict `engine`. `without`: options that do not work with Ray."""
    from tokenizer.workers import thread_count  # slow to import for --help

    thread_count(threads)
    if address and engine != "ray":
        raise UsageError("`address` names a Ray cluster: add `engine='ray'`, or leave out `address`")
    given = [option for option, value in without.items() if value]
    if engine == "ray" and given:
        raise UsageError(f"`engine='ray'` does not take {given[0]}: leave one of them out")


def parse_count(text: str) -> int:
    """Return the whole number in `text`, such as "1024", "300k", "2.5M" or "2G" (decimal units).

    Raises ValueError for other text.
    """
    match = re.fullmatch(r"([+-]?\d[\d_]{0,99}(?:\.\d{1,99})?)([kmgb]?)", text.strip().lower(), re.ASCII)
    if match:
        number, unit = match[1].replace("_", ""), _UNITS[match[2]]
        whole, _, fraction = number.partition(".")
        numerator = int(whole + fraction) * unit
        denominator: int = 10 ** len(fraction)
        if abs(numerator) > LARGEST_COUNT * denominator:
            raise ValueError(f"{reprlib.repr(text)} is too large: the largest number is {LARGEST_COUNT:,}")
        if numerator % denominator == 0:
            return numerator // denominator
    raise ValueError(f"{reprlib.repr(text)} is not a whole number such as 4096, 300k, 2.5M or 2G")


def check_beams(beams: int, zero: str) -> None:
    """Raise ValueError for a bad `beams`; `zero` says what 0 does, such as "to sample"."""
    if not 0 <= beams <= MOST_BEAMS:
        raise ValueError(f"`beams` is {beams:,}, but must be from 1 to {MOST_BEAMS}, or 0 {zero}")


def check_length_penalty(length_penalty: float) -> None:
    """Raise ValueError for a `length_penalty` with which powers of lengths overflow."""
    if not -35 <= length_penalty <= 35:  # (10^8 tokens)^35 is still a float
        raise ValueError(f"`length_penalty` is {length_penalty}, but must be from -35 to 35 (1 for the mean per token)")


def check_layer(layer: int, layers: int) -> None:
    """Raise ValueError unless a model of `layers` layers has the hidden states `layer`, as transformers counts them."""
    if not -layers - 1 <= layer <= layers:
        raise ValueError(f"`layer` is {layer}, but must be from 0 to {layers}, or from -1 to {-layers - 1}")


def check_writable(name: str, path: str | Path | None, remedy: str) -> None:
    """Raise ValueError if no file can be made at `path`, or in it if it is a folder. It is checked by making one.

    `name` is that of an option or file. URIs are not checked.
    """
    if not path or "://" in str(path):
        return
    parents = (folder for folder in Path(path).absolute().parents if folder.exists())
    parent = Path(path) if Path(path).is_dir() else next(parents, None)
    if parent is None:
        return
    if not parent.is_dir():
        raise ValueError(f"{name} is {path}, but {parent} is a file, not a folder: {remedy}")
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        raise ValueError(f"{name} is {path}, but {parent} is not writable ({error.strerror}): {remedy}") from None


def parse_number(text: str) -> float:
    """Return the number in `text`, such as "0.1" or "3e-4"; ValueError for other text."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{reprlib.repr(text)} is not a number such as 0.1 or 3e-4") from None
    if math.isinf(number) and "inf" not in text.lower():
        raise ValueError(f"{reprlib.repr(text)} is too large: the largest number is {sys.float_info.max:.4g}")
    return number

"""Command lines from functions and dataclasses, with counts that people write as 300k, 50M or 2G."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

T = TypeVar("T")

# Arguments that several verbs share.
CorpusNames = Annotated[
    Sequence[str],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="CORPUS", help="Names of corpora, files, folders or globs."),
]
SplitRule = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="RULE",
        help="How validation is cut off: own, hash:0.05 or tail:0.1; by default the first of these that the corpus "
        "allows.",
    ),
]
InvalidPolicy = Annotated[
    Literal["error", "replace", "skip", "bytes"],
    tyro.conf.arg(help="What to do with a document that is not UTF-8; bytes takes it as it is."),
]
TextColumn = Annotated[
    str | None,
    tyro.conf.arg(metavar="NAME", help="The column of tables and JSON lines that holds the text."),
]
PairColumns = Annotated[
    tuple[str, str] | None,
    tyro.conf.arg(
        metavar="SOURCE TARGET",
        help="Two columns of tables or JSON lines that hold pairs of texts, such as: --pairs en de.",
    ),
]
RunFolder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="Folder of a run.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], tyro.conf.arg(help="Where to compute.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"],
    tyro.conf.arg(help="Of activations and matrix products; auto is what the machine is fastest at."),
]
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


def parse_count(text: str) -> int:
    """The whole number that `text` spells: "1024", "300k", "2.5M", "2G" (decimal units).

    Raises ValueError when it spells none.
    """
    match = re.fullmatch(r"([+-]?\d[\d_]*(?:\.\d+)?)([kmgb]?)", text.strip().lower())
    if match:
        number, unit = match[1].replace("_", ""), _UNITS[match[2]]
        whole, _, fraction = number.partition(".")
        numerator, denominator = int(whole + fraction) * unit, 10 ** len(fraction)
        if numerator % denominator == 0:
            return numerator // denominator
    raise ValueError(f"{text!r} is not a whole number such as 4096, 300k, 2.5M or 2G")


def refuse_with_pairs(*, invalid: str, text_column: str | None) -> None:
    """ValueError for an option that says something about single texts, where --pairs reads two columns."""
    if text_column is not None:
        raise ValueError("--text-column names one column and --pairs two: leave the first out")
    if invalid != "error":
        raise ValueError(f"--invalid {invalid} is for single texts: with --pairs convert what is not UTF-8 beforehand")


def parse(target: Callable[..., T], arguments: Sequence[str], verb: str, **options: Any) -> T:
    """Call `target` (a function or a dataclass) with what `arguments` say; print help or a usage error and
    leave when they ask for it or make no sense (exit status 0 or 2)."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def counts(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
        if info.type is not int:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="N",
            instance_from_str=lambda words: parse_count(words[0]),
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    return tyro.cli(
        target,
        args=list(arguments),
        prog=f"bytelm {verb}",
        registry=registry,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone),
        **options,
    )

"""Arguments of the verbs that read a corpus."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import tyro

from pipelines.cli.display import count_text, say

if TYPE_CHECKING:
    from corpora import Dropped
    from corpora.object_store import AnyPath

PairColumns = Annotated[
    tuple[str, str] | None,
    tyro.conf.arg(
        metavar="SOURCE TARGET",
        help="Two columns of tables or JSON lines that hold pairs of texts, such as: --pairs en de.",
    ),
]
CorpusNames = Annotated[
    Sequence[str],
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="CORPUS [CORPUS ...]",
        help="Names of corpora, files, folders, globs or URIs such as s3://bucket/folder.",
    ),
]
SplitRule = Annotated[
    str | None,
    tyro.conf.arg(
        metavar="RULE",
        help="Rule for the validation split: predefined (the corpus's own), hash:0.05, tail:0.1, or none to train on "
        "everything. By default the first of predefined, hash and tail that the corpus allows.",
    ),
]


# Options of `ReadingOptions`: in --help, and only in --help-all.
READING = ("text_column suffix encoding invalid", "max_document")


def _reading(help_text: str, default: str, **more: Any) -> Any:
    return tyro.conf.arg(help=help_text, help_behavior_hint=f"(default: {default})", prefix_name=False, **more)


class ReadingOptions(TypedDict, total=False):
    """Files of a corpus to read, and how to decode them."""

    text_column: Annotated[
        str | None,
        _reading(
            "Column of tables, JSON and CSV that holds the text, or a field in it: doc.text, messages[].content.",
            "text, or the only column",
            metavar="NAME",
        ),
    ]
    invalid: Annotated[
        Literal["error", "replace", "skip", "bytes"],
        _reading(
            "Policy for documents that are not valid UTF-8: stop with an error, replace invalid bytes, skip the "
            "document, or keep its bytes unchanged. skip also leaves out documents longer than --max-document, lines "
            "that are not JSON objects or whose text is not a string, and the rest of damaged files.",
            "error",
        ),
    ]
    max_document: Annotated[int, _reading("Longest document in bytes; a longer one is an error.", "256M")]
    suffix: Annotated[
        tuple[str, ...],
        _reading(
            "Suffixes of the files to read in folders and globs, such as .md .rst .py .html .csv .json.",
            ".txt .jsonl .parquet .arrow",
        ),
    ]
    encoding: Annotated[
        str | None,
        _reading("Encoding of text files, such as utf-8, utf-16 or latin-1.", "found for each file", metavar="NAME"),
    ]


def need_validation(split: str | None, work: str) -> None:
    """Raise ValueError for `split='none'`, which leaves no validation text; `work` is what needs some."""
    if split == "none":
        raise ValueError(f"`split='none'` leaves no validation text, which {work} needs: give hash:0.05 or tail:0.1")


# Suffixes of files that the verbs write and a corpus may have.
WRITTEN = {".arrow", ".html", ".json", ".jsonl", ".toml"}


def check_text(corpus: Sequence[str], out: "AnyPath", split: str | None, reading: ReadingOptions, work: str) -> None:
    """Raise ValueError if `split` leaves no validation text for `work`, or if `out` is in a folder of the corpus.

    The next call would read the files in `out` as text, unless `reading` names other suffixes than theirs.
    """
    need_validation(split, work)
    if not isinstance(out, Path) or ((suffix := reading.get("suffix")) and WRITTEN.isdisjoint(suffix)):
        return
    for name in corpus:
        if (folder := Path(name)).is_dir() and out.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"`out='{out}'` is inside the corpus {name}, so its files would become text: give a folder outside"
            )


def refuse_with_pairs(reading: ReadingOptions) -> None:
    """Raise ValueError for options that `pairs` does not take."""
    if reading.get("text_column") is not None:
        raise ValueError("`text_column` names one column, but `pairs` reads two: leave `text_column` out")
    if (invalid := reading.get("invalid", "error")) != "error":
        raise ValueError(f"`invalid='{invalid}'` does not work with `pairs`: convert the files to UTF-8 first")


SHOWN_FILES = 3
_is_said: ContextVar[bool] = ContextVar("is_said", default=False)


@contextmanager
def left_out_is_said() -> Iterator[None]:
    """Keep verbs that read a corpus again from repeating what it leaves out, inside a `with` block."""
    before = _is_said.set(True)
    try:
        yield
    finally:
        _is_said.reset(before)


def say_left_out(dropped: "Dropped | None", skipped_files: Mapping[str, int], say: Callable[[str], None] = say) -> None:
    """Print what a corpus leaves out and why, and which files are not UTF-8.

    `dropped` is None before a pass, `skipped_files` has the number of files of each suffix. Prints nothing inside
    `left_out_is_said`.
    """
    if _is_said.get():
        return
    from corpora.input_files import describe_skipped

    if dropped is not None:
        counts = {name.removesuffix("s").replace("_", " "): n for name, n in dropped.counts().items() if n}
        if counts:
            say("left out: " + ", ".join(count_text(count, name) for name, count in counts.items()))
        for reason in dropped.reasons:
            say(f"  {reason}")
        for encoding in sorted(set(dropped.encodings.values())):
            say(f"not UTF-8 but read as {encoding}: {_files_in(encoding, dropped.encodings)} (`encoding` overrules)")
    if skipped_files:
        say(f"skipped: {describe_skipped(skipped_files)} (`suffix` names the suffixes to read)")


def _files_in(encoding: str, encodings: Mapping[str, str]) -> str:
    """Return the names of the files with an encoding, such as "a.txt, b.txt, c.txt and 7 more"."""
    files = [name for name, own in encodings.items() if own == encoding]
    more = f" and {len(files) - SHOWN_FILES:,} more" if len(files) > SHOWN_FILES else ""
    return ", ".join(files[:SHOWN_FILES]) + more

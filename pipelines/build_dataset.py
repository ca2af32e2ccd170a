"""`bytelm build-dataset`: a corpus and a tokenizer to a folder of token blocks."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corpora import open_corpus
from pipelines.arguments import CorpusNames, InvalidPolicy, SplitRule, TextColumn, parse
from pipelines.blocks import write_blocks
from pipelines.display import Bar, say, table
from tokenizer import Tokenizer


def build_dataset(
    corpus: CorpusNames,
    *,
    tokenizer: Path,
    context_length: int,
    out: Path,
    split: SplitRule = None,
    invalid: InvalidPolicy = "error",
    text_column: TextColumn = None,
    separator: bool = True,
    threads: int | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Encode a corpus into blocks of token ids, and return what dataset.json says.

    The folder opens with datasets.load_from_disk. It appears whole or not at all.

    Args:
        tokenizer: Folder of the tokenizer, or its tokenizer.json.
        context_length: Tokens of a block.
        out: Folder to make.
        separator: Whether <|endoftext|> stands before every document.
        threads: Threads that encode; all cores by default.
        overwrite: Whether a dataset that is there already is replaced.
    """
    if context_length < 2:
        raise ValueError(f"--context-length is {context_length}, but a block needs at least 2 tokens")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists already: choose another --out, or replace it with --overwrite")
    tok = Tokenizer.load(tokenizer)
    source = open_corpus(corpus, split=split, invalid=invalid, text_column=text_column)
    with whole_folder(out) as partial, Bar("encoding", source.text_bytes_estimate, "B") as bar:
        info = write_blocks(
            source, tok, context_length, partial, separator=separator, threads=threads, progress=bar.update
        )
        # A run needs the tokenizer that its dataset was built with: they stay together.
        tok.save(partial)
    _summarize(out, info)
    return info


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A new empty folder beside `out` that takes its place when the block ends, and disappears when it fails.

    What a killed process left is removed; a second process that builds the same folder is refused.
    """
    partial = out.with_name(out.name + ".partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    lock_path = out.with_name(out.name + ".lock")
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{out} is being built by another process") from None
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                yield partial
                for path in partial.rglob("*"):
                    if path.is_file():
                        with path.open("rb") as file:
                            os.fsync(file.fileno())
                if out.exists():
                    shutil.rmtree(out)
                partial.rename(out)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        finally:
            lock_path.unlink(missing_ok=True)


def _summarize(out: Path, info: dict[str, Any]) -> None:
    rows = [
        (
            name,
            f"{s['documents']:,}",
            f"{s['bytes']:,}",
            f"{s['tokens']:,}",
            f"{s['blocks']:,}",
            f"{s['bytes'] / s['encoded_tokens']:.3f}",
        )
        for name, s in info["splits"].items()
    ]
    table(("split", "documents", "bytes", "tokens", "blocks", "bytes/token"), rows)
    say(f"{out}: blocks of {info['context_length']} tokens, split by {info['corpus']['split_rule']}")


def main(arguments: list[str]) -> None:
    parse(build_dataset, arguments, "build-dataset")

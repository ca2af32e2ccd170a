"""`bytelm build-dataset`: a corpus and a tokenizer to a folder of token blocks."""

from pathlib import Path
from typing import Any

from corpora import open_corpus
from pipelines.arguments import CorpusNames, InvalidPolicy, SplitRule, TextColumn, parse
from pipelines.blocks import write_blocks
from pipelines.display import Bar, say, say_left_out, table
from pipelines.files import whole_folder
from tokenizer import Tokenizer

# Blocks are Arrow lists of a fixed size, whose length has 31 bits; a batch of them must fit the memory.
LONGEST_CONTEXT = 1 << 26


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
    if not 2 <= context_length <= LONGEST_CONTEXT:
        raise ValueError(f"--context-length is {context_length:,}, but must be from 2 to {LONGEST_CONTEXT:,} tokens")

    def replaceable(there: Path) -> bool:
        return overwrite and (there / "dataset.json").is_file()

    if out.exists() and not replaceable(out):
        raise ValueError(f"{out} exists already: choose another --out (or replace a dataset with --overwrite)")
    tok = Tokenizer.load(tokenizer)
    source = open_corpus(corpus, split=split, invalid=invalid, text_column=text_column)
    with whole_folder(out, replaceable) as partial, Bar("encoding", source.text_bytes_estimate, "B") as bar:
        info = write_blocks(
            source, tok, context_length, partial, separator=separator, threads=threads, progress=bar.update
        )
        # A run needs the tokenizer that its dataset was built with: they stay together.
        tok.save(partial)
    _summarize(out, info)
    return info


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
    say_left_out(info["corpus"]["dropped"])


def main(arguments: list[str]) -> None:
    parse(build_dataset, arguments, "build-dataset")

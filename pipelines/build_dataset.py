"""`bytelm build-dataset`: a corpus and a tokenizer to a folder of token blocks, or of pairs."""

from pathlib import Path
from typing import Any, Unpack

from corpora import open_corpus, open_pairs
from pipelines.cli.arguments import DryRun, TokenizerPath, TokenizerPattern
from pipelines.cli.corpus_arguments import (
    CorpusNames,
    PairColumns,
    ReadingOptions,
    SplitRule,
    refuse_with_pairs,
    say_left_out,
)
from pipelines.cli.display import Bar, messages, say, table
from pipelines.cli.dry_run import plan_dataset
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.cli.vocabularies import load_tokenizer
from pipelines.dataset.blocks import write_blocks
from pipelines.dataset.pairs import write_pairs
from pipelines.files import whole_folder

# Blocks are Arrow lists of a fixed size, whose length has 31 bits; a batch of them must fit the memory.
LONGEST_CONTEXT = 1 << 26


@verb
def build_dataset(
    corpus: CorpusNames,
    *,
    tokenizer: TokenizerPath,
    out: Path,
    context_length: int | None = None,
    pattern: TokenizerPattern = None,
    pairs: PairColumns = None,
    split: SplitRule = None,
    separator: bool = True,
    threads: int | None = None,
    overwrite: bool = False,
    dry_run: DryRun = False,
    **reading: Unpack[ReadingOptions],
) -> dict[str, Any] | None:
    """Encode a corpus into blocks of token ids, or pairs of texts into pairs of lists, and return what dataset.json
    says.

    The folder opens with datasets.load_from_disk. It appears whole or not at all.

    Args:
        out: Folder to make.
        context_length: Tokens of a block; pairs keep lengths of their own.
        separator: Whether <|endoftext|> stands before every document.
        threads: Threads that encode; all cores by default.
        overwrite: Whether a dataset that is there already is replaced.
    """
    _check(context_length, pairs, separator)

    def replaceable(there: Path) -> bool:
        return overwrite and (there / "dataset.json").is_file()

    if out.exists() and not replaceable(out):
        raise ValueError(f"{out} exists already: choose another --out (or replace a dataset with --overwrite)")
    tok = load_tokenizer(tokenizer, pattern)
    if pairs:
        refuse_with_pairs(reading)
        source = open_pairs(corpus, pairs, split, **reading)
    else:
        source = open_corpus(corpus, split=split, **reading)
    if dry_run:
        plan_dataset(tokenizer, tok.vocab_size, source.text_bytes_estimate, context_length, source.split_rule, out)
        return None
    with whole_folder(out, replaceable) as partial, Bar("encoding", source.text_bytes_estimate, "B") as bar:
        # A run needs the tokenizer that its dataset was built with: they stay together.
        tok.save(partial)
        if pairs:
            info = write_pairs(source, tok, partial, threads=threads, progress=bar.update)
        else:
            info = write_blocks(
                source, tok, context_length, partial, separator=separator, threads=threads, progress=bar.update
            )
    (_summarize_pairs if pairs else _summarize)(out, info)
    say_left_out(info["corpus"]["dropped"], source.skipped_files)
    return info


def _check(context_length: int | None, pairs: tuple[str, str] | None, separator: bool) -> None:
    if pairs and context_length is not None:
        raise ValueError("--context-length is for blocks: leave it out, since pairs keep lengths of their own")
    if pairs and not separator:
        raise ValueError("--no-separator is for blocks: leave it out, since pairs have no separators")
    if not pairs and context_length is None:
        raise ValueError("--context-length is missing: give the tokens of a block, such as 256 (or --pairs for pairs)")
    if not pairs and not 2 <= context_length <= LONGEST_CONTEXT:
        raise ValueError(f"--context-length is {context_length:,}, but must be from 2 to {LONGEST_CONTEXT:,} tokens")


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
    table(("split", "documents", "bytes", "tokens", "blocks", "bytes/token"), rows, to=messages)
    say(f"{out}: blocks of {info['context_length']} tokens, split by {info['corpus']['split_rule']}")


def _summarize_pairs(out: Path, info: dict[str, Any]) -> None:
    sides = dict(zip(("source", "target"), info["corpus"]["columns"], strict=True))
    rows = [
        (
            name,
            f"{s['pairs']:,}",
            column,
            f"{s[f'{side}_tokens']:,}",
            f"{s[f'longest_{side}']:,}",
            f"{s[f'{side}_bytes'] / max(1, s[f'{side}_tokens']):.3f}",
        )
        for name, s in info["splits"].items()
        for side, column in sides.items()
    ]
    table(("split", "pairs", "column", "tokens", "longest", "bytes/token"), rows, to=messages)
    say(f"{out}: pairs, split by {info['corpus']['split_rule']}")


def main(arguments: list[str]) -> None:
    parse(build_dataset, arguments, "build-dataset")

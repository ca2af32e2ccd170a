"""Text: list the named corpora, or describe one.

Examples:
    bytelm corpus list
    bytelm corpus list --quiet
    bytelm corpus show stdlib
    bytelm corpus show my-text/ --suffix .txt .md
"""

import textwrap
from typing import TYPE_CHECKING, Unpack

from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, say_left_out
from pipelines.cli.display import Bar, answer, quantity, table
from pipelines.cli.escapes import safe
from pipelines.cli.parsing import parse_second

if TYPE_CHECKING:
    from corpora import CorpusSummary

OUT_OF_MEMORY = "lower `max_document`"

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Corpus": ("corpus split excerpts", ""),
    "Reading files": READING,
}


def list_corpora() -> None:
    """Print the named corpora with their sizes, licences and descriptions."""
    from corpora import list_cards

    for card in list_cards():
        size = card.size.get("bytes")
        facts = [f"about {quantity(size, 'B')}" if size else "", card.licence]
        answer(_wrap(f"{card.name}: {', '.join(filter(None, facts))}", ""))
        answer(_wrap(card.description, "    "))


def _wrap(text: str, indent: str) -> str:
    """Return `text` wrapped to the terminal, or to 80 columns in a pipe."""
    from pipelines.cli.console import results

    return textwrap.fill(text, results.width, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False)


def show(
    corpus: CorpusNames,
    *,
    split: SplitRule = None,
    excerpts: int = 3,
    **reading: Unpack[ReadingOptions],
) -> "CorpusSummary":
    """Read a corpus and print its documents, bytes, splits, licence and the beginnings of some documents.

    Args:
        excerpts: Number of documents whose beginnings to print.
    """
    if excerpts < 0:
        raise ValueError(f"`excerpts` is {excerpts}, but must not be negative")
    from corpora import open_corpus, summarize
    from pipelines.cli.console import print_on, results

    source = open_corpus(corpus, split=split, **reading)
    with Bar("reading", source.text_bytes_estimate, "B") as bar:
        found = summarize(source, excerpts=excerpts, progress=bar.phase)
    answer(f"{found.name}: {found.description}" if found.description else found.name)
    if found.licence:
        answer(f"licence: {found.licence}")
    rows = [(name, f"{s.documents:,}", f"{s.bytes:,}") for name, s in found.splits.items()]
    table(("split", "documents", "bytes"), [*rows, ("all", f"{found.documents:,}", f"{found.bytes:,}")])
    answer(f"splits: {found.split_description}")
    say_left_out(found.dropped, found.skipped_files, say=answer)
    for excerpt in found.excerpts:
        results.rule(style="dim", characters="-")
        print_on(results, safe(excerpt), markup=False)  # `answer` would turn `names` in backticks into options
    return found


def main(arguments: list[str]) -> None:
    """Run `bytelm corpus` with command-line arguments."""
    parse_second({"list": list_corpora, "show": show}, arguments, "corpus")

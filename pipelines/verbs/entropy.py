"""Text: measure a text without a model: entropies, mutual information, Zipf's and Heaps' laws.

Examples:
    bytelm entropy my-text/
    bytelm entropy stdlib --unit tokens --tokenizer words --out entropy.html
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

import tyro

from pipelines.cli.arguments import AsJson, TokenizerPattern
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, say_left_out
from pipelines.cli.display import Bar, answer, count_text, say, say_on_stderr, table, write
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb

if TYPE_CHECKING:
    from corpora import Corpus
    from pipelines.evaluation.entropy_results import TextEntropy
    from pipelines.evaluation.symbols import SymbolText

ENVIRONMENT = PASSIVE_THREADS
OUT_OF_MEMORY = "lower `sample_bytes`, or give a smaller corpus"

RATE_SAMPLE = 16_000_000  # bytes

OptionalTokenizer = Annotated[
    Path | None,
    tyro.conf.arg(
        metavar="PATH", help="Tokenizer of the tokens to count: its folder, or its file in a published format."
    ),
]

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("corpus against sample_bytes", ""),
    "Reading files": READING,
    "Symbols": ("unit tokenizer", "pattern"),
    "Output": ("out explain json threads", ""),
}


@verb
def entropy(
    corpus: CorpusNames,
    *,
    unit: Literal["bytes", "characters", "tokens"] = "bytes",
    tokenizer: OptionalTokenizer = None,
    pattern: TokenizerPattern = None,
    against: Annotated[str | None, tyro.conf.arg(metavar="CORPUS")] = None,
    sample_bytes: int | None = None,
    threads: int | None = None,
    out: Path | None = None,
    explain: bool = False,
    as_json: AsJson = False,
    **reading: Unpack[ReadingOptions],
) -> "TextEntropy":
    """Print n-gram entropies, mutual information, entropy rate, Zipf's and Heaps' laws of a corpus, and return them.

    The command reads all splits into memory, or a sample of them. For a synthetic corpus it also shows the true values.

    Args:
        unit: Symbols to count: bytes, characters, or the tokens of `tokenizer`.
        against: Corpus to compare with: KL and Jensen-Shannon divergence.
        sample_bytes: Bytes of text to measure, from a random sample of documents; by default the whole corpus, and 16M
            of it for the entropy rate. A sample limits memory and time.
        threads: Number of threads; all cores by default.
        out: HTML page to write, with plots and definitions.
        explain: Print the definition of each number.
        as_json: Print all numbers as JSON, and nothing else.
    """
    if (unit == "tokens") != (tokenizer is not None):
        raise ValueError("`unit='tokens'` and `tokenizer` belong together: give both or neither")
    if unit == "characters" and reading.get("invalid") == "bytes":
        raise ValueError(
            "`unit='characters'` cannot count bytes that `invalid='bytes'` keeps: choose `invalid='replace'` or skip"
        )
    if sample_bytes is not None and sample_bytes < 1:
        raise ValueError(f"`sample_bytes` is {sample_bytes:,}, but must be at least 1 byte")
    if out is not None and out.is_dir():
        raise ValueError(f"`out='{out}'` is a folder: name the file to write")
    from corpora import open_corpus
    from pipelines.cli.named_tokenizers import load_tokenizer
    from tokenizer.workers import thread_count

    if as_json:
        say_on_stderr()
    threads = thread_count(threads)
    tok = load_tokenizer(tokenizer, pattern) if tokenizer else None
    # The default rule may cut a document if there are few.
    sources = [
        open_corpus(names, split="none", first_bytes=sample_bytes, **reading) for names in (corpus, against) if names
    ]
    from corpora.synthetic import source_from_description
    from pipelines.evaluation.symbols import read_symbols
    from pipelines.evaluation.text_entropy import REMEDY, missing_extras, text_entropy

    known = sources[0].synthetic if unit != "tokens" else None
    with Bar(f"reading {sources[0].name}", None, "B") as bar:

        def read(source: "Corpus") -> "SymbolText":
            label, estimate = f"reading {source.name}", source.text_bytes_estimate
            return read_symbols(
                source, unit, tok, threads, lambda done: bar.phase(label, done, estimate, "B"), sample_bytes
            )

        texts = [read(source) for source in sources]
        numbers = text_entropy(
            texts[0],
            texts[1] if against else None,
            source_from_description(known) if known else None,
            sample=sample_bytes or RATE_SAMPLE,
            threads=threads,
            progress=bar.phase,
        )
    for source in sources:
        say_left_out(source.dropped, source.skipped_files)
    if out is not None:
        from pipelines.reporting.entropy_page import write_entropy_page

        write_entropy_page(numbers, out)
    if as_json:
        write(json.dumps(numbers.to_json()))
    else:
        _show(numbers, explain, sample_bytes is not None)
    if extras := missing_extras():
        say(f"left out: {' and '.join(extras.values())}; needs {' and '.join(extras)} ({REMEDY})")
    if out is not None:
        say(f"{out}")
    return numbers


def _show(numbers: "TextEntropy", explain: bool, sampled: bool) -> None:
    from pipelines.evaluation.entropy_tables import tables
    from pipelines.evaluation.text_entropy import DEFINITIONS

    answer(_summary(numbers, sampled))
    for each in tables(numbers):
        answer("")
        table((each.label, *each.heads), [(name, *cells) for name, cells in each.rows])
    if not numbers.mutual_information.distances:
        answer("mutual information is left out: the documents have too few pairs of symbols")
    elif other := numbers.mutual_information.other:
        answer(
            f"mutual information: all but the 255 most frequent {numbers.unit} count as one symbol, "
            f"{other:.1%} of the text"
        )
    if not all(row.reliable for row in numbers.ngrams):
        answer("* coverage below 95 %: entropies are unreliable and too low")
    if explain:
        for name, definition in DEFINITIONS.items():
            answer(f"\n{name}\n  {definition}")
    else:
        say("`explain` defines the numbers")


def _summary(numbers: "TextEntropy", sampled: bool) -> str:
    unit = numbers.unit
    text = f"{numbers.corpus}: {count_text(numbers.symbols, unit[:-1])}, {numbers.alphabet:,} different, in "
    text += count_text(numbers.documents, "document") + (" of a random sample" if sampled else "")
    return text if unit == "bytes" else f"{text}; {numbers.bytes_per_symbol:.3f} bytes per {unit[:-1]}"

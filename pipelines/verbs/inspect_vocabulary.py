"""Text: list tokens that texts hardly need, and compare the tokens of several languages.

Examples:
    bytelm inspect-vocabulary tokenizer my-text/
    bytelm inspect-vocabulary runs/gpt --parallel sentences.jsonl
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import tyro

from pipelines.cli.arguments import AsJson, TokenizerOrRun, TokenizerPattern
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, say_left_out
from pipelines.cli.display import Bar, answer, table, write
from pipelines.cli.errors import UsageError
from pipelines.cli.named_tokenizers import load_compared, load_tokenizer
from pipelines.cli.verbs import verb
from pipelines.run.folder import Run
from tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np

    from corpora import Corpus

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("source corpus split data parallel reference", ""),
    "Reading files": READING,
    "Vocabulary": ("rare compare", "pattern"),
    "Memory and time": ("threads", ""),
    "Output": ("json", ""),
}


@verb
def inspect_vocabulary(
    source: TokenizerOrRun,
    corpus: CorpusNames = (),
    *,
    rare: int = 10,
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    parallel: Path | None = None,
    reference: str | None = None,
    compare: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME=]PATH ...")] = (),
    pattern: TokenizerPattern = None,
    split: SplitRule = None,
    threads: int | None = None,
    as_json: AsJson = False,
    **reading: Unpack[ReadingOptions],
) -> dict[str, Any]:
    """Describe the tokens of a vocabulary; return the numbers and ids.

    Lists the tokens of byte-level BPE that its merges never make, and the tokens that the split pattern cuts. Also
    lists the tokens that the training split of a corpus uses never or rarely, the longest tokens, and the oddest. The
    characters of the oddest tokens change most often between scripts, digits, punctuation and white space. Many such
    tokens do not make a model worse: compare bits per byte.

    Args:
        rare: Number of uses below which a token is rare.
        data: Dataset of the tokenizer: count the tokens of its training split instead of a corpus.
        parallel: JSON lines with the same sentence in several languages, such as {"en": "a house", "de": "ein Haus"}.
            Each language has its tokens per sentence, and its premium: its number of tokens divided by the smallest
            one. The Gini coefficient is 0 if all languages need equally many tokens.
        reference: Language of PARALLEL that has the premium 1; by default the one with the fewest tokens.
        compare: Other tokenizers to describe beside this one. Each is PATH or NAME=PATH.
        threads: Threads that encode; all cores by default.
        as_json: Print all numbers and ids as JSON, and nothing else.
    """
    if rare < 1:
        raise ValueError(f"`rare` is {rare}, but must be at least 1")
    if data is not None and corpus:
        raise UsageError("the tokens are counted either in a corpus or in `data`: leave one of them out")
    if reference is not None and parallel is None:
        raise UsageError("`reference` is a language of `parallel`: give `parallel`, too")
    is_run = (source / "config.toml").is_file()
    if is_run and pattern is not None:
        raise ValueError("`pattern` is for tokenizer files: leave it out for a run")
    tok = Run(source).tokenizer() if is_run else load_tokenizer(source, pattern)
    others, name = load_compared(compare), source.name or str(source)
    if name in others:
        raise ValueError(f"`compare` has a tokenizer with the name {name}: give it another one, as NAME=PATH")
    tokenizers = {name: tok, **others}
    from pipelines.reporting.language_parity import language_costs, read_parallel
    from pipelines.reporting.vocabulary_health import health_of

    texts = None if parallel is None else read_parallel(parallel)
    counts = {} if data is None else {name: _counts_of(data, tok)}
    if corpus:
        counts = _count(tokenizers, corpus, split, reading, threads, as_json)
    described = {}
    for each, one in tokenizers.items():
        found = {"tokenizer": str(source) if one is tok else each, **health_of(one, counts.get(each), rare)}
        if texts is not None:
            found["languages"] = language_costs(one, texts, reference)
        described[each] = found
    result = {**described.pop(name), **({"compared": described} if described else {})}
    if as_json:
        write(json.dumps(result, indent=2))
    else:
        _show(tokenizers, {name: result, **described}, rare)
    return result


def _counts_of(data: Path, tok: Tokenizer) -> "np.ndarray":
    """Return how often the training split of a dataset has each token, int64 (vocab_size,).

    Raises ValueError for a dataset of another tokenizer.
    """
    from pipelines.dataset.reader import TokenDataset
    from pipelines.reporting.vocabulary_health import token_counts

    dataset = TokenDataset(data)
    if dataset.tokenizer_fingerprint != tok.fingerprint:
        raise ValueError(f"`data` is {data}, which was built with another tokenizer: give a dataset of this one")
    return token_counts(dataset, tok.vocab_size)


def _count(
    tokenizers: Mapping[str, Tokenizer],
    corpus: Sequence[str],
    split: str | None,
    reading: ReadingOptions,
    threads: int | None,
    quiet: bool,
) -> dict[str, "np.ndarray"]:
    """Return how often the training split of a corpus has each token of each tokenizer."""
    from corpora import open_corpus

    text = open_corpus(corpus, split=split, **reading)
    counts = {name: _count_corpus(tok, text, threads, quiet) for name, tok in tokenizers.items()}
    if not quiet:
        say_left_out(text.dropped, text.skipped_files)
    return counts


def _count_corpus(tok: Tokenizer, text: "Corpus", threads: int | None, quiet: bool) -> "np.ndarray":
    from contextlib import nullcontext

    from pipelines.reporting.training_phases import Phases
    from tokenizer.trimming import count_ids

    size = text.text_bytes_estimate
    with nullcontext() if quiet else Bar("encoding", size, "B") as bar:
        phases = Phases(bar, size)
        counts = count_ids(tok.vocabulary, text.batches("train"), threads, phases)
        phases.end()
    return counts


def _show(tokenizers: Mapping[str, Tokenizer], described: Mapping[str, dict[str, Any]], rare: int) -> None:
    """Print one vocabulary with examples, or the numbers of several side by side."""
    from pipelines.reporting.vocabulary_health import EXTREMES, examples_of, list_names, number_of

    names = list_names(rare)
    rows: list[tuple[str, ...]]
    (name, found), *others = described.items()
    if others:
        rows = [("entries", *(f"{found['entries']:,}" for found in described.values()))]
        for key in [key for key in names if key not in EXTREMES]:
            numbers = [len(found[key]) if key in found else None for found in described.values()]
            rows.append((names[key], *("–" if number is None else f"{number:,}" for number in numbers)))
        table(("tokens", *described), rows)
    else:
        answer(f"{found['tokenizer']}: {found['entries']:,} entries, {found['kind']}")
        tok, keys = tokenizers[name], [key for key in names if key in found]
        rows = [(names[key], number_of(key, found[key]), " ".join(examples_of(tok, found[key]))) for key in keys]
        table(("tokens", "number", "examples"), rows, text=True)
    if all("languages" in found for found in described.values()):
        from pipelines.reporting.language_parity import show_costs

        answer("")
        show_costs({name: found["languages"] for name, found in described.items()})

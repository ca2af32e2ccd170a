"""Text: list tokens that texts hardly need, and compare the tokens of several languages.

Examples:
    bytelm inspect-vocabulary tokenizer my-text/
    bytelm inspect-vocabulary runs/gpt --parallel sentences.jsonl
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from pipelines.cli.arguments import AsJson, TokenizerOrRun, TokenizerPattern
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, say_left_out
from pipelines.cli.display import Bar, answer, table, write
from pipelines.cli.escapes import visible
from pipelines.cli.named_tokenizers import load_tokenizer
from pipelines.cli.verbs import verb
from pipelines.run.folder import Run
from tokenizer import Tokenizer

EXAMPLES = 5
LONGEST_EXAMPLE = 20  # bytes

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("source corpus split", ""),
    "Reading files": READING,
    "Vocabulary": ("rare parallel", "pattern"),
    "Memory and time": ("threads", ""),
    "Output": ("json", ""),
}


@verb
def inspect_vocabulary(
    source: TokenizerOrRun,
    corpus: CorpusNames = (),
    *,
    rare: int = 10,
    parallel: Path | None = None,
    pattern: TokenizerPattern = None,
    split: SplitRule = None,
    threads: int | None = None,
    as_json: AsJson = False,
    **reading: Unpack[ReadingOptions],
) -> dict[str, Any]:
    """Describe the tokens of a vocabulary; return the numbers and ids.

    Tokens of byte-level BPE that no text becomes, tokens that the split pattern cuts, and tokens that the training
    split of a corpus uses never or rarely. Many such tokens do not make a model worse: compare bits per byte.

    Args:
        rare: Number of uses below which a token is rare.
        parallel: JSON lines with the same sentence in several languages, such as {"en": "a house", "de": "ein Haus"}.
            Each language has the number of its tokens, and its premium: that number divided by the smallest one. The
            Gini coefficient is 0 if all languages need equally many tokens.
        threads: Threads that encode; all cores by default.
        as_json: Print all numbers and ids as JSON, and nothing else.
    """
    if rare < 1:
        raise ValueError(f"`rare` is {rare}, but must be at least 1")
    is_run = (source / "config.toml").is_file()
    if is_run and pattern is not None:
        raise ValueError("`pattern` is for tokenizer files: leave it out for a run")
    tok = Run(source).tokenizer() if is_run else load_tokenizer(source, pattern)
    from pipelines.reporting.language_parity import language_costs, read_parallel

    texts = None if parallel is None else read_parallel(parallel)
    found: dict[str, Any] = {"tokenizer": str(source), "entries": tok.vocab_size, "kind": tok.kind}
    if tok.kind == "bpe":
        from tokenizer.health import split_tokens, unmerged_tokens

        found |= {"unmerged": unmerged_tokens(tok.vocabulary), "split": split_tokens(tok.vocabulary)}
    if corpus:
        found |= _used(tok, corpus, split, reading, rare, threads, as_json)
    if texts is not None:
        found["languages"] = language_costs(tok, texts)
    if as_json:
        write(json.dumps(found, indent=2))
    else:
        _show(tok, found, rare)
    return found


def _used(
    tok: Tokenizer,
    corpus: Sequence[str],
    split: str | None,
    reading: ReadingOptions,
    rare: int,
    threads: int | None,
    quiet: bool,
) -> dict[str, Any]:
    """Return the ids of ordinary tokens that the training split uses never, and fewer than `rare` times."""
    from contextlib import nullcontext

    from corpora import open_corpus
    from pipelines.reporting.training_phases import Phases
    from tokenizer.trimming import count_ids

    text = open_corpus(corpus, split=split, **reading)
    size = text.text_bytes_estimate
    with nullcontext() if quiet else Bar("encoding", size, "B") as bar:
        phases = Phases(bar, size)
        used = count_ids(tok.vocabulary, text.batches("train"), threads, phases)
        phases.end()
    if not quiet:
        say_left_out(text.dropped, text.skipped_files)
    special = {*tok.special_tokens.values()}
    ordinary = [i for i, token in enumerate(tok.vocabulary.tokens) if token and i not in special]
    return {
        "tokens": int(used.sum()),
        "unused": [i for i in ordinary if not used[i]],
        "rare": [i for i in ordinary if 0 < used[i] < rare],
    }


def _show(tok: Tokenizer, found: dict[str, Any], rare: int) -> None:
    answer(f"{found['tokenizer']}: {found['entries']:,} entries, {tok.kind}")
    names = {
        "unmerged": "that no text becomes",
        "split": "that the split pattern cuts",
        "unused": "never used in the training split",
        "rare": f"used fewer than {rare} times",
    }
    rows = [(name, f"{len(found[key]):,}", _examples(tok, found[key])) for key, name in names.items() if key in found]
    longest = sorted(range(len(tok.vocabulary.tokens)), key=lambda i: -len(tok.vocabulary.tokens[i] or b""))
    table(("tokens", "number", "examples"), [*rows, ("longest", "", _examples(tok, longest))], text=True)
    if languages := found.get("languages"):
        from pipelines.reporting.language_parity import show_costs

        answer("")
        show_costs({str(found["tokenizer"]): languages})


def _examples(tok: Tokenizer, ids: Sequence[int]) -> str:
    return " ".join(visible((tok.vocabulary.tokens[i] or b"")[:LONGEST_EXAMPLE]) for i in ids[:EXAMPLES])

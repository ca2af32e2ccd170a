"""Facts about a tokenizer, for a report."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipelines.dataset.reader import TokenDataset
from pipelines.files import distinct_names
from pipelines.reporting.token_labels import KINDS, TokenLabels
from pipelines.reporting.tokenizer_summary import spelled_lengths
from pipelines.reporting.vocabulary_health import (
    RARE,
    examples_of,
    health_of,
    list_names,
    number_of,
    token_counts,
)
from pipelines.run.folder import Run
from pipelines.training.mixture import open_dataset
from tokenizer import Tokenizer, sentinels

EXAMPLES = 12


@dataclass(frozen=True)
class TokenizerFacts:
    """Facts about a tokenizer.

    `rows` are labels with a value, `kinds` are kinds of tokens with their number, and `examples` are titles with the
    labels of some tokens. `health` are names of lists of tokens, with their number and some of the tokens. `counted`
    says which text they were counted in; "" if no dataset was found.
    """

    fingerprint: str
    rows: list[tuple[str, list[str]]]
    kinds: list[tuple[str, list[str]]]
    examples: list[tuple[str, list[str]]]
    health: list[tuple[str, str, list[str]]]
    counted: str


def tokenizer_facts(run: Run) -> TokenizerFacts:
    """Return facts about the tokenizer of `run`, with its bytes per token on the run's dataset."""
    tok = run.tokenizer()
    labels = TokenLabels(tok)
    counts = Counter(labels.kinds())
    lengths = spelled_lengths(tok)[labels.ids]  # 0 for special tokens
    datasets = _datasets(run, tok.fingerprint)
    merged = [place for place, length in enumerate(lengths.tolist()) if length > 1] if tok.merges else []
    facts = [
        ("entries", f"{tok.vocab_size:,}"),
        ("merges", f"{len(tok.merges):,}"),
        ("split pattern", str(tok.pattern)),
        ("special tokens", _special_tokens(tok)),
        *_bytes_per_token(datasets),
        ("fingerprint", tok.fingerprint[:16]),
    ]
    examples = {
        "Longest tokens": np.argsort(-lengths, kind="stable")[:EXAMPLES].tolist(),
        "First merged tokens": merged[:EXAMPLES],
        "Last merged tokens": merged[-EXAMPLES:],
    }
    return TokenizerFacts(
        tok.fingerprint,
        [(label, [value]) for label, value in facts],
        [(name, [f"{counts[kind]:,}"]) for kind, name in enumerate(KINDS) if counts[kind]],
        [(title, labels.at(places)) for title, places in examples.items() if places],
        *_health(tok, datasets),
    )


def _special_tokens(tok: Tokenizer) -> str:
    """Return the names of the special tokens, with sentinels as a range."""
    numbered = [name for name in sentinels(len(tok.special_tokens)) if name in tok.special_tokens]
    names = [name for name in tok.special_tokens if name not in numbered]
    if len(numbered) > 2:
        numbered = [numbered[0], "to", numbered[-1]]
    return " ".join([*names, *numbered]) or "none"


def _datasets(run: Run, fingerprint: str) -> dict[str, TokenDataset]:
    """Return the run's datasets by name; omit pairs, datasets of another tokenizer, and missing ones."""
    found = {}
    for folder, name in zip(run.sources, distinct_names(list(run.sources)), strict=True):
        try:
            dataset = open_dataset(folder, run.recipe.objective)
        except (ValueError, OSError):
            continue
        if isinstance(dataset, TokenDataset) and dataset.tokenizer_fingerprint == fingerprint:
            found[name] = dataset
    return found


def _bytes_per_token(datasets: Mapping[str, TokenDataset]) -> list[tuple[str, str]]:
    """Return a row for each split of each dataset."""
    rows = []
    for name, dataset in datasets.items():
        source = f"/{name}" if len(datasets) > 1 else ""
        for split in dataset.splits:
            rows.append((f"bytes per token, {split}{source}", f"{dataset.bytes_per_token(split):.3f}"))
    return rows


def _health(tok: Tokenizer, datasets: Mapping[str, TokenDataset]) -> tuple[list[tuple[str, str, list[str]]], str]:
    """Return the lists of `health_of` with numbers and examples, and a sentence about the tokens that were counted."""
    counts = [token_counts(dataset, tok.vocab_size) for dataset in datasets.values()]
    found = health_of(tok, np.sum(counts, axis=0) if counts else None)
    rows = [
        (name, number_of(key, found[key]), examples_of(tok, found[key]))
        for key, name in list_names(RARE).items()
        if key in found and key != "longest" and (found[key] or key != "oddest")  # the examples have the longest
    ]
    if not counts:
        return rows, ""
    return rows, f"Uses are counted in the {found['tokens']:,} training tokens of {' and '.join(datasets)}."

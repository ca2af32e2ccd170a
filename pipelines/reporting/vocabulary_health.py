"""Unused, rare and odd tokens of a vocabulary, for inspect-vocabulary and the report.

They describe the vocabulary, but hardly predict the quality of a model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelines.cli.escapes import visible
from pipelines.dataset.reader import TokenDataset
from tokenizer import Tokenizer
from tokenizer.health import longest_tokens, odd_tokens, split_tokens, unmerged_tokens

RARE = 10
EXAMPLES = 5
LONGEST_EXAMPLE = 20  # bytes
LISTED = 20  # longest and oddest tokens
EXTREMES = ("longest", "oddest")


def list_names(rare: int) -> Mapping[str, str]:
    """Return the names of the lists that `health_of` returns, by key."""
    return {
        "unmerged": "that merges never make",
        "split": "that the split pattern cuts",
        "unused": "never used",
        "rare": f"used fewer than {rare} times",
        "longest": "longest",
        "oddest": "oddest",
    }


def token_counts(dataset: TokenDataset, vocab_size: int) -> np.ndarray:
    """Return how often each token occurs in the training split of a dataset, int64 (vocab_size,)."""
    counts = np.zeros(vocab_size, np.int64)
    for chunk in dataset.split("train").chunks():
        counts += np.bincount(chunk, minlength=vocab_size)
    return counts


def health_of(tok: Tokenizer, counts: np.ndarray | None, rare: int = RARE) -> dict[str, Any]:
    """Return the numbers and lists of ids of a vocabulary. `counts`: uses of each token, int64 (vocab_size,)."""
    vocabulary = tok.vocabulary
    found: dict[str, Any] = {"entries": tok.vocab_size, "kind": tok.kind}
    if tok.kind == "bpe":
        found |= {"unmerged": unmerged_tokens(vocabulary), "split": split_tokens(vocabulary)}
    if counts is not None:
        ordinary = [i for i, text in enumerate(tok.ordinary.tolist()) if text]
        found["tokens"] = int(counts.sum())
        found["unused"] = [i for i in ordinary if not counts[i]]
        found["rare"] = [i for i in ordinary if 0 < counts[i] < rare]
    return found | {"longest": longest_tokens(vocabulary, LISTED), "oddest": odd_tokens(vocabulary, LISTED)}


def number_of(key: str, ids: Sequence[int]) -> str:
    """Return the number of tokens in a list; "" for a list of extremes, which has a fixed length."""
    return "" if key in EXTREMES else f"{len(ids):,}"


def examples_of(tok: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the first tokens of a list, with visible white space."""
    return [visible((tok.vocabulary.tokens[i] or b"")[:LONGEST_EXAMPLE]) for i in ids[:EXAMPLES]]

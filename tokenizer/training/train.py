"""From pretoken counts to a vocabulary: validation of options, and training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from tokenizer.byte_level import BYTE_ORDERS
from tokenizer.special import check_special_tokens
from tokenizer.splitting.bert import BertWords
from tokenizer.splitting.patterns import refuse_misread_by_tokenizers
from tokenizer.training.counting import PretokenCounts
from tokenizer.training.merging import check_memory, learn_merges
from tokenizer.vocabulary import Vocabulary, trained_vocabulary

LARGEST_VOCABULARY = 2**24


def check_options(
    vocab_size: int,
    special_tokens: Sequence[str],
    min_frequency: int,
    max_token_length: int | None,
    byte_order: str,
) -> tuple[str, ...]:
    """Return the special tokens as a tuple. ValueError for options with which no vocabulary can be trained."""
    special_tokens = check_special_tokens(special_tokens)
    for name, value, least in (("min_frequency", min_frequency, 0), ("max_token_length", max_token_length, 1)):
        if value is None and name == "max_token_length":
            continue
        if value is None or not _is_whole(value) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if byte_order not in [*BYTE_ORDERS]:
        raise ValueError(f"byte_order must be {' or '.join(BYTE_ORDERS)}, not {byte_order!r}")
    least = 256 + len(special_tokens)
    if not _is_whole(vocab_size):
        raise ValueError(f"vocab_size must be a whole number, not {vocab_size!r}")
    if vocab_size < least:
        raise ValueError(
            f"vocab_size must be at least {least} (the 256 bytes and {len(special_tokens)} special tokens), "
            f"not {vocab_size!r}"
        )
    if vocab_size > LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size must be at most {LARGEST_VOCABULARY}, not {vocab_size}")
    return special_tokens


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def train_vocabulary(
    counts: PretokenCounts,
    vocab_size: int,
    special_tokens: tuple[str, ...],
    min_frequency: int,
    max_token_length: int | None,
    byte_order: str,
    progress: Callable[[str, int, int | None], None] | None,
    memory: int | None,
) -> Vocabulary:
    """Train a vocabulary as `Tokenizer.train_from_counts` describes, with options from `check_options`.

    Warns at the caller of the caller when pairs run out.
    """
    if isinstance(counts.pattern, BertWords):
        raise ValueError(
            f"the counts are of {counts.pattern} words, which do not give back the text: count with another pattern"
        )
    refuse_misread_by_tokenizers(counts.pattern)  # tokenizer.json could not express it
    check_memory(counts, memory)
    wanted = vocab_size - 256 - len(special_tokens)
    order = BYTE_ORDERS[byte_order]
    merges = learn_merges(
        counts,
        wanted,
        byte_order=order,
        min_frequency=min_frequency,
        max_token_length=max_token_length,
        memory=memory,
        progress=progress,
    )
    if len(merges) < wanted:
        warnings.warn(
            f"the corpus ran out of pairs that occur at least {max(1, min_frequency)} times: "
            f"the vocabulary has {vocab_size - wanted + len(merges)} entries, not {vocab_size}",
            stacklevel=3,
        )
    return trained_vocabulary(merges, order, special_tokens, counts.pattern)

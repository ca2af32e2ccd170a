"""How well a tokenizer fits a text: tokens per word, whole words, Rényi efficiency and unknown tokens.

A word is the text between white space, without punctuation at its ends. Each word is encoded alone, after a space.
"""

import math
import string
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenizer import Tokenizer

ALPHA = 2.5
PUNCTUATION = string.punctuation + "“”„‘’‚«»‹›…–—¡¿、。・「」『』（）《》〈〉【】，．：；！？،؛؟"
DEFINITIONS = (
    "tok/word: tokens per word; whole: share of words that are one token",
    f"Rényi: efficiency of token frequencies, alpha {ALPHA}; unknown: share of tokens",
)


class Words(NamedTuple):
    """The W distinct words of a text."""

    words: pa.Array
    """large_string (W,)"""
    counts: np.ndarray
    """int64 (W,): occurrences of each word"""


def words_of(texts: pa.ChunkedArray) -> Words:
    """Return the words of texts, strings or binary. Invalid UTF-8 is replaced."""
    try:
        texts = texts.cast(pa.large_string())
    except pa.ArrowInvalid:
        texts = pa.chunked_array([[text.decode(errors="replace") for text in texts.to_pylist()]], pa.large_string())
    parts = [pc.list_flatten(pc.utf8_split_whitespace(chunk)) for chunk in texts.chunks]
    words = pc.utf8_trim(pa.chunked_array(parts, pa.large_string()), characters=PUNCTUATION)
    found = pc.value_counts(words.filter(pc.binary_length(words).cast(pa.bool_())))
    return Words(found.field("values"), np.from_dlpack(found.field("counts")))


def fit_to_words(tok: Tokenizer, text: Words, in_python: bool = False) -> dict[str, float | None]:
    """Return `tokens_per_word` (fertility) and `whole_words`, the share of words that are one known token.

    Both are None for a text without words, and for tokenizers of integers. `in_python` encodes without loading numba's
    kernels, for a few words.
    """
    total = int(text.counts.sum())
    if not total or tok.kind == "integers":
        return {"tokens_per_word": None, "whole_words": None}
    words = tok.vocabulary.pattern
    # A pattern that marks the beginning of words adds the space itself.
    before = "" if words.keeps_characters and getattr(words, "begins_with_mark", False) else " "
    if in_python:
        encoded = [tok.encode_ordinary(before + word) for word in text.words.to_pylist()]
        lengths, alone = np.array(list(map(len, encoded))), [ids[0] for ids in encoded if len(ids) == 1]
    else:
        ids = tok.encode_arrow(pc.binary_replace_slice(text.words, 0, 0, before))  # pa.scalar would import pandas
        starts = np.from_dlpack(ids.offsets)
        lengths = np.diff(starts)
        alone = np.from_dlpack(ids.values)[starts[:-1][lengths == 1]]
    unknown = -1 if tok.vocabulary.unknown_id is None else tok.vocabulary.unknown_id
    return {
        "tokens_per_word": float(np.dot(lengths, text.counts) / total),
        "whole_words": float(text.counts[lengths == 1][np.array(alone, np.int64) != unknown].sum() / total),
    }


def fit_to_tokens(tok: Tokenizer, counts: np.ndarray, entries: int) -> dict[str, float | None]:
    """Return `renyi_efficiency` and `unknown`, the share of unknown tokens, for the `counts` (V,) of tokens.

    `unknown` is None if the tokenizer has no unknown token. entries: size of the vocabulary.
    """
    unknown = tok.vocabulary.unknown_id
    return {
        "renyi_efficiency": renyi_efficiency(counts, entries),
        "unknown": None if unknown is None or not counts.any() else float(counts[unknown] / counts.sum()),
    }


def renyi_efficiency(counts: np.ndarray, entries: int) -> float | None:
    """Return the Rényi entropy of order ALPHA of token frequencies, divided by log `entries`; None without tokens.

    H_a(p) = log(sum of p_i ** a) / (1 - a), as in Zouhar et al. 2023, "Tokenization and the noiseless channel". It is 1
    if all entries are equally frequent.
    """
    if not counts.any() or entries < 2:
        return None
    p = counts[counts > 0] / counts.sum()
    return float(math.log(math.fsum(p**ALPHA)) / (1 - ALPHA) / math.log(entries))

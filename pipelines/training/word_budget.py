"""Convert a budget of words, as in the BabyLM challenge, into tokens. Imports no torch."""

from dataclasses import replace

import numpy as np

from pipelines.cli.display import quantity
from pipelines.cli.waiting import doing
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import Recipe
from pipelines.training.mixture import Mixture
from tokenizer import Tokenizer

WHITE_SPACE = np.isin(np.arange(256), list(b" \t\n\v\f\r"))


def in_tokens(recipe: Recipe, mixture: Mixture) -> Recipe:
    """Return the recipe with `train.tokens` set from `train.words`; unchanged if `train.words` is 0.

    `train.tokens` is `train.words` divided by the words per token of the training split, separators included. For a
    mixture, the words per token are the mean over the sources, weighted by their shares. Raises ValueError for pairs
    and for data without words.
    """
    words = recipe.train.words
    if not words:
        return recipe
    first = mixture.first
    if not isinstance(first, TokenDataset):
        raise ValueError(f"`train.words` counts the words of a text, and {first.place} has pairs: give `train.tokens`")
    tokenizer, per_token = Tokenizer.load(first.folder), 0.0
    doing("counting words")
    for share, stream in zip(mixture.shares.values(), mixture.splits("train"), strict=True):
        per_token += share * count_words(stream, tokenizer, first.info["separator"]) / stream.tokens
    if not per_token:
        raise ValueError(f"{first.place} has no words to count: give `train.tokens` instead of `train.words`")
    return replace(recipe, train=replace(recipe.train, tokens=max(1, round(words / per_token))))


def word_lines(train: TrainConfig) -> list[str]:
    """Return a line with the tokens that `train.words` amounts to; none without `train.words`."""
    if not train.words:
        return []
    mean = train.tokens / train.words
    return [f"{quantity(train.words, '')} words are {quantity(train.tokens, 'tok')}, {mean:.4g} tokens a word"]


def count_words(stream: TokenStream, tokenizer: Tokenizer, separator: int | None) -> int:
    """Return the number of words of a stream: runs of bytes other than ASCII white space, as `wc -w` counts them.

    A separator ends a word. Special tokens are not words.
    """
    words, inside = 0, False
    for ids in stream.chunks():
        for number, piece in enumerate(np.split(ids, np.flatnonzero(ids == separator))):
            text = np.frombuffer(tokenizer.decode_bytes(piece, skip_special_tokens=True), np.uint8)
            inside &= number == 0
            if len(text):
                letters = ~WHITE_SPACE[text]
                words += int(np.count_nonzero(letters[1:] & ~letters[:-1])) + int(letters[0] and not inside)
                inside = bool(letters[-1])
    return words

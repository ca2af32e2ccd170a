"""Word budgets: the tokens of a training that has a number of words. Imports no torch."""

import math
from dataclasses import replace

import numpy as np

from pipelines.cli.display import quantity
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import Recipe
from pipelines.training.mixture import Mixture
from tokenizer import Tokenizer


def with_tokens_of_words(recipe: Recipe, mixture: Mixture) -> Recipe:
    """Return `recipe` with the tokens that hold `train.words` words; the recipe itself if it has none.

    The words per token are the mean over the training splits, weighted by the shares of the mixture. Raises ValueError
    for pairs, for text without words, and if an optimizer step has more words than `train.keep_words`.
    """
    words = recipe.train.words
    if not words:
        return recipe
    tok, rate = Tokenizer.load(mixture.first.folder), 0.0  # all datasets of a mixture have the same tokenizer
    for share, dataset in zip(mixture.shares.values(), mixture.datasets, strict=True):
        if not isinstance(dataset, TokenDataset):
            raise ValueError(f"train.words is {words}, but {dataset.place} holds pairs: give `train.tokens` instead")
        stream = dataset.split("train")
        rate += share * count_words(stream, tok) / stream.tokens
    if not rate:
        raise ValueError(f"train.words is {words}, but the training text has no words: give `train.tokens` instead")
    per_step, keep = math.ceil(recipe.step_tokens * rate), recipe.train.keep_words
    if 0 < keep < per_step:
        raise ValueError(
            f"train.keep_words is {keep}, but an optimizer step has about {per_step} words: give at least {per_step}, "
            "or a smaller train.batch_tokens"
        )
    return replace(recipe, train=replace(recipe.train, tokens=math.ceil(words / rate)))


def word_lines(train: TrainConfig) -> list[str]:
    """Return a line about the words of a training; none if tokens decide."""
    if not train.words:
        return []
    rate = train.tokens / train.words
    return [f"{quantity(train.words, '')} words: {train.tokens:,} tokens, at {rate:.4g} per word of the training text"]


def count_words(stream: TokenStream, tok: Tokenizer) -> int:
    """Return the number of words in the decoded text of a stream. A word is text between ASCII white space.

    Special tokens, such as separators of documents, also end words.
    """
    # `ordinary` is made anew by each access.
    pieces = [tok.added_bytes(i) if is_text else b" " for i, is_text in enumerate(tok.ordinary.tolist())]
    words = np.array([len(piece.split()) for piece in pieces])
    has_text = np.array([piece != b"" for piece in pieces])
    begins_inside = np.array([not piece[:1].isspace() for piece in pieces])
    ends_inside = np.array([not piece[-1:].isspace() for piece in pieces])
    count, inside = 0, False  # inside: whether the text so far ends within a word
    for chunk in stream.chunks():
        ids = chunk[has_text[chunk]]
        if len(ids):
            before = np.concatenate(([inside], ends_inside[ids[:-1]]))
            count += int(words[ids].sum()) - int((before & begins_inside[ids]).sum())
            inside = bool(ends_inside[ids[-1]])
    return count

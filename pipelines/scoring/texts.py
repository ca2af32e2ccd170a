"""Score a text: ln p of each token under a run's model, with the model's likeliest tokens."""

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from lm.metrics.units import NATS_PER_BIT, bits, bits_per_byte, perplexity
from lm.position_checks import UNBOUNDED
from pipelines.cli.verbs import checks_arguments
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.windows import (
    Windows,
    decoder_window_count,
    decoder_windows,
    lone_mask_windows,
    sequence_windows,
)
from pipelines.generation.prompts import source_ids
from pipelines.run.loaded_run import LoadedRun
from pipelines.scoring.options import Masking, check_options
from pipelines.scoring.predictions import Predictions, predict, predict_batches
from pipelines.scoring.word_probabilities import Words, ends_of_words, pieces_of, word_beginnings, words_of
from pipelines.training.batch import Array
from pipelines.training.batch_objectives import MaskedToken, NextToken, require_special_tokens
from tokenizer import CLS, MASK, SEP

SHORT_TEXT = 1000  # characters; shorter texts are encoded without loading numba


@dataclass(frozen=True)
class TextScore:
    """The scores of the T tokens of a text."""

    measure: Literal["log-likelihood", "pseudo-log-likelihood"]
    """A decoder or encoder-decoder predicts each token from the tokens before it, an encoder from all others."""
    ids: Array
    """(T,) int64"""
    pieces: list[bytes]
    """Bytes that each token adds to the decoded text; the spelling of a special token"""
    byte_lengths: Array | None
    """(T,) int64; 0 for special tokens. None, unknown, if the tokenizer loses text"""
    text_bytes: int | None
    """Bytes of the text, or of the target of an encoder-decoder; None if the caller knows only its ids"""
    predictions: Predictions
    """Predictions of the T tokens"""
    words: Words | None
    """Words of the text; None if the caller did not ask for them"""
    before: tuple[int, ...]
    """Start ids that a decoder reads before the text"""
    window: int | None
    """Tokens in a window; None for an encoder-decoder"""
    stride: int | None
    """Tokens between the starts of two windows; None for an encoder-decoder"""
    rolling: bool = False
    """Whether the last window is moved back to a full context"""

    @property
    def scored(self) -> Array:
        """Return whether each token was predicted: (T,) bool. A decoder without a start token skips the first token."""
        return self.predictions.ranks > 0

    @property
    def tokens(self) -> int:
        """Return the number of scored tokens."""
        return int(self.scored.sum())

    @property
    def bytes(self) -> int | None:
        """Return the number of bytes of the scored tokens; None if it is unknown.

        If the tokenizer loses text, only the bytes of all tokens together are known.
        """
        if self.byte_lengths is not None:
            return int(self.byte_lengths[self.scored].sum())
        return self.text_bytes if self.scored.all() else None

    @property
    def log_probability(self) -> float:
        """Return ln p of the scored tokens, in nats."""
        return math.fsum(self.predictions.log_probabilities[self.scored])

    @property
    def log_probability_bits(self) -> float:
        """Return log2 p of the scored tokens, in bits."""
        return bits(self.log_probability)

    @property
    def perplexity(self) -> float | None:
        """Return exp of the mean surprisal in nats; None if nothing was scored, or if no float holds it.

        For an encoder it is the pseudo-perplexity.
        """
        return perplexity(-self.log_probability / self.tokens) if self.tokens else None

    @property
    def bits_per_byte(self) -> float | None:
        """Return -log2 p / bytes; None if -log2 p is not a code length of the text.

        That is so for an encoder, whose score is a pseudo-log-likelihood, and for a tokenizer that loses text.
        """
        if self.measure == "pseudo-log-likelihood" or self.byte_lengths is None or self.bytes is None:
            return None
        return bits_per_byte(-self.log_probability, self.bytes)

    @property
    def bits_per_original_byte(self) -> float | None:
        """Return -log2 p per byte of the original text, for a tokenizer that loses text; otherwise None.

        It is not a code length: lost case, accents and unknown words cost nothing. None also for an encoder, and if
        the first token was not scored.
        """
        if self.measure == "pseudo-log-likelihood" or self.byte_lengths is not None or self.bytes is None:
            return None
        return bits_per_byte(-self.log_probability, self.bytes)

    @property
    def surprisal_bits(self) -> Array:
        """Return -log2 p of each token: (T,) float64."""
        return -self.predictions.log_probabilities / NATS_PER_BIT

    @property
    def entropy_bits(self) -> Array:
        """Return the entropy of each prediction in bits: (T,) float64."""
        return self.predictions.entropies / NATS_PER_BIT


@checks_arguments
def score_text(
    run: LoadedRun,
    text: str,
    *,
    target: str | None = None,
    stride: int | None = None,
    start: bool = True,
    masking: Masking = "token",
    top: int = 5,
    words: bool = False,
    rolling: bool = False,
) -> TextScore:
    """Return the scores of the tokens of a text. Special tokens spelled in the text are ordinary text.

    A decoder scores ln p(token | tokens before). An encoder scores the pseudo-log-likelihood (Salazar et al. 2020): ln
    p of each token when only this token is masked. An encoder-decoder scores the target and its end token, given the
    text as source. Masks and sentinels are read as special tokens in source and target.

    Raises ValueError for an empty text, for options that the architecture lacks, and for a target that is too long.

    Args:
        run: A run that `load_run` returned.
        text: Text to score; source of an encoder-decoder.
        target: Target of an encoder-decoder.
        stride: Tokens between the starts of two windows of a long text; half a window by default.
        start: Whether a decoder first reads the start token from training. Without it, the first token is not scored.
        masking: For an encoder: "word" also masks the later tokens of the token's word (Kauf & Ivanova 2023).
        top: Number of likeliest tokens to return for each prediction.
        words: Whether to return the probabilities of words as well.
        rolling: For a decoder: windows as in lm-eval's loglikelihood_rolling. They do not overlap, except that the last
            one is moved back to a full context. Without `stride` and `words`.
    """
    architecture = run.config.model.architecture
    check_options(
        run.config.model, target=target, stride=stride, rolling=rolling, start=start, masking=masking, words=words
    )
    for name, given in (("the text", text), ("the target", target)):
        if given == "":
            raise ValueError(f"{name} is empty: give at least one character")
    if architecture == "encoder":
        return _encoder_score(run, text, stride, masking, top, words)
    if target is not None:
        return _target_score(run, text, target, top, words)
    return _decoder_score(run, text, run.config.model.context_length if rolling else stride, start, top, words, rolling)


def _decoder_score(
    run: LoadedRun, text: str, stride: int | None, start: bool, top: int, words: bool, rolling: bool
) -> TextScore:
    length = run.config.model.context_length
    stride = stride or max(1, length // 2)
    before = run.around.before if start else ()
    own = tokens_to_score(run, text, "the text")
    count = len(own)
    # One more prediction after the text gives the probability that the last word ends. Its target does not matter.
    ids = np.concatenate((np.array(before, np.int64), own, np.zeros(int(words), np.int64)))
    made = predict(
        run.model,
        decoder_windows(TokenStream([ids], length), NextToken(length), stride, first=len(before), rolling=rolling),
        len(ids) - len(before),
        first=len(before),
        top=top,
        group=_word_beginnings(run) if words else None,
        total=decoder_window_count(len(ids), length, stride),
    )
    borders = made.group_log_probabilities if words else None
    scored = made.part(0, count)
    score = text_result(run, own, scored, words, borders, text, before=before, window=length, stride=stride)
    return replace(score, rolling=rolling)


def _encoder_score(run: LoadedRun, text: str, stride: int | None, masking: Masking, top: int, words: bool) -> TextScore:
    window = run.config.model.context_length - 2
    stride = stride or max(1, window // 2)
    ids = tokens_to_score(run, text, "the text")
    windows = masked_windows(run, ids, stride, masking)
    made = predict(run.model, windows, len(ids), top=top, total=len(ids))
    return text_result(run, ids, made, words, None, text, window=window, stride=stride)


def encoder_steps(run: LoadedRun, ids: Array, top: int) -> Iterator[TextScore | None]:
    """Score the `ids` (T,) of a text with an encoder, as `score_text` does by default, batch by batch.

    Yields None after each batch, and at last the scores.
    """
    window = run.config.model.context_length - 2
    stride = max(1, window // 2)
    made = Predictions.unknown(len(ids), min(top, run.config.model.vocab_size))
    for _ in predict_batches(run.model, masked_windows(run, ids, stride, "token"), made):
        yield None
    yield text_result(run, ids, made, False, None, window=window, stride=stride)


def masked_windows(run: LoadedRun, ids: Array, stride: int, masking: Masking) -> Iterator[Windows]:
    """Return a window for each of `ids` (T,), in which an encoder predicts it.

    A long text has several windows, `stride` apart, and the last one ends with the text. Each token uses the window
    with the nearest centre.
    """
    special = run.around.special
    require_special_tokens("an encoder", (CLS, SEP, MASK), special)
    length = min(len(ids), run.config.model.context_length - 2)
    starts = np.append(np.arange(0, len(ids) - length, stride), len(ids) - length)
    # The midpoints between two centres. A centre is (length - 1) / 2 tokens after the start of its window.
    borders = (starts[:-1] + starts[1:] + length - 1) // 2
    tokens = np.arange(len(ids))
    begins = starts[np.searchsorted(borders, tokens)]
    ends = None
    if masking == "word":
        ends = ends_of_words(pieces_of(run.tokenizer, ids.tolist()), np.zeros(len(ids), bool)) - begins
    objective = MaskedToken(length, special, run.config.model.vocab_size)
    return lone_mask_windows(TokenStream([ids], length), objective, begins, tokens - begins, ends)


def _target_score(run: LoadedRun, text: str, target: str, top: int, words: bool) -> TextScore:
    (source,) = source_ids(run.tokenizer, [text], run.config.model, run.around)
    ids = np.append(tokens_to_score(run, target, "the target", run.around.marks), run.around.stops[0])
    windows = sequence_windows([target_sequence(run, ids, "`target` with its end token")], source)
    group = _word_beginnings(run) if words else None
    made = predict(run.model, windows, len(ids), first=1, top=top, group=group)
    # A word certainly ends after the end token, so the last border is never read.
    borders = np.append(made.group_log_probabilities, np.nan) if words else None
    return text_result(run, ids, made, words, borders, target)


def target_sequence(run: LoadedRun, ids: Array, name: str) -> Array:
    """Return the start token and the target `ids` (N,) of an encoder-decoder.

    Raises ValueError if the target is longer than the context; the message calls it `name`.
    """
    config = run.config.model
    if len(ids) > config.context_length and config.positions not in UNBOUNDED:
        most = config.context_length
        raise ValueError(f"{name} has {len(ids):,} tokens, and the model writes at most {most:,}: shorten it")
    assert run.around.start is not None  # source_ids requires it
    return np.append(np.int64(run.around.start), ids)


def text_tokens(run: LoadedRun, text: str, allowed: Set[int] = frozenset()) -> Array:
    """Return the ids of a text, int64 (T,). Only the special tokens in `allowed` are read from their spellings."""
    tok = run.tokenizer
    spellings = {spelling for spelling, i in tok.special_tokens.items() if i in allowed}
    encode = tok.encode if len(text) <= SHORT_TEXT else tok.encode_to_numpy
    return np.array(encode(text, allowed_special=spellings, disallowed_special=()), dtype=np.int64)


def tokens_to_score(run: LoadedRun, text: str, name: str, allowed: Set[int] = frozenset()) -> Array:
    """Return the ids of a text as `text_tokens` does. Raises ValueError, calling the text `name`, if there are none."""
    ids = text_tokens(run, text, allowed)
    require_tokens(ids, name)
    return ids


def require_tokens(ids: Array, name: str) -> None:
    """Raise ValueError, calling the text `name`, if it has no `ids` (T,)."""
    if not len(ids):
        raise ValueError(f"{name} has no tokens, because the tokenizer deletes all its characters: add a word")


def _word_beginnings(run: LoadedRun) -> Array:
    return word_beginnings(run.tokenizer, run.config.model.vocab_size, run.around.stops)


def text_result(
    run: LoadedRun,
    ids: Array,
    predictions: Predictions,
    words: bool,
    borders: Array | None,
    text: str | None = None,
    *,
    before: tuple[int, ...] = (),
    window: int | None = None,
    stride: int | None = None,
) -> TextScore:
    """Return the score of a text with the given `ids` and predictions.

    `words`: whether to include the probabilities of words. For `borders` see `words_of`, and for the rest TextScore.
    """
    tok = run.tokenizer
    pieces = pieces_of(tok, ids.tolist())
    own_words = words_of(pieces, ~tok.ordinary[ids], predictions.log_probabilities, borders) if words else None
    pseudo = run.config.model.architecture == "encoder"
    return TextScore(
        "pseudo-log-likelihood" if pseudo else "log-likelihood",
        ids,
        pieces,
        tok.token_byte_lengths[ids].astype(np.int64) if tok.is_lossless else None,
        None if text is None else len(text.encode()),
        predictions,
        own_words,
        before,
        window,
        stride,
    )

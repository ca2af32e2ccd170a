"""The score of a text: ln p of its tokens under a run's model, with what the model predicted instead."""

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from lm.analysis.metrics import NATS_PER_BIT, bits, bits_per_byte, perplexity
from pipelines.run.prompts import source_ids
from pipelines.scoring.predictions import Predictions, predict
from pipelines.scoring.windows import Array, Window, decoder_windows, encoder_windows
from pipelines.scoring.words import Words, ends_of_words, word_beginnings, words_of
from pipelines.training.objectives import require_special_tokens
from tokenizer import CLS, MASK, SEP, sentinels

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

SHORT_TEXT = 1000  # characters; shorter texts are encoded without loading numba
Masking = Literal["token", "word"]


@dataclass(frozen=True)
class TextScore:
    """The scores of a text's T tokens."""

    measure: Literal["log-likelihood", "pseudo-log-likelihood"]
    """A decoder or encoder-decoder predicts each token from those before it, an encoder from all others."""
    ids: Array
    """(T,) int64"""
    pieces: list[bytes]
    """Bytes of each token; of a special token, its spelling"""
    byte_lengths: Array
    """(T,) int64; 0 for special tokens"""
    predictions: Predictions
    """Of the T tokens"""
    words: Words | None
    """If wanted"""
    before: tuple[int, ...]
    """Start ids that a decoder reads before the text"""
    window: int | None
    """Tokens that the model reads at once; None for an encoder-decoder"""
    stride: int | None
    """Tokens between two windows"""

    @property
    def scored(self) -> Array:
        """(T,) bool: whether the token was predicted. The first one is not if a decoder reads nothing before it."""
        return self.predictions.ranks > 0

    @property
    def tokens(self) -> int:
        """Number of scored tokens."""
        return int(self.scored.sum())

    @property
    def bytes(self) -> int:
        """Bytes of the scored tokens."""
        return int(self.byte_lengths[self.scored].sum())

    @property
    def log_probability(self) -> float:
        """ln p of the scored tokens, in nats."""
        return math.fsum(self.predictions.log_probabilities[self.scored])

    @property
    def log_probability_bits(self) -> float:
        """log2 p of the scored tokens."""
        return bits(self.log_probability)

    @property
    def perplexity(self) -> float | None:
        """exp of the mean surprisal in nats; None if nothing was scored. Of an encoder, the pseudo-perplexity."""
        return perplexity(-self.log_probability / self.tokens) if self.tokens else None

    @property
    def bits_per_byte(self) -> float | None:
        """-log2 p / bytes; None for an encoder, whose pseudo-log-likelihood is no code length."""
        return None if self.measure == "pseudo-log-likelihood" else bits_per_byte(-self.log_probability, self.bytes)

    @property
    def surprisal_bits(self) -> Array:
        """(T,) float64: -log2 p of each token."""
        return -self.predictions.log_probabilities / NATS_PER_BIT

    @property
    def entropy_bits(self) -> Array:
        """(T,) float64: entropy of each prediction."""
        return self.predictions.entropies / NATS_PER_BIT


def score_text(
    run: "LoadedRun",
    text: str,
    *,
    target: str | None = None,
    stride: int | None = None,
    start: bool = True,
    masking: Masking = "token",
    top: int = 5,
    words: bool = False,
) -> TextScore:
    """Return the scores of a text's tokens. Spellings of special tokens in the text are text.

    A decoder scores ln p(token | tokens before), an encoder the pseudo-log-likelihood (Salazar et al. 2020): ln p of
    each token when it alone is masked. An encoder-decoder scores the target given the text and ends with the end token;
    sentinels in both are those of span corruption.

    Raises ValueError for an empty text, for options that the architecture lacks, and for a target that is too long.

    Args:
        run: A run that `load_run` returned.
        text: Text to score; source of an encoder-decoder.
        target: Text that an encoder-decoder writes.
        stride: Tokens between two windows of a long text; half a window by default.
        start: Whether a decoder reads the start token that the run's texts begin with. Without one, the first token is
            not scored.
        masking: For an encoder: "word" also masks the later tokens of the token's word (Kauf & Ivanova 2023).
        top: Number of the likeliest tokens to return of each prediction.
        words: Whether to return the probabilities of words as well.
    """
    architecture = run.config.model.architecture
    check_options(architecture, target=target, stride=stride, start=start, masking=masking)
    for name, given in (("the text", text), ("the target", target)):
        if given == "":
            raise ValueError(f"{name} is empty: give at least one character")
    if architecture == "encoder":
        return _encoder_score(run, text, stride, masking, top, words)
    if target is not None:
        return _target_score(run, text, target, top, words)
    return _decoder_score(run, text, stride, start, top, words)


def check_options(
    architecture: str, *, target: str | None, stride: int | None, start: bool, masking: str, choices: bool = False
) -> None:
    """Raise ValueError for options that a model of this architecture does not take."""
    if architecture == "encoder-decoder" and target is None and not choices:
        raise ValueError("the run's model is an encoder-decoder: give the target to score with --target")
    if architecture != "encoder-decoder" and target is not None:
        raise ValueError(f"--target is for an encoder-decoder, and this run's model is of architecture {architecture}")
    if architecture != "decoder" and not start:
        raise ValueError(f"--no-start is for a decoder, and this run's model is of architecture {architecture}")
    if architecture != "encoder" and masking != "token":
        raise ValueError(f"--masking is for an encoder, and this run's model is of architecture {architecture}")
    if architecture == "encoder-decoder" and stride is not None:
        raise ValueError("--stride is for long texts, and an encoder-decoder reads source and target at once")


def _decoder_score(run: "LoadedRun", text: str, stride: int | None, start: bool, top: int, words: bool) -> TextScore:
    length = run.config.model.context_length
    stride = _stride(stride, length)
    before = run.around.before if start else ()
    own = text_tokens(run, text)
    count = len(own)
    # The prediction after the text says whether its last word ends there. Its target does not matter.
    ids = np.concatenate((np.array(before, np.int64), own, np.zeros(int(words), np.int64)))
    made = predict(
        run.model,
        decoder_windows(ids, len(before), length, stride),
        len(ids) - len(before),
        top=top,
        group=_word_beginnings(run) if words else None,
        total=1 + max(0, -(-(len(ids) - 1 - length) // stride)),
    )
    borders = made.group_log_probabilities if words else None
    return _result(run, own, made.part(0, count), words, borders, before=before, window=length, stride=stride)


def _encoder_score(
    run: "LoadedRun", text: str, stride: int | None, masking: Masking, top: int, words: bool
) -> TextScore:
    special = run.around.special
    require_special_tokens("an encoder", (CLS, SEP, MASK), special)
    length = run.config.model.context_length - 2
    stride = _stride(stride, length)
    ids = text_tokens(run, text)
    masked_to = np.arange(len(ids)) + 1
    if masking == "word":
        masked_to = ends_of_words([run.tokenizer.token_bytes(i) for i in ids.tolist()], np.zeros(len(ids), bool))
    windows = encoder_windows(
        ids,
        masked_to,
        first=special[CLS],
        mask=special[MASK],
        last=special[SEP],
        length=length,
        stride=stride,
    )
    made = predict(run.model, windows, len(ids), top=top, total=len(ids))
    return _result(run, ids, made, words, None, window=length, stride=stride)


def _target_score(run: "LoadedRun", text: str, target: str, top: int, words: bool) -> TextScore:
    (source,) = source_ids(run.tokenizer, [text], run.config.model, run.around)
    ids = np.append(text_tokens(run, target, sentinel_ids(run)), run.around.stops[0])
    window = target_window(run, ids, "--target with its end token")
    group = _word_beginnings(run) if words else None
    made = predict(run.model, [window], len(ids), top=top, source=source, group=group)
    borders = np.append(made.group_log_probabilities, np.nan) if words else None  # after the end token it is certain
    return _result(run, ids, made, words, borders)


def target_window(run: "LoadedRun", ids: Array, name: str) -> Window:
    """Return the window in which an encoder-decoder predicts the target `ids` (N,).

    Raises ValueError, with the target's name, if the target is longer than the context.
    """
    config = run.config.model
    if len(ids) > config.context_length and config.positions not in ("relative", "none"):
        raise ValueError(f"{name} has {len(ids):,} tokens, and the model writes {config.context_length:,}: shorten it")
    assert run.around.start is not None  # source_ids requires it
    columns = np.arange(len(ids))
    return Window(np.append(np.int64(run.around.start), ids[:-1]), columns, ids, columns)


def sentinel_ids(run: "LoadedRun") -> set[int]:
    """Return the ids of the sentinels of span corruption; empty if the tokenizer has none."""
    special = run.around.special
    return {special[name] for name in sentinels(len(special)) if name in special}


def text_tokens(run: "LoadedRun", text: str, allowed: Set[int] = frozenset()) -> Array:
    """Return the ids of a text, int64 (T,). Only the special tokens in `allowed` are read from their spellings."""
    tok = run.tokenizer
    spellings = {spelling for spelling, i in tok.special_tokens.items() if i in allowed}
    encode = tok.encode if len(text) <= SHORT_TEXT else tok.encode_to_numpy
    return np.array(encode(text, allowed_special=spellings, disallowed_special=()), dtype=np.int64)


def _stride(stride: int | None, length: int) -> int:
    if stride is not None and not 1 <= stride <= length:
        raise ValueError(f"--stride is {stride}, but must be from 1 to the window of {length} tokens")
    return max(1, length // 2) if stride is None else stride


def _word_beginnings(run: "LoadedRun") -> Array:
    return word_beginnings(run.tokenizer, run.config.model.vocab_size, run.around.stops)


def _result(
    run: "LoadedRun",
    ids: Array,
    predictions: Predictions,
    words: bool,
    borders: Array | None,
    *,
    before: tuple[int, ...] = (),
    window: int | None = None,
    stride: int | None = None,
) -> TextScore:
    tok = run.tokenizer
    pieces = [tok.token_bytes(i) for i in ids.tolist()]
    lengths = tok.token_byte_lengths[ids].astype(np.int64)
    found = words_of(pieces, lengths == 0, predictions.log_probabilities, borders) if words else None
    pseudo = run.config.model.architecture == "encoder"
    return TextScore(
        "pseudo-log-likelihood" if pseudo else "log-likelihood",
        ids,
        pieces,
        lengths,
        predictions,
        found,
        before,
        window,
        stride,
    )

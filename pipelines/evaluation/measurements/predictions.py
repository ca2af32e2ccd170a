"""The numbers that every split has, from the predictions of the model: cross-entropy, perplexity and more."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from lm.metrics.intervals import interval
from lm.metrics.units import bits, perplexity
from lm.values import read_as
from pipelines.dataset.pair_dataset import Pairs
from pipelines.evaluation.confidence import Interval, Sampling
from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import TokenScores
from pipelines.training.batch_objectives import Corruption, MaskedToken, PairObjective
from tokenizer.splitting.integers import WIDTH

PER_BYTE = ("bits_per_byte", "bits_per_original_byte", "masked_bits_per_byte")
"""The kinds of bits per byte; a model has at most one."""


@dataclass(frozen=True)
class Bin:
    """Mean confidence and accuracy of the predictions in a bin of confidence, None without predictions."""

    confidence: float | None
    accuracy: float | None
    count: int


@dataclass(frozen=True)
class Curves:
    """The curves of a split."""

    loss_by_position: tuple[float | None, ...] = ()
    """Mean nats at each position of the window, None where nothing was scored"""
    loss_by_position_error: tuple[float | None, ...] = ()
    reliability: tuple[Bin, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Numbers(Result):
    """The numbers of a split, or of the mean over the sources of a mixture, which lacks some."""

    tokens: int = number("tokens scored", "Tokens that the model predicted and that were scored.", 0)
    bytes: int | None = number("bytes scored", "Bytes of text in the scored tokens. Special tokens count 0 bytes.", 0)
    original_bytes: int | None = number(
        "original bytes scored",
        "For tokenizers that lose text. The original bytes of a document are divided equally among its tokens.",
        0,
        default=None,
    )
    cross_entropy: float = number(
        "cross-entropy, nats per token",
        "Mean of -ln p over the scored tokens, where p is the probability that the model gave to the correct token.",
        4,
    )
    cross_entropy_bits: float = number(
        "cross-entropy, bits per token", "The cross-entropy in nats, divided by ln 2.", 4, headline=True
    )
    perplexity: float | None = number(
        "perplexity",
        "exp of the cross-entropy in nats. A uniform prediction over V tokens has a perplexity of V. No float "
        "holds a perplexity above 1.8e308: it is written as a power of e, and null in JSON.",
        2,
        headline=True,
        exp_of="cross_entropy",
    )
    bits_per_byte: float | None = number(
        "bits per byte",
        "Total bits of the scored tokens, divided by their bytes. Comparable between models with different "
        "tokenizers. Undefined for masked models and corrupted text, whose loss is not a code length.",
        4,
        headline=True,
    )
    bits_per_integer: float | None = number(
        "bits per integer",
        "For tokenizers of integers: total bits of the scored tokens, divided by the integers in them. As text, an "
        "integer has 4 bytes.",
        4,
        headline=True,
        default=None,
    )
    bits_per_original_byte: float | None = number(
        "bits per byte of the original",
        "Total bits of the scored tokens, divided by their original bytes, for tokenizers that lose text. It is "
        "not a code length.",
        4,
        headline=True,
        default=None,
    )
    masked_bits_per_byte: float | None = number(
        "bits per byte of masked text",
        "Total bits of the masked tokens, divided by their bytes. Compares masked models with different "
        "tokenizers. It is not a code length.",
        4,
        headline=True,
        default=None,
    )
    entropy_bits: float = number(
        "entropy of the predictions, bits",
        "Mean entropy of the predicted distributions. If it is below the cross-entropy, the model is overconfident.",
        4,
    )
    accuracy: float = number(
        "accuracy", "Share of scored tokens to which the model gave the highest probability.", 4, headline=True
    )
    calibration_error: float | None = number(
        "calibration error",
        "Expected gap between confidence and accuracy of the first-ranked token, over 15 equal bins of confidence.",
        4,
        headline=True,
        default=None,
    )
    kl_unigram_bits: float | None = number(
        "divergence of the mean prediction, bits",
        "KL divergence of the mean prediction from the token frequencies of the split.",
        4,
        default=None,
    )
    unigram_entropy_bits: float | None = number(
        "entropy of the token frequencies, bits",
        "Entropy of the token frequencies of the split itself.",
        4,
        default=None,
    )
    cut: int | None = number(
        "pairs cut", "Pairs longer than the context of the model, cut to its length.", 0, default=None
    )
    curves: Curves | None = None

    @classmethod
    def mean(cls, shares: Sequence[float], results: Sequence[Self]) -> Self:
        """Return the numbers of a mixture of texts.

        Tokens and bytes are totals. Cross-entropy, entropy and accuracy are means weighted by `shares`. Perplexity is
        exp of the mean cross-entropy. Bits per byte are the mean bits of a token divided by its mean bytes. Other
        numbers are left out.
        """

        def mean(values: Sequence[float]) -> float:
            return sum(share * value for share, value in zip(shares, values, strict=True))

        sizes = [source.bytes for source in results]
        known = [size for size in sizes if size is not None]
        whole = len(known) == len(sizes)
        nats = mean([source.cross_entropy for source in results])
        bits_per_token = mean([source.cross_entropy_bits for source in results])
        per_byte = None
        if whole and all(source.bits_per_byte is not None for source in results):
            per_byte = bits_per_token / mean([n / source.tokens for n, source in zip(known, results, strict=True)])
        return cls(
            tokens=sum(source.tokens for source in results),
            bytes=sum(known) if whole else None,
            cross_entropy=nats,
            cross_entropy_bits=bits_per_token,
            perplexity=perplexity(nats),
            bits_per_byte=per_byte,
            entropy_bits=mean([source.entropy_bits for source in results]),
            accuracy=mean([source.accuracy for source in results]),
        )


@dataclass(frozen=True, kw_only=True)
class OfPredictions(Measurement):
    """The numbers of the predictions. They are always measured."""

    result = Numbers

    def measure(self, split: ScoredSplit) -> Numbers:
        split.intervals.update(intervals(split.tokens, split.sampling, split.sizes, split.per_byte))
        values: dict[str, Any] = dict(split.predictions)
        if isinstance(split.objective, Corruption | MaskedToken):
            values["bits_per_byte"] = None
        if split.tokenizer.kind == "integers" and (per_byte := values["bits_per_byte"]) is not None:
            values["bits_per_integer"] = WIDTH * per_byte
            if found := split.intervals.get("bits_per_byte"):
                low, high = (None if end is None else WIDTH * end for end in found)
                split.intervals["bits_per_integer"] = low, high
        if isinstance(split.objective, PairObjective) and isinstance(split.stream, Pairs):
            values["cut"] = split.objective.cut(split.stream)
        if split.sizes is not None and split.per_byte != "bits_per_byte":
            values[split.per_byte] = bits(float(split.tokens.nats.sum() / split.sizes.sum()))
        if not split.tokenizer.is_lossless:
            size = None if split.sizes is None else round(float(split.sizes.sum()))
            values |= {"bytes": None, "original_bytes": size}
        numbers: Numbers = read_as(Numbers, values)
        return numbers


MEASUREMENT = OfPredictions


def intervals(
    scores: TokenScores, sampling: Sampling | None, sizes: np.ndarray | None, per_byte: str = "bits_per_byte"
) -> dict[str, Interval | None]:
    """Return the interval of each number of a split; none without samples, because the split is too short.

    sizes (N,): bytes of the scored tokens; None for models without bits per byte. per_byte: key of the bits per byte.
    """
    if sampling is None:
        return {}
    ones = np.ones(len(scores.nats))
    nats, tokens, correct, size = sampling.draw(scores.nats, ones, scores.correct, ones if sizes is None else sizes).T
    low, high = interval(nats / tokens)
    return {
        "cross_entropy": (low, high),
        "cross_entropy_bits": (bits(low), bits(high)),
        "perplexity": (perplexity(low), perplexity(high)),
        "bits_per_byte": None,
        per_byte: None if sizes is None else interval(bits(1) * nats / size),
        "accuracy": interval(correct / tokens),
    }

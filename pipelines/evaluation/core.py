"""The numbers of evaluation.json that every split has, and its intervals, difference and settings."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from pipelines.cli.display import count_text
from pipelines.evaluation.measurement import Result, number

Interval = tuple[float | None, float | None]
"""The bounds of a 95 % interval. A bound of a perplexity is None if no float holds it."""
FEWEST_DOCUMENTS = 30
FEWEST_CONTEXTS = 20
"""With 2 to 10 contexts, a nominal 95 % interval covers the true number in only 43 to 78 % of texts."""


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
        "tokenizers. Undefined for masked models and span corruption, whose loss is not a code length.",
        4,
        headline=True,
    )
    bits_per_original_byte: float | None = number(
        "bits per byte of the original",
        "Total bits of the scored tokens, divided by their original bytes, for tokenizers that lose text. It is "
        "not a code length.",
        4,
        headline=True,
    )
    masked_bits_per_byte: float | None = number(
        "bits per byte of masked text",
        "Total bits of the masked tokens, divided by their bytes. Compares masked models with different "
        "tokenizers. It is not a code length.",
        4,
        headline=True,
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
    )
    kl_unigram_bits: float | None = number(
        "divergence of the mean prediction, bits",
        "KL divergence of the mean prediction from the token frequencies of the split.",
        4,
    )
    unigram_entropy_bits: float | None = number(
        "entropy of the token frequencies, bits", "Entropy of the token frequencies of the split itself.", 4
    )
    unigram_cross_entropy_bits: float | None = number(
        "unigram baseline, bits per token",
        "Cross-entropy of the token frequencies of the training split, with add-one smoothing.",
        4,
        headline=True,
    )
    bigram_cross_entropy_bits: float | None = number(
        "bigram baseline, bits per token",
        "Cross-entropy of a Witten-Bell bigram model of the training split.",
        4,
        headline=True,
    )
    unigram_accuracy: float | None = number(
        "unigram baseline, accuracy",
        "Accuracy of always predicting the most frequent token of the training split.",
        4,
        headline=True,
    )
    cut: int | None = number("pairs cut", "Pairs longer than the context of the model, cut to its length.", 0)
    curves: Curves | None = None


@dataclass(frozen=True)
class TrainedText(Result):
    """The part of a split that the run was also trained on, None if no training text is known."""

    trained_documents: int | None = number(
        "documents seen in training", "Documents of this text that are also in the training text of the run.", 0
    )
    trained_share: float | None = number(
        "share seen in training", "Share of the bytes of this text that are in documents seen in training.", 4
    )


@dataclass(frozen=True)
class Divergences(Result):
    """The divergences from another run, None if the tokenizers differ."""

    kl_bits: float | None = number(
        "KL divergence, run from other", "Mean D_KL(run ∥ other) over the scored positions, in bits.", 4, headline=True
    )
    reverse_kl_bits: float | None = number(
        "KL divergence, other from run", "Mean D_KL(other ∥ run) over the scored positions, in bits.", 4
    )
    js_bits: float | None = number(
        "Jensen-Shannon divergence, bits", "Mean Jensen-Shannon divergence of run and other, 0 to 1.", 4
    )


@dataclass(frozen=True)
class Intervals(Result):
    """The 95 % intervals of numbers, and what the bootstrap drew."""

    key = "intervals"

    resampled: Literal["documents", "blocks"] | None
    """None for a text that is too short for intervals"""
    documents: int
    contexts: int | None
    """None if the bootstrap drew documents, as `contexts_per_block`"""
    contexts_per_block: int | None
    draws: int
    seed: int
    bounds: dict[str, Interval | None]
    """[low, high] of numbers by their keys in evaluation.json"""

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        if value is None:
            return cls(None, 0, None, None, 0, 0, {})
        if isinstance(value, dict):
            value = value | {"bounds": {key: value[key] for key in value.keys() - cls.__dataclass_fields__.keys()}}
        found = super().from_json(value)
        if found and found.resampled == "blocks" and None in (found.contexts, found.contexts_per_block):
            raise ValueError("intervals of blocks have no number of contexts")
        return found

    def to_json(self) -> Any:
        if self.resampled is None:
            return None
        entry = super().to_json()
        return entry.pop("bounds") | entry

    def sentences(self, tokens: int) -> list[str]:
        if self.resampled is None:
            return [
                f"No 95 % intervals: the text has fewer than {FEWEST_DOCUMENTS} documents and fewer than "
                f"{FEWEST_CONTEXTS} contexts."
            ]
        if self.resampled == "documents":
            return [f"In brackets: 95 % intervals, by a bootstrap over the {self.documents:,} documents."]
        return [
            f"In brackets: 95 % intervals, by a bootstrap over blocks of {self.contexts_per_block} of the "
            f"{self.contexts:,} contexts, because the text has only {count_text(self.documents, 'document')}."
        ]


@dataclass(frozen=True)
class Difference(Result):
    """The paired difference from another run: run minus other, negative if the run is better."""

    key = "difference"
    above = True

    unit: str
    value: float
    low: float | None
    """None for a text that is too short for an interval, as `high`"""
    high: float | None
    documents: int | None
    sentence: str
    reservations: tuple[str, ...]
    divergence: str = ""
    """Why the runs have no divergence"""

    def sentences(self, tokens: int) -> list[str]:
        return [" ".join(filter(None, (self.sentence, *self.reservations, self.divergence)))]


@dataclass(frozen=True)
class Settings(Result):
    """The settings of an evaluation."""

    window: int | None = number("window, tokens", "Tokens in one input of the model.", 0)
    stride: int | None = number(
        "stride, tokens",
        "Tokens from one window to the next. A stride below the window gives tokens more context, and takes longer.",
        0,
    )
    min_context: int | None = number(
        "least context, tokens", "Positions with fewer tokens before them in a window are not scored.", 0
    )
    document_mask: bool | None = number("document mask", "Whether attention is limited to the document of the token.")
    dtype: str | None = number("dtype", "Number format of activations and matrix products.")

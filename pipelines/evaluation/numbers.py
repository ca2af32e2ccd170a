"""The numbers of evaluation.json: names, units and definitions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from pipelines.cli.display import counted


class Number(NamedTuple):
    """A number as people read it: name with unit, definition, and digits after the decimal point."""

    name: str
    definition: str
    digits: int = 3


NUMBERS = {
    "tokens": Number("tokens scored", "Tokens that the model predicted and that were scored.", 0),
    "bytes": Number("bytes scored", "Bytes of text in the scored tokens. Special tokens count 0 bytes.", 0),
    "original_bytes": Number(
        "original bytes scored",
        "For tokenizers that lose text. The original bytes of a document are divided equally among its tokens.",
        0,
    ),
    "cross_entropy": Number(
        "cross-entropy, nats per token",
        "Mean of -ln p over the scored tokens, where p is the probability that the model gave to the correct token.",
        4,
    ),
    "cross_entropy_bits": Number("cross-entropy, bits per token", "The cross-entropy in nats, divided by ln 2.", 4),
    "perplexity": Number(
        "perplexity",
        "exp of the cross-entropy in nats. A uniform prediction over V tokens has a perplexity of V. No float holds a "
        "perplexity above 1.8e308: it is written as a power of e, and null in JSON.",
        2,
    ),
    "bits_per_byte": Number(
        "bits per byte",
        "Total bits of the scored tokens, divided by their bytes. Comparable between models with different tokenizers. "
        "Undefined for masked models and span corruption, whose loss is not a code length.",
        4,
    ),
    "bits_per_original_byte": Number(
        "bits per byte of the original",
        "Total bits of the scored tokens, divided by their original bytes, for tokenizers that lose text. It is not a "
        "code length.",
        4,
    ),
    "masked_bits_per_byte": Number(
        "bits per byte of masked text",
        "Total bits of the masked tokens, divided by their bytes. Compares masked models with different tokenizers. "
        "It is not a code length.",
        4,
    ),
    "word_perplexity": Number(
        "perplexity per word",
        "exp of the total nats of the text, divided by its words: the texts between white space.",
        2,
    ),
    "word_perplexity_with_line_ends": Number(
        "perplexity per word or line end",
        "The same, where each line end counts as a word too, as in published perplexities on WikiText.",
        2,
    ),
    "word_cross_entropy": Number("cross-entropy, nats per word", "Total nats of the text, divided by its words.", 4),
    "word_cross_entropy_with_line_ends": Number(
        "cross-entropy, nats per word or line end", "The same, where each line end counts as a word too.", 4
    ),
    "words": Number("words", "Texts between white space.", 0),
    "line_ends": Number("line ends", "Line feeds in the text.", 0),
    "entropy_bits": Number(
        "entropy of the predictions, bits",
        "Mean entropy of the predicted distributions. If it is below the cross-entropy, the model is overconfident.",
        4,
    ),
    "accuracy": Number("accuracy", "Share of scored tokens to which the model gave the highest probability.", 4),
    "calibration_error": Number(
        "calibration error",
        "Expected gap between confidence and accuracy of the first-ranked token, over 15 equal bins of confidence.",
        4,
    ),
    "temperature": Number(
        "best temperature",
        "The temperature T from 0.05 to 20 at which softmax(logits / T) has the lowest cross-entropy, on up to 4,096 "
        "scored positions. Above 1 the model is overconfident, below 1 underconfident.",
        3,
    ),
    "temperature_gain_bits": Number(
        "gain of the best temperature, bits per token",
        "Cross-entropy at temperature 1 minus that at the best temperature, at the same positions.",
        5,
    ),
    "temperature_tokens": Number(
        "positions of the best temperature", "Scored positions, drawn with seed 0, in the search of the temperature.", 0
    ),
    "kl_unigram_bits": Number(
        "divergence of the mean prediction, bits",
        "KL divergence of the mean prediction from the token frequencies of the split.",
        4,
    ),
    "trained_documents": Number(
        "documents seen in training", "Documents of this text that are also in the training text of the run.", 0
    ),
    "trained_share": Number(
        "share seen in training", "Share of the bytes of this text that are in documents seen in training.", 4
    ),
    "unigram_entropy_bits": Number(
        "entropy of the token frequencies, bits", "Entropy of the token frequencies of the split itself.", 4
    ),
    "unigram_cross_entropy_bits": Number(
        "unigram baseline, bits per token",
        "Cross-entropy of the token frequencies of the training split, with add-one smoothing.",
        4,
    ),
    "bigram_cross_entropy_bits": Number(
        "bigram baseline, bits per token",
        "Cross-entropy of a Witten-Bell bigram model of the training split.",
        4,
    ),
    "unigram_accuracy": Number(
        "unigram baseline, accuracy", "Accuracy of always predicting the most frequent token of the training split.", 4
    ),
    "kl_bits": Number("KL divergence, run from other", "Mean D_KL(run ∥ other) over the scored positions, in bits.", 4),
    "reverse_kl_bits": Number(
        "KL divergence, other from run", "Mean D_KL(other ∥ run) over the scored positions, in bits.", 4
    ),
    "js_bits": Number("Jensen-Shannon divergence, bits", "Mean Jensen-Shannon divergence of run and other, 0 to 1.", 4),
    "entropy_rate_bits": Number(
        "entropy rate of the source, bits", "Cross-entropy of the best possible model on this synthetic source.", 4
    ),
    "kl_true_tokens": Number(
        "tokens compared with the source", "Positions at which the distribution of the source is known.", 0
    ),
    "true_entropy_bits": Number(
        "entropy of the source at these tokens, bits",
        "Mean entropy of the source's distributions at the tokens compared with the source.",
        4,
    ),
    "kl_true_bits": Number(
        "divergence from the source at these tokens, bits",
        "Mean D_KL(source ∥ run) at the tokens compared with the source. This divergence plus the source's entropy at "
        "these tokens is the expected cross-entropy.",
        4,
    ),
    "true_cross_entropy_bits": Number(
        "cross-entropy at these tokens, bits", "Mean of -log2 p at the tokens compared with the source.", 4
    ),
    "pseudo_cross_entropy": Number(
        "pseudo-cross-entropy, nats per token", "Mean nats of up to 2,048 positions, each masked alone.", 4
    ),
    "pseudo_perplexity": Number(
        "pseudo-perplexity",
        "exp of the pseudo-cross-entropy. Not comparable with a perplexity.",
        2,
    ),
    "unigram_pseudo_perplexity": Number(
        "unigram baseline, pseudo-perplexity", "The unigram baseline at the positions of the pseudo-perplexity.", 2
    ),
    "pseudo_tokens": Number("positions masked alone", "Positions in the mean of the pseudo-perplexity.", 0),
    "cut": Number("pairs cut", "Pairs longer than the context of the model, cut to its length.", 0),
    "bleu": Number("BLEU", "Cased corpus BLEU (0 to 100) of the targets from beam search, by sacrebleu.", 1),
    "exact_match": Number(
        "exact match", "Share of targets from beam search that equal the reference byte for byte.", 4
    ),
    "beams": Number("beams", "Hypotheses that beam search keeps.", 0),
    "length_penalty": Number(
        "length penalty", "Beam search divides the log-probability of a target by its length to this power.", 2
    ),
    "window": Number("window, tokens", "Tokens in one input of the model.", 0),
    "stride": Number(
        "stride, tokens",
        "Tokens from one window to the next. A stride below the window gives tokens more context, and takes longer.",
        0,
    ),
    "min_context": Number(
        "least context, tokens", "Positions with fewer tokens before them in a window are not scored.", 0
    ),
    "document_mask": Number("document mask", "Whether attention is limited to the document of the token."),
    "dtype": Number("dtype", "Number format of activations and matrix products."),
}
# The number in nats whose exponential is a perplexity.
LOGARITHMS = {
    "perplexity": "cross_entropy",
    "word_perplexity": "word_cross_entropy",
    "word_perplexity_with_line_ends": "word_cross_entropy_with_line_ends",
    "pseudo_perplexity": "pseudo_cross_entropy",
}
OVERFLOW = "A perplexity above 1.8e308 is written as a power of e. In JSON it is null, because no float holds it."
# Entries of a split that are not a single number.
NOT_NUMBERS = (
    "overflow",
    "curves",
    "compressors",
    "examples",
    "bleu_signature",
    "intervals",
    "difference",
    "breakdown",
    "memorisation",
    "entropy_calibration",
)
COMPRESSED = Number(
    "compressor, bits per byte",
    'Compressed size of the same text. "Given the training text" is the growth of the compressed training text after '
    "this text is appended.",
)


def in_words(key: str) -> str:
    """Return the name of a number of evaluation.json, with its unit."""
    return NUMBERS[key].name if key in NUMBERS else key.replace("_", " ")


def formatted(key: str, value: Any) -> str:
    """Return the value of a number of evaluation.json in its usual format; "–" for None."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.{NUMBERS[key].digits if key in NUMBERS else 4}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def perplexity_text(nats: float, digits: str) -> str:
    """Return exp(nats) in the format `digits`, such as ",.2f"; a power of e if no float holds it: "e^1,234.5"."""
    from lm.analysis.metrics import perplexity  # imports torch, slow to import for --help

    value = perplexity(nats)
    return f"e^{nats:,.1f}" if value is None else format(value, digits)


def overflows(numbers: dict[str, Any]) -> list[str]:
    """Return the keys of the perplexities that are None because no float holds them."""
    return [
        key
        for key, logarithm in LOGARITHMS.items()
        if key in numbers and numbers[key] is None and numbers.get(logarithm) is not None
    ]


def with_overflow(numbers: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a split, with the entry `overflow` if a perplexity is None because no float holds it."""
    found = overflows(numbers)
    return numbers | ({"overflow": found} if found else {})


def value_of(key: str, numbers: dict[str, Any]) -> str:
    """Return the value of a number of a split in its usual format."""
    if key in overflows(numbers):
        return perplexity_text(numbers[LOGARITHMS[key]], ",.2f")
    return formatted(key, numbers.get(key))


def with_interval(key: str, numbers: dict[str, Any]) -> str:
    """Return the value of a number of a split with its 95 % interval, if it has one: "1.20 (1.17 to 1.23)"."""
    value, found = value_of(key, numbers), (numbers.get("intervals") or {}).get(key) if key in NUMBERS else None
    if not found:
        return value
    if None in found:
        low, high = (perplexity_text(nats, ",.2f") for nats in numbers["intervals"][LOGARITHMS[key]])
    else:
        low, high = (formatted(key, bound) for bound in found)
    return f"{value} ({low} to {high})"


def rows_of(
    splits: list[dict[str, Any]], cell: Callable[[str, dict[str, Any]], str] = value_of
) -> list[tuple[str, list[str]]]:
    """Return (key, a cell for each of `splits`) for every number that occurs in them; compressors come last."""
    keys = dict.fromkeys(key for numbers in splits for key in numbers if key not in NOT_NUMBERS)
    known = [key for key in NUMBERS if key in keys] + [key for key in keys if key not in NUMBERS]
    rows = [
        (key, [cell(key, numbers) for numbers in splits])
        for key in known
        if any(numbers.get(key) is not None or key in overflows(numbers) for numbers in splits)
    ]
    for name in dict.fromkeys(name for numbers in splits for name in numbers.get("compressors", {})):
        for key, words in (("alone", ""), ("given_train", ", given the training text")):
            bits = [numbers.get("compressors", {}).get(name, {}).get(key) for numbers in splits]
            rows.append((f"{name}{words}, bits per byte", [formatted("bits_per_byte", each) for each in bits]))
    return rows


def sum_with_source(numbers: dict[str, Any]) -> str | None:
    """Return a sentence with the cross-entropy on a synthetic source as a sum; None for other texts."""
    entropy, divergence, loss = (
        numbers.get(key) for key in ("true_entropy_bits", "kl_true_bits", "true_cross_entropy_bits")
    )
    if entropy is None or divergence is None or loss is None:
        return None
    parts = round(entropy, 4), round(divergence, 4)
    compared = numbers["kl_true_tokens"]
    found = (
        f"At the {compared:,} tokens whose distribution is known: {parts[0]:.4f} (entropy of the source) + "
        f"{parts[1]:.4f} (divergence) = {sum(parts):.4f} bits of expected cross-entropy. This text has {loss:.4f} bits."
    )
    if others := numbers["tokens"] - compared:
        found += f" The other {others:,} tokens, such as separators, count only in the cross-entropy of all tokens."
    return found


def not_held_out(numbers: dict[str, Any], run: str) -> str | None:
    """Return a sentence if a part of a split was also in the training text of `run`; None otherwise."""
    if not numbers.get("trained_documents"):
        return None
    documents = counted(numbers["trained_documents"], "document")
    return (
        f"{numbers['trained_share']:.1%} of this text ({documents}) was also in the training text of {run}: the loss "
        "on it is not that of held-out text."
    )


def definitions(rows: list[tuple[str, list[str]]]) -> list[tuple[str, str, str]]:
    """Return (name, key in evaluation.json, definition) of the numbers in `rows`."""
    found = [(NUMBERS[key].name, key, NUMBERS[key].definition) for key, _ in rows if key in NUMBERS]
    compressed = any(key.endswith("bits per byte") for key, _ in rows if key not in NUMBERS)
    return [*found, *([(COMPRESSED.name, "compressors", COMPRESSED.definition)] if compressed else [])]

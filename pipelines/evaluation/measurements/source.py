"""The divergence of a model from a synthetic source, whose distributions are known."""

from dataclasses import dataclass

import numpy as np
import torch

from corpora.synthetic import MarkovSource, source_from_description
from lm.metrics.predictions import kl_from_source
from lm.metrics.units import bits
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.split import Chunk, ScoredSplit, Split
from pipelines.training.batch_objectives import NextToken
from tokenizer import Tokenizer


@dataclass(frozen=True)
class SourceNumbers(Result):
    """The divergence from a synthetic source. The means are None if no distribution is known."""

    entropy_rate_bits: float = number(
        "entropy rate of the source, bits",
        "Cross-entropy of the best possible model on this synthetic source.",
        4,
        headline=True,
    )
    true_entropy_bits: float | None = number(
        "entropy of the source at these tokens, bits",
        "Mean entropy of the source's distributions at the tokens compared with the source.",
        4,
        headline=True,
    )
    kl_true_bits: float | None = number(
        "divergence from the source at these tokens, bits",
        "Mean D_KL(source ∥ run) at the tokens compared with the source. This divergence plus the source's "
        "entropy at these tokens is the expected cross-entropy.",
        4,
        headline=True,
    )
    true_cross_entropy_bits: float | None = number(
        "cross-entropy at these tokens, bits",
        "Mean of -log2 p at the tokens compared with the source.",
        4,
        headline=True,
    )
    kl_true_tokens: int = number(
        "tokens compared with the source", "Positions at which the distribution of the source is known.", 0
    )

    def sentences(self, tokens: int) -> list[str]:
        entropy, divergence, loss = self.true_entropy_bits, self.kl_true_bits, self.true_cross_entropy_bits
        if entropy is None or divergence is None or loss is None:
            return []
        parts, others = (round(entropy, 4), round(divergence, 4)), tokens - self.kl_true_tokens
        sum_in_words = (
            f"At the {self.kl_true_tokens:,} tokens whose distribution is known: {parts[0]:.4f} (entropy of the "
            f"source) + {parts[1]:.4f} (divergence) = {sum(parts):.4f} bits of expected cross-entropy. This text has "
            f"{loss:.4f} bits."
        )
        rest = f" The other {others:,} tokens, such as separators, count only in the cross-entropy of all tokens."
        return [sum_in_words + rest if others else sum_in_words]


def symbols_of(tokenizer: Tokenizer, alphabet: np.ndarray) -> np.ndarray | None:
    """Return the symbol of each token, int64 (vocab_size,), -1 for other tokens. `alphabet` is uint8 (symbols,).

    Returns None unless every symbol is one token, and no token has several bytes.
    """
    if not tokenizer.is_lossless or (np.asarray(tokenizer.token_byte_lengths) > 1).any():
        return None
    numbers = {bytes([byte]): number for number, byte in enumerate(alphabet)}
    symbols = np.full(tokenizer.vocab_size, -1, np.int64)
    for token in np.flatnonzero(tokenizer.ordinary).tolist():
        symbols[token] = numbers.get(tokenizer.token_bytes(token), -1)
    return symbols if sorted(symbols[symbols >= 0].tolist()) == [*range(len(alphabet))] else None


class SourceDivergence:
    """Sums up the entropy of a synthetic source, the divergence of a model from it, and the loss at the same tokens.

    Only positions whose context is known count: the `order` tokens before them are symbols. A separator between
    documents cuts the context. Without one (`separator=False`), the first symbols of a document count as if they
    continued the document before. `symbol_of` is the result of `symbols_of`.
    """

    def __init__(self, source: MarkovSource, stream: TokenStream, symbol_of: np.ndarray) -> None:
        self.stream, self.source, self.symbol_of = stream, source, symbol_of
        tokens = np.flatnonzero(symbol_of >= 0)
        self.token_of = tokens[np.argsort(symbol_of[tokens])]
        self.entropy, self.divergence, self.loss, self.rows = 0.0, 0.0, 0.0, 0

    def update(self, chunk: Chunk) -> None:
        logits, indices = chunk.logits, chunk.indices
        order = self.source.order
        first = max(0, int(indices.min()) - order)
        symbols = self.symbol_of[self.stream.read(first, int(indices.max()) + 1 - first)]
        reached = np.flatnonzero(indices >= order)
        contexts = symbols[indices[reached, None] - first + np.arange(-order, 0)]
        known = (contexts >= 0).all(axis=1) & (symbols[indices[reached] - first] >= 0)
        if not known.any():
            return
        p = torch.from_numpy(self.source.conditional(contexts[known])).to(logits.device)
        full = torch.zeros(len(p), logits.shape[1], dtype=torch.float64, device=logits.device)
        full[:, torch.from_numpy(self.token_of).to(logits.device)] = p
        rows = torch.from_numpy(reached[known]).to(logits.device)
        self.entropy += bits(float(torch.special.entr(p).sum()))
        self.divergence += float(kl_from_source(full, logits[rows]).sum())
        self.loss += bits(float(chunk.nats[rows].sum()))
        self.rows += len(p)

    def result(self, split: ScoredSplit) -> SourceNumbers:
        """Return the means, and the entropy rate of the source.

        The expected cross-entropy of the model at these tokens is the sum of entropy and divergence.
        """
        sums = (self.entropy, self.divergence, self.loss)
        entropy, divergence, loss = (value / self.rows if self.rows else None for value in sums)
        return SourceNumbers(self.source.entropy_rate_bits, entropy, divergence, loss, self.rows)


@dataclass(frozen=True, kw_only=True)
class Source(Measurement):
    """The divergence from a synthetic source. It is measured if every token is a single byte."""

    result = SourceNumbers

    def observer(self, split: Split) -> SourceDivergence | None:
        text = split.plan.dataset
        synthetic = text.synthetic if isinstance(text, CorpusText) else text.info["corpus"].get("synthetic")
        # Other objectives predict from the text on both sides, for which the source gives no distribution.
        if not (synthetic and isinstance(split.stream, TokenStream) and isinstance(split.objective, NextToken)):
            return None
        source = source_from_description(synthetic)
        symbols = symbols_of(split.tokenizer, source.alphabet)
        return None if symbols is None else SourceDivergence(source, split.stream, symbols)


MEASUREMENT = Source

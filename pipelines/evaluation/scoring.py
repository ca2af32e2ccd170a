"""The scores of a model on the windows of a split."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from corpora.synthetic import source_from_description
from lm.analysis.metrics import PredictionAccumulator, bits, divergences, kl_from_source, token_nll
from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.documents import known_byte_lengths
from pipelines.evaluation.measurement import Observer
from pipelines.evaluation.ngrams import Baselines, BaselineScores
from pipelines.evaluation.token_scores import TokenScores, joined, scores_of
from pipelines.evaluation.windows import Windows
from pipelines.training.batch import hidden_states, logits_in_parts
from tokenizer import Tokenizer

PSEUDO_POSITIONS = 2048
DIVERGENCES = ("kl_bits", "reverse_kl_bits", "js_bits")


@torch.no_grad()
def score(
    model: LanguageModel,
    windows: Iterator[Windows],
    tokenizer: Tokenizer,
    baselines: Baselines | None,
    *,
    window: int,
    other: LanguageModel | None = None,
    source: "SourceDivergence | None" = None,
    observers: Sequence[Observer] = (),
    names: tuple[str, str] = ("the run", "the other run"),
    bar: Bar,
) -> tuple[dict[str, Any], TokenScores]:
    """Return the numbers of evaluation.json for one split (see `pipelines.evaluation.numbers`), and each token's score.

    `other` is a model, and `source` the synthetic source of the text, to measure the divergence from. `observers` see
    all logits. `names` are the names of both models. Raises ValueError with the name if the logits of a model are not
    finite.
    """
    device = next(model.parameters()).device
    # An imported model can have more entries than its tokenizer. They are never targets.
    lengths = torch.zeros(model.config.vocab_size, dtype=torch.int32)
    lengths[: tokenizer.vocab_size] = torch.tensor(known_byte_lengths(tokenizer))
    predictions = PredictionAccumulator(len(lengths), lengths, window)
    baseline_scores = BaselineScores(baselines) if baselines else None
    divergence_sums = [0.0, 0.0, 0.0]
    tokens: list[TokenScores] = []
    done = 0
    for each in windows:
        batch = each.batch
        rows, columns = np.nonzero(each.scored)
        hidden = hidden_states(model, batch, device, each.scored)
        other_hidden = hidden_states(other, batch, device, each.scored) if other else None
        chunks: tuple[list[torch.Tensor], ...] = ([], [], [])
        for part, logits in logits_in_parts(model, hidden):
            places = batch.targets[rows[part], columns[part]], columns[part]
            targets, positions = (torch.from_numpy(array).to(device) for array in places)
            nats, correct = predictions.update(logits, targets, positions)
            _check_finite(nats, names[0])
            for observer in observers:
                observer.update(hidden[part], logits, targets)
            chunks[0].append(nats)
            chunks[1].append(correct)
            if other is not None and other_hidden is not None:
                other_logits = other.logits(other_hidden[part]).float()
                found = divergences(logits, other_logits)
                divergence_sums = [
                    total + float(each_pair.sum()) for total, each_pair in zip(divergence_sums, found, strict=True)
                ]
                other_nats = token_nll(other_logits, targets)
                _check_finite(other_nats, names[1])
                chunks[2].append(nats - other_nats)
            if source is not None and each.indices is not None:
                source.update(logits, nats, each.indices[rows[part], columns[part]])
        if len(rows):
            tokens.append(scores_of(each, rows, columns, *chunks))
        if baseline_scores:
            baseline_scores.update(each.previous[rows, columns], batch.targets[rows, columns])
        done += len(rows)
        bar.update(done)
    numbers = predictions.result() | (baseline_scores.result() if baseline_scores else {})
    if other is not None:
        scored = max(1, numbers["tokens"])
        numbers |= {name: total / scored for name, total in zip(DIVERGENCES, divergence_sums, strict=True)}
    return numbers | (source.result() if source else {}), joined(tokens)


def _check_finite(nats: torch.Tensor, name: str) -> None:
    """Raise ValueError if losses (N,) of the model `name` are NaN, as they are if a logit is not finite."""
    if bool(nats.isnan().any()):
        raise ValueError(
            f"{name}: the model's logits are not finite: its training diverged, choose an earlier --checkpoint"
        )


class SourceDivergence:
    """Sums up the entropy of a synthetic source, the divergence of a model from it, and the loss at the same tokens.

    Only positions whose context is known count: the `order` tokens before them are symbols. A separator between
    documents cuts the context. Without one (--no-separator), the first symbols of a document count as if they
    continued the document before.
    """

    def __init__(self, description: dict[str, Any], stream: TokenStream, tokenizer: Tokenizer) -> None:
        self.stream = stream
        self.source = source_from_description(description)
        self.symbol_of = np.full(tokenizer.vocab_size, -1, np.int64)
        symbols = {bytes([byte]): number for number, byte in enumerate(self.source.alphabet)}
        for token in range(tokenizer.vocab_size):
            self.symbol_of[token] = symbols.get(tokenizer.token_bytes(token), -1)
        whole = len(np.unique(self.symbol_of)) == len(symbols) + 1
        if not whole or tokenizer.merges or not tokenizer.is_lossless:
            raise ValueError("a synthetic source is compared symbol by symbol: use a BPE tokenizer without merges")
        self.token_of = np.array([np.flatnonzero(self.symbol_of == s)[0] for s in range(len(symbols))])
        self.entropy, self.divergence, self.loss, self.rows = 0.0, 0.0, 0.0, 0

    def update(self, logits: torch.Tensor, nats: torch.Tensor, indices: np.ndarray) -> None:
        """Add the predictions `logits` (N, V) and losses `nats` (N,) of the tokens at `indices` (N,) of the stream."""
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
        self.loss += bits(float(nats[rows].sum()))
        self.rows += len(p)

    def result(self) -> dict[str, float | None]:
        """Return the means for evaluation.json, None if no distribution is known, and the entropy rate of the source.

        The expected cross-entropy of the model at these tokens is the sum of the first two.
        """
        sums = {
            "true_entropy_bits": self.entropy,
            "kl_true_bits": self.divergence,
            "true_cross_entropy_bits": self.loss,
        }
        means = {key: value / self.rows if self.rows else None for key, value in sums.items()}
        return {"entropy_rate_bits": self.source.entropy_rate_bits, **means, "kl_true_tokens": self.rows}

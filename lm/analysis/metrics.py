"""The numbers that people quote, as pure functions: nats inside, bits where people read them.

Distributions come as logits (N, V), one row a scored position; reductions are in float64.
`PredictionAccumulator` gathers what one model and one split determine, a chunk of rows at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NATS_PER_BIT = math.log(2.0)
CALIBRATION_BINS = 15


def bits(nats: float) -> float:
    """nats / ln 2."""
    return nats / NATS_PER_BIT


def perplexity(cross_entropy: float) -> float:
    """exp(mean nats per token), a number of equally likely tokens; infinity where it overflows."""
    try:
        return math.exp(cross_entropy)
    except OverflowError:
        return math.inf


def bits_per_byte(total_nats: float, total_bytes: int) -> float | None:
    """Total nats / ln 2 / total bytes; None where there are no bytes. Of causal models only."""
    return bits(total_nats) / total_bytes if total_bytes else None


def token_nats(logits: Tensor, targets: Tensor) -> Tensor:
    """-ln softmax(logits)[target] of each row, in nats: (N, V), (N,) int64 to (N,) float64."""
    log_probabilities = torch.log_softmax(_wide(logits), dim=-1)
    return -log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1).double()


def entropy(logits: Tensor) -> Tensor:
    """H = -sum_v p_v ln p_v of each row, in nats: (N, V) to (N,) float64."""
    log_p = torch.log_softmax(_wide(logits), dim=-1)
    return _expectation(log_p.exp(), -log_p)


def accuracy(logits: Tensor, targets: Tensor) -> float:
    """The share of rows whose largest logit (the first of equals) is the target's."""
    return (logits.argmax(dim=-1) == targets).double().mean().item()


def confidence_bin(confidence: Tensor, bins: int = CALIBRATION_BINS) -> Tensor:
    """Index of the bin ((m - 1) / bins, m / bins] that each confidence in [0, 1] falls in, int64."""
    return ((confidence.double() * bins).ceil().long() - 1).clamp(0, bins - 1)


def calibration_error(confidence: Tensor, correct: Tensor, count: Tensor) -> float:
    """Expected calibration error: sum_m count_m / n * |mean correct_m - mean confidence_m|.

    Each (bins,): within a bin the sum of top-1 probabilities, the number of right answers and the number of
    predictions. Guo et al. 2017, equation 3.
    """
    gaps = (correct.double() - confidence.double()).abs()
    return (gaps.sum() / count.double().sum()).item()


def plug_in_entropy(counts: Tensor) -> float:
    """H(p) = -sum p ln p in nats of the relative frequencies p = counts / n: counts (V,)."""
    p = counts.double() / counts.double().sum()
    return torch.special.entr(p).sum().item()


def kl(p: Tensor, q: Tensor) -> float:
    """D(p || q) = sum p ln(p / q) in nats of two distributions (V,); infinity where q is 0 and p is not."""
    p, q = p.double(), q.double()
    return torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum().item()


def divergences(logits_p: Tensor, logits_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """D(p || q), D(q || p) and the Jensen-Shannon divergence of each pair of rows, in bits.

    (N, V), (N, V) to three (N,) float64. JS = D(p || m) / 2 + D(q || m) / 2 with m = (p + q) / 2, in [0, 1]
    (Lin 1991). Rounding is kept from making them negative.
    """
    if logits_p.shape != logits_q.shape:
        shapes = f"{tuple(logits_p.shape)} and {tuple(logits_q.shape)}"
        raise ValueError(f"logits of shapes {shapes}: compare models of one vocabulary at the same positions")
    log_p, log_q = torch.log_softmax(_wide(logits_p), dim=-1), torch.log_softmax(_wide(logits_q), dim=-1)
    p, q = log_p.exp(), log_q.exp()
    log_m = torch.logaddexp(log_p, log_q) - NATS_PER_BIT
    forward, reverse = _expectation(p, log_p - log_q), _expectation(q, log_q - log_p)
    shannon = (_expectation(p, log_p - log_m) + _expectation(q, log_q - log_m)) / 2
    return tuple((nats / NATS_PER_BIT).clamp(min=0.0) for nats in (forward, reverse, shannon))


def kl_from_source(probabilities: Tensor, logits: Tensor) -> Tensor:
    """D(source || model) of each row, in bits: probabilities (N, V), logits (N, V) to (N,) float64."""
    p = probabilities.double()
    log_q = torch.log_softmax(logits.double(), dim=-1)
    return (_expectation(p, p.log() - log_q) / NATS_PER_BIT).clamp(min=0.0)


class PredictionAccumulator:
    """Sums over scored positions, in float64, on the device of the logits; `result` reads them out.

    On the CPU a chunk should be of some hundred rows, so that its logits stay in the cache.
    """

    def __init__(self, vocab_size: int, byte_lengths: Tensor, window: int) -> None:
        """byte_lengths (V,) int, 0 for special tokens; window: positions a row can have."""
        byte_lengths = torch.as_tensor(byte_lengths).long()
        if byte_lengths.shape != (vocab_size,):
            shape = tuple(byte_lengths.shape)
            raise ValueError(f"byte_lengths has shape {shape}: give one length for each of {vocab_size} tokens")
        bins = CALIBRATION_BINS
        self.byte_lengths = byte_lengths
        self.target_counts = torch.zeros(vocab_size, dtype=torch.int64)
        self.mean_prediction = torch.zeros(vocab_size, dtype=torch.float64)  # summed; divided in `result`
        self.entropy = torch.zeros((), dtype=torch.float64)
        self.position_nats = torch.zeros(window, dtype=torch.float64)
        self.position_squares = torch.zeros(window, dtype=torch.float64)
        self.position_counts = torch.zeros(window, dtype=torch.int64)
        self.bin_confidence = torch.zeros(bins, dtype=torch.float64)
        self.bin_correct = torch.zeros(bins, dtype=torch.float64)
        self.bin_counts = torch.zeros(bins, dtype=torch.int64)

    @torch.no_grad()
    def update(self, logits: Tensor, targets: Tensor, positions: Tensor) -> None:
        """logits (N, V), finite, any float dtype; targets (N,) int64; positions (N,) int64 below window."""
        if logits.device != self.entropy.device:
            self._move(logits.device)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest, predicted = logits.max(dim=-1)
        p = torch.softmax(logits, dim=-1)
        confidence = p.gather(-1, predicted.unsqueeze(-1)).squeeze(-1)
        # the largest p is exp(largest logit - log-sum-exp): no second pass of exponentials
        log_sum_exp = largest - confidence.log()
        nats = (log_sum_exp - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)).double()
        # an inner product a row: one pass, and no (N, V) product is written
        mean_logit = torch.bmm(p.unsqueeze(1), logits.unsqueeze(2)).flatten()

        self.entropy += (log_sum_exp - mean_logit).double().sum()
        self.mean_prediction += p.sum(dim=0).double()
        self.target_counts += torch.bincount(targets, minlength=len(self.target_counts))
        self.position_nats.index_add_(0, positions, nats)
        self.position_squares.index_add_(0, positions, nats.square())
        self.position_counts += torch.bincount(positions, minlength=len(self.position_counts))
        bins = confidence_bin(confidence)
        self.bin_confidence.index_add_(0, bins, confidence.double())
        self.bin_correct.index_add_(0, bins, (predicted == targets).double())
        self.bin_counts += torch.bincount(bins, minlength=len(self.bin_counts))

    def result(self) -> dict:
        """The table of DESIGN's "Numbers people quote" that one model and one split determine, and curves.

        Raises ValueError before the first update: a mean of nothing has no value.
        """
        self._move(torch.device("cpu"))
        tokens = int(self.target_counts.sum())
        if tokens == 0:
            raise ValueError("no position was scored: evaluate on a split with at least one block")
        total_nats = self.position_nats.sum().item()
        cross_entropy = total_nats / tokens
        total_bytes = int((self.target_counts * self.byte_lengths).sum())
        frequencies = self.target_counts.double() / tokens
        return {
            "tokens": tokens,
            "bytes": total_bytes,
            "cross_entropy": cross_entropy,
            "cross_entropy_bits": bits(cross_entropy),
            "perplexity": perplexity(cross_entropy),
            "bits_per_byte": bits_per_byte(total_nats, total_bytes),
            "entropy_bits": bits(self.entropy.item() / tokens),
            "accuracy": self.bin_correct.sum().item() / tokens,
            "calibration_error": calibration_error(self.bin_confidence, self.bin_correct, self.bin_counts),
            "kl_unigram_bits": bits(kl(frequencies, self.mean_prediction / tokens)),
            "unigram_entropy_bits": bits(plug_in_entropy(self.target_counts)),
            "curves": {
                "loss_by_position": self._loss_by_position(),
                "loss_by_position_error": self._loss_by_position_error(),
                "reliability": self._reliability(),
            },
        }

    def _loss_by_position(self) -> list[float | None]:
        """Mean nats at each position of the window; None where nothing was scored."""
        sums, counts = self.position_nats.tolist(), self.position_counts.tolist()
        return [nats / count if count else None for nats, count in zip(sums, counts, strict=True)]

    def _loss_by_position_error(self) -> list[float | None]:
        """Return the standard error of the mean at each position in nats; None below two scored targets."""
        counts = self.position_counts.double()
        variances = (self.position_squares / counts - (self.position_nats / counts).square()).clamp(min=0.0)
        errors = (variances / (counts - 1)).sqrt().tolist()
        return [error if count > 1 else None for error, count in zip(errors, counts.tolist(), strict=True)]

    def _reliability(self) -> list[dict[str, float | int | None]]:
        """Of each confidence bin the mean confidence, the accuracy (None where empty) and the count."""
        sums = zip(self.bin_confidence.tolist(), self.bin_correct.tolist(), self.bin_counts.tolist(), strict=True)
        return [
            {
                "confidence": confidence / count if count else None,
                "accuracy": correct / count if count else None,
                "count": count,
            }
            for confidence, correct, count in sums
        ]

    def _move(self, device: torch.device) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value.to(device))


def _wide(logits: Tensor) -> Tensor:
    """float32 at least: bfloat16 has 8 bits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _expectation(p: Tensor, values: Tensor) -> Tensor:
    """sum_v p_v values_v of each row, float64; impossible entries count 0 whatever their value."""
    return torch.where(p > 0, p * values, 0.0).sum(dim=-1, dtype=torch.float64)

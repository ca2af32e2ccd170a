"""Metrics as pure functions: in nats, except where their names say bits.

Distributions are logits (N, V), one row a scored position. `PredictionAccumulator` computes the metrics of one model on
one split, a chunk of rows at a time.

Every function first subtracts the largest logit of a row, so that a shift of all logits costs no digits. Exponentials
have the dtype of the logits, at least float32, and so do the sums within a row, which PyTorch adds pairwise. Logarithms
and all further sums are in float64. The relative error is below 2e-6 for float32 logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lm.metrics.units import NATS_PER_BIT, bits, bits_per_byte, perplexity

CALIBRATION_BINS = 15
TILE, WIDE_TILE = 2**20, 2**17  # logits in a tile on a CPU, and in a tile in float64: they fit in the cache
FAINT = 1e-30  # sums of float32 probabilities below this have lost terms to underflow
LEAST_EXPONENT = -700.0  # exponentials of float64 below this add nothing, and are slow on a CPU


class Softmax(NamedTuple):
    """The softmax of logits z (N, V), in terms that keep their digits for nearly certain and for shifted predictions.

    `rest` leaves out the largest entry, whose exponential is 1: a float32 sum with it would round small entries away.
    """

    centred: Tensor
    """(N, V): z - max z"""
    rest: Tensor
    """(N, V): exp(z - max z), and 0 at the first of the largest logits"""
    largest: Tensor
    """(N,) int64: place of the first of the largest logits"""
    excess: Tensor
    """(N,) float64: log-sum-exp of z, minus max z"""

    @classmethod
    def of(cls, logits: Tensor) -> Softmax:
        """Compute the terms in float32 or wider."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        values, places = logits.max(dim=-1, keepdim=True)
        centred = logits - values
        # Exponentials below the smallest normal float are slow on a CPU: they become 0 without being computed.
        tiny = torch.finfo(logits.dtype).tiny
        rest = torch.threshold_(centred.clamp(min=math.log(2 * tiny)).exp_(), 3 * tiny, 0.0).scatter_(-1, places, 0.0)
        return cls(centred, rest, places.squeeze(-1), rest.sum(dim=-1).double().log1p())

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """Return ln p of the ids (N, K) int64 of each row: (N, K) float64."""
        return self.centred.gather(-1, ids).double() - self.excess.unsqueeze(-1)

    def entropies(self) -> Tensor:
        """Return -sum_v p_v ln p_v of each row: (N,) float64. Both terms are positive, so no digits cancel."""
        # An entry of minus infinity has probability 0, and 0 times infinity would be NaN.
        finite = self.centred.clamp(min=torch.finfo(self.centred.dtype).min)
        return self.excess - finite.mul_(self.rest).sum(dim=-1).double() * (-self.excess).exp()


def tiles(logits: Tensor, *others: Tensor, size: int = TILE) -> Iterator[tuple[Tensor, ...]]:
    """Yield the rows of logits (N, V) and of `others` (N, ...), on a CPU in tiles of about `size` logits."""
    rows = max(1, size // logits.shape[-1]) if logits.device.type == "cpu" else max(1, len(logits))
    return zip(*(other.split(rows) for other in (logits, *others)), strict=True)


def token_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -ln softmax(logits)[target] of each row, in nats: (N, V), (N,) int64 to (N,) float64."""
    return torch.cat(
        [-Softmax.of(rows).log_probabilities(ids).squeeze(-1) for rows, ids in tiles(logits, targets.unsqueeze(-1))]
    )


def entropy(logits: Tensor) -> Tensor:
    """Return H = -sum_v p_v ln p_v of each row, in nats: (N, V) to (N,) float64."""
    return torch.cat([Softmax.of(rows).entropies() for (rows,) in tiles(logits)])


def accuracy(logits: Tensor, targets: Tensor) -> float:
    """Return the share of rows whose largest logit, the first of equals, is the target's."""
    return (logits.argmax(dim=-1) == targets).double().mean().item()


def confidence_bin(confidence: Tensor, bins: int = CALIBRATION_BINS) -> Tensor:
    """Return the index m - 1 of the bin ((m - 1) / bins, m / bins] of each confidence in [0, 1], int64."""
    return ((confidence.double() * bins).ceil().long() - 1).clamp(0, bins - 1)


def calibration_error(confidence: Tensor, correct: Tensor, count: Tensor) -> float:
    """Return the expected calibration error (Guo et al. 2017, equation 3).

    It is sum_m count_m / n * |mean correct_m - mean confidence_m|. Arguments, each (bins,): the sum of top-1
    probabilities, the correct predictions and all predictions of each bin.
    """
    gaps = (correct.double() - confidence.double()).abs()
    return float(gaps.sum() / count.double().sum())


def plug_in_entropy(counts: Tensor) -> float:
    """Return H(p) = -sum p ln p in nats of the relative frequencies p = counts / n: counts (V,)."""
    p = counts.double() / counts.double().sum()
    return float(torch.special.entr(p).sum())


def kl(p: Tensor, log_q: Tensor) -> float:
    """Return D(p || q) = sum p ln(p / q) in nats of p (V,) and ln q (V,); infinity if q is 0 where p is not."""
    p = p.double()
    return float(torch.where(p > 0, p * (p.log() - log_q.double()), 0.0).sum())


def divergences(logits_p: Tensor, logits_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return D(p || q), D(q || p) and the Jensen-Shannon divergence of each pair of rows, in bits.

    (N, V), (N, V) to three (N,) float64, clamped at 0. JS = D(p || m) / 2 + D(q || m) / 2 with m = (p + q) / 2, in
    [0, 1] (Lin 1991).
    """
    if logits_p.shape != logits_q.shape:
        shapes = f"{tuple(logits_p.shape)} and {tuple(logits_q.shape)}"
        raise ValueError(f"logits of shapes {shapes}: compare models of one vocabulary at the same positions")
    parts = [_divergences(*rows) for rows in tiles(logits_p, logits_q, size=WIDE_TILE)]
    forward, reverse, shannon = (_clamped_bits(torch.cat(column)) for column in zip(*parts, strict=True))
    return forward, reverse, shannon


def _divergences(logits_p: Tensor, logits_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the divergences of a tile in nats. Similar models need float64: the terms nearly cancel."""
    (log_p, p), (log_q, q) = map(_normalized, (logits_p, logits_q))
    log_m = ((p + q) / 2).log_()
    shannon = (_expectation(p, log_p - log_m) + _expectation(q, log_q - log_m)) / 2
    difference = log_p.sub_(log_q)
    return _expectation(p, difference), -_expectation(q, difference), shannon


def _normalized(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return ln p and p of logits (N, V), float64, whose sums over V are 1 to rounding.

    torch.log_softmax adds the entries one by one on some CPUs, so its sum is off by 1e-12 for GPT-2's vocabulary.
    """
    log_p = torch.log_softmax(logits.double(), dim=-1)
    p = log_p.exp()
    return log_p.sub_(p.sum(dim=-1, keepdim=True).log_()), p


def kl_from_source(probabilities: Tensor, logits: Tensor) -> Tensor:
    """Return D(source || model) of each row, in bits: probabilities (N, V), logits (N, V) to (N,) float64."""
    p = probabilities.double()
    log_q = torch.log_softmax(logits.double(), dim=-1)
    return _clamped_bits(_expectation(p, p.log() - log_q))


class PredictionAccumulator:
    """Accumulates sums over scored positions, in float64, on the device of the logits."""

    def __init__(self, vocab_size: int, byte_lengths: Tensor, window: int) -> None:
        """byte_lengths (V,) int, 0 for special tokens; positions are below `window`."""
        byte_lengths = torch.as_tensor(byte_lengths).long()
        if byte_lengths.shape != (vocab_size,):
            shape = tuple(byte_lengths.shape)
            raise ValueError(f"byte_lengths has shape {shape}: give one length for each of {vocab_size} tokens")
        bins = CALIBRATION_BINS
        self.byte_lengths = byte_lengths
        self.target_counts = torch.zeros(vocab_size, dtype=torch.int64)
        # The sum of all predictions is the first of these plus exp of the second; `result` divides it.
        self.sum_of_predictions = torch.zeros(vocab_size, dtype=torch.float64)
        self.log_faint_predictions = torch.full((vocab_size,), -math.inf, dtype=torch.float64)
        self.entropy = torch.zeros((), dtype=torch.float64)
        self.position_nats = torch.zeros(window, dtype=torch.float64)
        self.position_squares = torch.zeros(window, dtype=torch.float64)
        self.position_counts = torch.zeros(window, dtype=torch.int64)
        self.bin_confidence = torch.zeros(bins, dtype=torch.float64)
        self.bin_correct = torch.zeros(bins, dtype=torch.float64)
        self.bin_counts = torch.zeros(bins, dtype=torch.int64)

    @torch.no_grad()
    def update(self, logits: Tensor, targets: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Add N predictions, and return (nats, correct) of their targets: (N,) float64 and (N,) bool.

        A target is correct if it is ranked first. Arguments:
        logits (N, V), finite, any float dtype; targets (N,) int64; positions (N,) int64 below window.
        """
        if logits.device != self.entropy.device:
            self._move(logits.device)
        scored = [self._add(*tile) for tile in tiles(logits, targets)]
        nats, confidence, predicted = (torch.cat(column) for column in zip(*scored, strict=True))
        self.target_counts += torch.bincount(targets, minlength=len(self.target_counts))
        self.position_nats.index_add_(0, positions, nats)
        self.position_squares.index_add_(0, positions, nats.square())
        self.position_counts += torch.bincount(positions, minlength=len(self.position_counts))
        bins = confidence_bin(confidence)
        self.bin_confidence.index_add_(0, bins, confidence)
        correct = predicted == targets
        self.bin_correct.index_add_(0, bins, correct.double())
        self.bin_counts += torch.bincount(bins, minlength=len(self.bin_counts))
        return nats, correct

    def _add(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add entropies and predictions of a tile; return nats of the targets, top-1 probabilities and top-1 ids."""
        softmax = Softmax.of(logits)
        nats = -softmax.log_probabilities(targets.unsqueeze(-1)).squeeze(-1)
        confidence = (-softmax.excess).exp()
        # In place, because new memory would cost more than the arithmetic.
        self.entropy += softmax.excess.sum() - softmax.centred.mul_(softmax.rest).sum(dim=-1).double() @ confidence
        predictions = softmax.rest.mul_(confidence.to(softmax.rest.dtype).unsqueeze(-1)).sum(dim=0).double()
        predictions.index_add_(0, softmax.largest, confidence)
        if bool(predictions.amin() < FAINT):
            normaliser = logits.gather(-1, softmax.largest.unsqueeze(-1)).double() + softmax.excess.unsqueeze(-1)
            log_p = logits.double() - normaliser
            top = log_p.amax(dim=0)
            log_sum = top + (log_p - top).clamp_(min=LEAST_EXPONENT).exp_().sum(dim=0).log()
            self.log_faint_predictions = torch.logaddexp(self.log_faint_predictions, log_sum)
        else:
            self.sum_of_predictions += predictions
        return nats, confidence, softmax.largest

    def result(self) -> dict[str, Any]:
        """Return the metrics that evaluation.json has of a split, and `curves`.

        Raises ValueError before the first update.
        """
        self._move(torch.device("cpu"))
        tokens = int(self.target_counts.sum())
        if tokens == 0:
            raise ValueError("no position was scored: evaluate on a split with at least one block")
        total_nats = self.position_nats.sum().item()
        cross_entropy = total_nats / tokens
        total_bytes = int((self.target_counts * self.byte_lengths).sum())
        frequencies = self.target_counts.double() / tokens
        log_mean_prediction = torch.logaddexp(self.sum_of_predictions.log(), self.log_faint_predictions)
        log_mean_prediction -= math.log(tokens)
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
            "kl_unigram_bits": bits(kl(frequencies, log_mean_prediction)),
            "unigram_entropy_bits": bits(plug_in_entropy(self.target_counts)),
            "curves": {
                "loss_by_position": self._loss_by_position(),
                "loss_by_position_error": self._loss_by_position_error(),
                "reliability": self._reliability(),
            },
        }

    def _loss_by_position(self) -> list[float | None]:
        """Return the mean nats at each position of the window, None if nothing was scored there."""
        sums, counts = self.position_nats.tolist(), self.position_counts.tolist()
        return [nats / count if count else None for nats, count in zip(sums, counts, strict=True)]

    def _loss_by_position_error(self) -> list[float | None]:
        """Return the standard error of the mean nats at each position, None below two scored targets."""
        counts = self.position_counts.double()
        variances = (self.position_squares / counts - (self.position_nats / counts).square()).clamp(min=0.0)
        errors = (variances / (counts - 1)).sqrt().tolist()
        return [error if count > 1 else None for error, count in zip(errors, counts.tolist(), strict=True)]

    def _reliability(self) -> list[dict[str, float | int | None]]:
        """Return mean confidence, accuracy (both None if empty) and count of each confidence bin."""
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


def _expectation(p: Tensor, values: Tensor) -> Tensor:
    """Return sum_v p_v values_v of each row, float64. Entries with p = 0 count as 0, whatever their value."""
    return torch.where(p > 0, p * values, 0.0).sum(dim=-1, dtype=torch.float64)


def _clamped_bits(nats: Tensor) -> Tensor:
    """Return bits, at least 0: rounding can make a divergence negative."""
    return (nats / NATS_PER_BIT).clamp(min=0.0)


class TokenScores(NamedTuple):
    """Scores of N predictions, in nats."""

    log_probabilities: Tensor
    """(N,) float64: ln p of the target."""
    entropies: Tensor
    """(N,) float64: entropy of the prediction."""
    ranks: Tensor
    """(N,) int64: 1 + the number of tokens that are more probable than the target."""
    top_ids: Tensor
    """(N, K) int64: the K likeliest tokens, likeliest first."""
    top_log_probabilities: Tensor
    """(N, K) float64: their ln p. The target's entry equals `log_probabilities` exactly."""


def token_scores(logits: Tensor, targets: Tensor, top: int = 0) -> TokenScores:
    """Return the scores of predictions `logits` (N, V), any float dtype, at `targets` (N,) int64; K is `top`."""
    softmax = Softmax.of(logits)
    own = targets.unsqueeze(-1)
    best = softmax.centred.topk(min(top, logits.shape[-1]), dim=-1).indices
    ranks = 1 + (softmax.centred > softmax.centred.gather(-1, own)).count_nonzero(dim=-1)
    log_p, top_log_p = (softmax.log_probabilities(ids) for ids in (own, best))
    return TokenScores(log_p.squeeze(-1), softmax.entropies(), ranks, best, top_log_p)

"""Schedules: pure functions of how far a training is, giving a multiple of a peak, or a batch size.

`done` of `total` is where an optimizer step begins and `stride` how far it goes, all in one unit: tokens, or steps of
stride 1. So a schedule does not depend on the size of the steps that it is read at. Learning rates climb in a line,
from stride / warmup at the first step to 1 at the step that completes the warm-up.
"""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "trapezoid", "inverse_sqrt"]
DecaySchedule = Literal["constant", "linear", "cosine"]


def multiplier(
    kind: Schedule,
    done: float,
    *,
    warmup: float,
    total: float,
    stride: float = 1.0,
    final: float = 0.1,
    decay_share: float = 0.5,
) -> float:
    """The multiplier of the peak learning rate by the schedule of that name."""
    if kind == "cosine":
        return warmup_cosine(done, warmup=warmup, total=total, stride=stride, final=final)
    if kind == "trapezoid":
        decay = decay_share * total
        return trapezoid(done, warmup=warmup, decay=decay, total=total, stride=stride, final=final)
    return inverse_sqrt(done, warmup=warmup, stride=stride)


def warmup_cosine(done: float, *, warmup: float, total: float, stride: float = 1.0, final: float = 0.1) -> float:
    """Warm-up, then half a cosine from 1 down to `final`, reached at `total`, where it stays.

    Loshchilov and Hutter 2017, equation 5, without restarts.
    """
    if done < warmup:
        return _climb(done, warmup, stride)
    return half_cosine(done - warmup, total - warmup, final)


def trapezoid(
    done: float, *, warmup: float, decay: float, total: float, stride: float = 1.0, final: float = 0.0
) -> float:
    """Warm-up, then 1, then over the last `decay` a line down to `final` (Hägele et al. 2024)."""
    if done < warmup:
        return _climb(done, warmup, stride)
    decay = min(decay, total - warmup)
    left = max(0.0, total - done)
    if left >= decay:
        return 1.0
    return final + (1.0 - final) * left / decay


def inverse_sqrt(done: float, *, warmup: float, stride: float = 1.0) -> float:
    """Warm-up, then sqrt(warmup / done) (Vaswani et al. 2017, equation 3, with its peak at 1); without a warm-up the
    first step takes its place."""
    if done < warmup:
        return _climb(done, warmup, stride)
    return math.sqrt(max(stride, warmup) / max(stride, done))


def weight_decay_multiplier(kind: DecaySchedule, done: float, *, total: float, final: float) -> float:
    """The multiplier of the weight decay: 1, or from 1 to `final` (which may be above it) in a line or half a cosine.

    A cosine as in Caron et al. 2021 (DINO), where decay grows. Decoupled decay is multiplied by the learning rate
    besides (Loshchilov and Hutter 2019, algorithm 2).
    """
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 + (final - 1.0) * min(1.0, done / total)
    return half_cosine(done, total, final)


def batch_size(done: float, *, start: float, full: float, warmup: float) -> float:
    """Batch size warm-up: from `start` in a line to `full`, reached after `warmup` (Brown et al. 2020, appendix B).

    Early gradients agree, so that small batches already tell the direction; late ones want large batches (McCandlish
    et al. 2018; Smith et al. 2018).
    """
    return full if done >= warmup else start + (full - start) * done / warmup


def half_cosine(done: float, total: float, final: float) -> float:
    """From 1 at 0 to `final` at `total`, where it stays."""
    progress = min(1.0, done / total) if total > 0 else 0.0
    return final + (1.0 - final) * (1.0 + math.cos(math.pi * progress)) / 2.0


def _climb(done: float, warmup: float, stride: float) -> float:
    return min(1.0, (done + stride) / warmup)

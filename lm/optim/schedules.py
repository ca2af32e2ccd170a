"""Schedules: pure functions from training progress to a multiple of a peak, or to a batch size.

An optimizer step begins at `done` of `total` and advances by `stride`, all in one unit: tokens, or steps of stride 1.
A schedule therefore does not depend on the batch size. Warm-up is linear, from stride / warmup at the first step to 1
at the step that completes it.
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
    """Return the multiple of the peak learning rate by the schedule `kind`."""
    if kind == "cosine":
        return warmup_cosine(done, warmup=warmup, total=total, stride=stride, final=final)
    if kind == "trapezoid":
        decay = decay_share * total
        return trapezoid(done, warmup=warmup, decay=decay, total=total, stride=stride, final=final)
    return inverse_sqrt(done, warmup=warmup, stride=stride)


def warmup_cosine(done: float, *, warmup: float, total: float, stride: float = 1.0, final: float = 0.1) -> float:
    """Warm-up, then half a cosine from 1 to `final` at `total`, then constant.

    Loshchilov and Hutter 2017, equation 5, without restarts.
    """
    if done < warmup:
        return _warmup(done, warmup, stride)
    return half_cosine(done - warmup, total - warmup, final)


def trapezoid(
    done: float, *, warmup: float, decay: float, total: float, stride: float = 1.0, final: float = 0.0
) -> float:
    """Warm-up, then 1, then linear to `final` over the last `decay` (Hägele et al. 2024)."""
    if done < warmup:
        return _warmup(done, warmup, stride)
    decay = min(decay, total - warmup)
    left = max(0.0, total - done)
    if left >= decay:
        return 1.0
    return final + (1.0 - final) * left / decay


def inverse_sqrt(done: float, *, warmup: float, stride: float = 1.0) -> float:
    """Warm-up, then sqrt(warmup / done) (Vaswani et al. 2017, equation 3, scaled to a peak of 1).

    Without a warm-up, the first step counts as the warm-up. `stride` must then be the stride of the first step.
    """
    if done < warmup:
        return _warmup(done, warmup, stride)
    return math.sqrt(max(stride, warmup) / max(stride, done))


def ends_at_peak(*, warmup: float, total: float, stride: float = 1.0) -> bool:
    """Return whether a schedule is at its peak at the last step, because the warm-up leaves no step to fall."""
    last = (math.ceil(total / stride) - 1) * stride
    return warmup > 0 and last <= warmup


def weight_decay_multiplier(kind: DecaySchedule, done: float, *, total: float, final: float) -> float:
    """Return the multiple of the weight decay: 1, or from 1 to `final` linearly or by half a cosine.

    `final` may exceed 1: decay grows by a cosine in Caron et al. 2021 (DINO). The optimizer also multiplies decoupled
    decay by the learning rate (Loshchilov and Hutter 2019, algorithm 2).
    """
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 + (final - 1.0) * min(1.0, done / total)
    return half_cosine(done, total, final)


def batch_size(done: float, *, start: float, full: float, warmup: float) -> float:
    """Return the batch size: linear from `start` to `full` over `warmup` (Brown et al. 2020, appendix B).

    Early gradients agree, so small batches suffice; later gradients need large batches (McCandlish et al. 2018; Smith
    et al. 2018).
    """
    return full if done >= warmup else start + (full - start) * done / warmup


def sequence_length(done: float, *, shortest: int, full: int, warmup: float) -> int:
    """Return the length of sequences: short at first (Devlin et al. 2019, A.2; Li et al. 2022), then `full`.

    The first length is `full`, halved as often as the result is whole and at least `shortest`. The length doubles in
    equal intervals of `warmup`. With `shortest` = 0 it is always `full`.
    """
    halvings = 0
    while shortest and (full >> halvings) % 2 == 0 and full >> halvings >= 2 * shortest:
        halvings += 1
    return full if done >= warmup else full >> halvings - int(halvings * done / warmup)


def half_cosine(done: float, total: float, final: float) -> float:
    """Return half a cosine from 1 at 0 to `final` at `total`, then constant."""
    progress = min(1.0, done / total) if total > 0 else 0.0
    return final + (1.0 - final) * (1.0 + math.cos(math.pi * progress)) / 2.0


def _warmup(done: float, warmup: float, stride: float) -> float:
    return min(1.0, (done + stride) / warmup)

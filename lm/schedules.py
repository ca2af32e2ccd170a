"""Schedules: pure functions of a step, giving a multiple of the peak learning rate.

All climb in a line: steps 0 to warmup_steps - 1 from 1 / warmup_steps to 1.
"""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["cosine", "trapezoid", "inverse_sqrt"]


def multiplier(
    kind: Schedule, step: int, *, warmup_steps: int, total_steps: int, final: float = 0.1, decay_share: float = 0.5
) -> float:
    """The multiplier of step 0, 1, ... of `total_steps` by the schedule of that name."""
    if kind == "cosine":
        return warmup_cosine(step, warmup_steps=warmup_steps, total_steps=total_steps, final=final)
    if kind == "trapezoid":
        decay_steps = round(decay_share * total_steps)
        return trapezoid(step, warmup_steps=warmup_steps, decay_steps=decay_steps, total_steps=total_steps, final=final)
    return inverse_sqrt(step, warmup_steps=warmup_steps)


def warmup_cosine(step: int, *, warmup_steps: int, total_steps: int, final: float = 0.1) -> float:
    """Warm-up, then half a cosine from 1 down to `final`, reached at step `total_steps`, where it stays.

    Loshchilov and Hutter 2017, equation 5, without restarts.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return final + (1.0 - final) * (1.0 + math.cos(math.pi * progress)) / 2.0


def trapezoid(step: int, *, warmup_steps: int, decay_steps: int, total_steps: int, final: float = 0.0) -> float:
    """Warm-up, then 1, then over the last `decay_steps` a line down to `final` (Hägele et al. 2024)."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    decay_steps = min(decay_steps, total_steps - warmup_steps)
    left = max(0, total_steps - step)
    if left >= decay_steps:
        return 1.0
    return final + (1.0 - final) * left / decay_steps


def inverse_sqrt(step: int, *, warmup_steps: int) -> float:
    """Warm-up, then sqrt(warmup_steps / step) (Vaswani et al. 2017, equation 3, with its peak at 1)."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return math.sqrt(max(1, warmup_steps) / max(1, step))

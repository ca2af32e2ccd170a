"""Schedules: pure functions of a step, giving a multiple of the peak learning rate."""

from __future__ import annotations

import math


def warmup_cosine(step: int, *, warmup_steps: int, total_steps: int, final: float = 0.1) -> float:
    """The multiplier of step 0, 1, ... of `total_steps`: a line up to 1, then half a cosine down to `final`.

    Steps 0 to warmup_steps - 1 climb from 1 / warmup_steps to 1; from there the cosine falls, and reaches
    `final` at step `total_steps` and stays (Loshchilov and Hutter 2017, equation 5, without restarts).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return final + (1.0 - final) * (1.0 + math.cos(math.pi * progress)) / 2.0

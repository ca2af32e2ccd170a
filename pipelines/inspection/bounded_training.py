"""Training inside an instrument: limited in steps and seconds, with a progress bar, and ended early by Ctrl-C."""

import time
from collections.abc import Callable

from pipelines.cli.display import Bar, say


def check_bounds(steps: int, seconds: float) -> None:
    """Raise ValueError for options that leave nothing to train."""
    if steps < 1:
        raise ValueError(f"`steps` is {steps}, but must be at least 1")
    if not seconds > 0:
        raise ValueError(f"`seconds` is {seconds}, but must be above 0")


def train(label: str, step: Callable[[float], float], *, steps: int, seconds: float) -> int:
    """Call `step` until one of the bounds is reached, or until Ctrl-C; return the number of steps.

    `step` gets the share of the training that is done, from 0 to 1, for a schedule, and returns its loss.
    """
    done, started, elapsed = 0, time.monotonic(), 0.0
    with Bar(label, steps, "steps") as bar:
        try:
            while done < steps and elapsed < seconds:
                loss = step(max(done / steps, elapsed / seconds))
                done, elapsed = done + 1, time.monotonic() - started
                bar.update(done, total=min(steps, max(done, round(done * seconds / elapsed))), note=f"loss {loss:.3f}")
        except KeyboardInterrupt:
            say(f"{label}: interrupted; the result is that after {done:,} steps")
    return done


def extent(steps: int, trained_tokens: int, validation_tokens: int) -> str:
    """Return the sentence that tells how long a training was and on how much text it was measured."""
    return f"{steps:,} steps on {trained_tokens:,} training tokens; {validation_tokens:,} validation tokens"

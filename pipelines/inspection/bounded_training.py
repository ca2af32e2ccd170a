"""Training inside an instrument, with a progress bar. Limits on steps and seconds, or Ctrl-C, end it."""

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
    """Call `step` until a limit is reached or Ctrl-C is pressed; return the number of steps.

    `step` maps the share of the training that is done, from 0 to 1, to a loss. A schedule can use this share.
    """
    done, started, elapsed = 0, time.monotonic(), 0.0
    with Bar(label, steps, "steps") as bar:
        try:
            while done < steps and elapsed < seconds:
                loss = step(max(done / steps, elapsed / seconds))
                done, elapsed = done + 1, time.monotonic() - started
                bar.update(done, total=max(done, round(min(steps, done * seconds / elapsed))), note=f"loss {loss:.3f}")
        except KeyboardInterrupt:
            say(f"{label}: interrupted; the result is from {done:,} steps")
    return done


def extent(steps: int, trained_tokens: int, validation_tokens: int) -> str:
    """Return a sentence with the length of a training and the size of the validation text."""
    return f"{steps:,} steps on {trained_tokens:,} training tokens; {validation_tokens:,} validation tokens"

"""Signals: a run that is asked to stop saves first."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.cli.display import say
from pipelines.training.progress import Progress

# Seconds in which signals are one request: a terminal or a scheduler signals all processes of a job, and the one that
# started them passes it on.
ONE_REQUEST = 1.0


@contextmanager
def asked_to_stop(at: Progress) -> Iterator[None]:
    """SIGINT and SIGTERM ask the loop to save and leave after the step at hand; a second later they leave at once."""

    received = []  # when, by this process: `at.signal` may be another's

    def ask(number: int, frame: object) -> None:
        received.append(time.monotonic())
        if received[-1] - received[0] > ONE_REQUEST:
            raise KeyboardInterrupt
        if len(received) > 1:
            return
        at.signal = number
        say(f"{signal.Signals(number).name}: saving a checkpoint after this step (again to leave without)")

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs us there handles signals
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

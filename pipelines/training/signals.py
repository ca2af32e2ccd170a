"""Signals: a run that is asked to stop saves first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.display import say
from pipelines.training.progress import Progress


@contextmanager
def asked_to_stop(at: Progress) -> Iterator[None]:
    """SIGINT and SIGTERM ask the loop to save and leave after the step at hand; the same again leaves at once."""

    received = []  # by this process: `at.signal` may be another's

    def ask(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
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

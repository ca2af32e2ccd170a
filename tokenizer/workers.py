"""A plain thread pool for kernels that release the GIL, which stops at once when one thread fails or on Ctrl-C."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tokenizer.argument_checks import MOST_THREADS, whole_number

Task = TypeVar("Task")


def thread_count(threads: int | None) -> int:
    """Return `threads` if valid, by default one per core that this process may use."""
    if threads is None:
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1
    return whole_number("threads", threads, 1, MOST_THREADS)


class Stopped(Exception):  # noqa: N818 - a signal, not an error
    """Raised inside a worker to abort its task."""


def share_out(
    tasks: Iterable[Task], work: Sequence[Callable[[Task, Callable[[], None]], None]], done: Callable[[Task], None]
) -> None:
    """Run tasks on a pool of threads, one per entry of `work`; only worker k calls `work[k]`.

    work[k](task, check): call `check` regularly; it raises when the work must stop. `done(task)` runs in the calling
    thread, in no particular order. Tasks are drawn in the calling thread, at most two per worker in advance. The first
    exception of a task is raised here after all workers have stopped.
    """
    if len(work) == 1:
        for task in tasks:
            work[0](task, lambda: None)
            done(task)
        return
    waiting: queue.SimpleQueue[tuple[Task] | None] = queue.SimpleQueue()
    finished: queue.SimpleQueue[tuple[Task, BaseException | None]] = queue.SimpleQueue()
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise Stopped

    def run(worker: Callable[[Task, Callable[[], None]], None]) -> None:
        while (item := waiting.get()) is not None:
            try:
                check()
                worker(item[0], check)
                finished.put((item[0], None))
            except BaseException as error:  # handed to the calling thread
                finished.put((item[0], error))

    def collect(wait: bool) -> int:
        task, error = finished.get(block=wait)
        if error is not None:
            raise error
        done(task)
        return 1

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in work]
    for thread in threads:
        thread.start()
    outstanding = 0
    try:
        for task in tasks:
            while outstanding >= 2 * len(work):
                outstanding -= collect(wait=True)
            waiting.put((task,))
            outstanding += 1
        while outstanding:
            outstanding -= collect(wait=True)
    finally:
        stop.set()
        for _ in threads:
            waiting.put(None)
        for thread in threads:
            thread.join()

"""The processes that train the runs of a sweep, several at a time.

Each process trains one run after another in one thread. Ctrl-C lets every process save a checkpoint.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import FrameType

from pipelines.cli import process
from pipelines.sweep.plan import SweepRun
from pipelines.sweep.runs import Work, finish


class _Trainer:
    """A process that trains the runs it is sent, and answers each with None or the text of an error."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process would share torch's threads
        self.pipe, theirs = context.Pipe()
        self.run: SweepRun | None = None
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process ends the pipe

    def start(self, run: SweepRun) -> None:
        self.run = run
        self.pipe.send(run)

    def finished(self) -> SweepRun:
        """Return the run that has finished; ValueError if it failed, ChildProcessError if the process has died."""
        assert self.run is not None
        try:
            error = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise ChildProcessError(
                f"the process that trained {self.run.name} ended with status {self.process.exitcode}, perhaps for lack "
                "of memory: run the same command again, with fewer --workers"
            ) from None
        if error is not None:
            raise ValueError(f"{self.run.name}: {error}")
        run, self.run = self.run, None
        return run


def train_all(work: Work, runs: Sequence[SweepRun], workers: int, done: Callable[[SweepRun], None]) -> None:
    """Train `runs`, `workers` at a time in this order; call `done` after each.

    After Ctrl-C, SIGTERM or an error, the runs in training save a checkpoint first.
    """
    waiting = list(reversed(runs))
    with _terminable():
        trainers = [_Trainer(work) for _ in range(min(workers, len(runs)))]
        try:
            for each in trainers:
                each.start(waiting.pop())
            while busy := {each.pipe: each for each in trainers if each.run}:
                for pipe in wait(list(busy)):
                    trainer = busy[pipe]  # type: ignore[index]  # wait returns what it was given
                    done(trainer.finished())
                    if waiting:
                        trainer.start(waiting.pop())
        finally:
            for each in trainers:
                each.pipe.close()
                if each.run and each.process.is_alive():
                    os.kill(each.process.pid or 0, signal.SIGINT)
            for each in trainers:
                each.process.join()


@contextmanager
def _terminable() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C within the block."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread, which handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve(pipe: Connection, work: Work) -> None:
    """Train the runs that arrive, until the pipe is closed or a signal arrives."""
    stopped = process.interrupts  # a training that begins after the signal raises KeyboardInterrupt

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while not stopped:
            run = pipe.recv()
            try:
                if not finish(work, run):
                    return
            except Exception as error:
                pipe.send(str(error) or type(error).__name__)
                return
            pipe.send(None)

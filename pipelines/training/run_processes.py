"""Train several runs at a time, each in its own process. After Ctrl-C every process saves a checkpoint."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from pipelines.cli import process

POLL_SECONDS = 5.0


class NamedRun(Protocol):
    """A run that messages can name."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=NamedRun)


class _Trainer(Generic[R]):
    """A process that finishes runs. It sends None when it is ready for a run, or the text of an error."""

    def __init__(self, finish: Callable[[R], bool]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process would share torch's threads
        self.pipe, theirs = context.Pipe()
        self.run: R | None = None
        self.process = context.Process(target=_serve, args=(theirs, finish), daemon=True)
        with process.handle(signal.SIGINT, signal.SIG_IGN):  # inherited until the process sets its own handler
            self.process.start()
        theirs.close()  # so that the end of the process ends the pipe

    def start(self, run: R) -> None:
        self.run = run
        self.pipe.send(run)

    def answered(self) -> R | None:
        """Return the finished run; None if the process has only started.

        Raises ValueError if the run failed, ChildProcessError if the process died.
        """
        try:
            error = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise ChildProcessError(
                f"a training process ended with status {self.process.exitcode}, perhaps out of memory: run the same "
                "command again, with fewer `workers`"
            ) from None
        run, self.run = self.run, None
        if error is not None:
            raise ValueError(f"{run.name if run else 'start'}: {error}")
        return run

    def stop(self) -> None:
        """Ask the process to end; if it is training, after it has saved a checkpoint."""
        self.pipe.close()
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGINT if self.run else signal.SIGTERM)


def train_all(
    finish: Callable[[R], bool],
    runs: Sequence[R],
    workers: int,
    done: Callable[[R], None],
    poll: Callable[[], None] | None = None,
) -> None:
    """Call `finish` for `runs` in processes, `workers` at a time in this order; call `done` after each.

    `finish` is pickled. It returns False if a signal stopped it after it saved a checkpoint. `poll` is called every few
    seconds. After Ctrl-C, SIGTERM or an error, the runs in training save a checkpoint first.
    """
    waiting = list(reversed(runs))
    trainers: list[_Trainer[R]] = []
    with process.handle(signal.SIGTERM, process.interrupt):
        try:
            for _ in range(min(workers, len(runs))):
                trainers.append(_Trainer(finish))
            open_pipes: dict[Any, _Trainer[R]] = {trainer.pipe: trainer for trainer in trainers}
            while open_pipes:
                for pipe in wait(list(open_pipes), timeout=POLL_SECONDS if poll else None):
                    trainer = open_pipes[pipe]
                    if run := trainer.answered():
                        done(run)
                    if waiting:
                        trainer.start(waiting.pop())
                    else:
                        del open_pipes[pipe]
                if poll:
                    poll()
        finally:
            for started in trainers:
                started.stop()
            for started in trainers:
                started.process.join()


def _serve(pipe: Connection, finish: Callable[[R], bool]) -> None:
    """Finish the runs that arrive, until the pipe is closed, a signal arrives or the parent is killed."""
    process.end_with_parent()
    stopped = process.interrupts  # a run that starts after the signal raises KeyboardInterrupt

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        pipe.send(None)
        while not stopped:
            run = pipe.recv()
            try:
                if not finish(run):
                    return
            except Exception as error:
                pipe.send(str(error) or type(error).__name__)
                return
            pipe.send(None)

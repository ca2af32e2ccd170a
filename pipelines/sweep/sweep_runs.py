"""The runs of a sweep: train a model, measure the held-out text, keep the result, and remove the model.

Several processes train one run after another, each in one thread. Ctrl-C lets every process save a checkpoint.
"""

import math
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from lm.metrics.units import NATS_PER_BIT
from lm.model import LanguageModel
from pipelines.cli import process
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation.planning import objective_of, window_of
from pipelines.evaluation.windows import Objective, WindowSettings, windows_over
from pipelines.files import read_json, write_json
from pipelines.machine import cores_per_operation
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.provenance import provenance
from pipelines.sweep.plan import Budget, SweepRun, fingerprint
from pipelines.sweep.vocabularies import stream_of
from pipelines.training.batch_loss import summed_loss
from pipelines.training.pretraining import train

# Numbers of a result that the summary reads.
NUMBERS = (
    *("bits_per_byte", "bytes_per_token", "tokens", "bytes_seen", "epochs", "flops"),
    *("parameters", "embedding_parameters"),
)


@dataclass(frozen=True)
class Work:
    """What the processes of a sweep need: its folder, the budget of each run, and the held-out text."""

    folder: Path
    budget: Budget
    held_out: list[bytes]

    def vocabulary(self, run: SweepRun) -> Path:
        """Return the folder of the dataset of a run."""
        return self.folder / "vocabularies" / run.vocabulary.name

    def run(self, run: SweepRun) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / run.name

    def result(self, run: SweepRun) -> dict[str, Any] | None:
        """Return the result of a run; None if it is not finished."""
        path = self.result_file(run)
        if not path.exists():
            return None
        remedy = "remove the file to train the run again"
        result: dict[str, Any] = read_json(path, remedy)
        if missing := [name for name in NUMBERS if not isinstance(result.get(name), (int, float))]:
            raise ValueError(f"{path} is damaged (it has no number {missing[0]}): {remedy}")
        return result

    def result_file(self, run: SweepRun) -> Path:
        """Return the file of the result of a run."""
        return self.folder / "results" / f"{run.name}.json"


def finish(work: Work, run: SweepRun) -> bool:
    """Train or resume a run and write its result; return False if a signal stopped it after it saved a checkpoint."""
    folder, data = work.run(run), work.vocabulary(run)
    recipe = work.budget.recipe_of(run)
    if train(recipe, {data: 1}, folder, "none"):
        return False
    with cores_per_operation(recipe.train.threads):
        result = measure(work, run)
    write_json(work.result_file(run), result)
    shutil.rmtree(folder)  # the models of a sweep can take gigabytes
    return True


def measure(work: Work, run: SweepRun) -> dict[str, Any]:
    """Return the result of a trained run: its size, its training, and the code length of the held-out text."""
    budget, size = work.budget, work.budget.size(run.vocabulary.size)
    folder = Run(work.run(run))
    trained, tok = load_trained(folder, budget.recipe.train.device), folder.tokenizer()
    length = window_of(folder.recipe)
    stream = stream_of(work.held_out, tok, length)
    nats = code_length(trained.model, stream, objective_of(folder, length, tok))
    held_out_bytes = sum(map(len, work.held_out))
    train_split = TokenDataset(work.vocabulary(run)).info["splits"]["train"]
    tokens = budget.tokens(run.vocabulary.size)
    return {
        "kind": run.vocabulary.kind,
        "size": run.vocabulary.size,
        "seed": run.seed,
        "bits_per_byte": nats / NATS_PER_BIT / held_out_bytes,
        "nats": nats,
        "held_out_bytes": held_out_bytes,
        "held_out_tokens": stream.tokens - 1,
        "held_out_sha256": fingerprint(work.held_out),
        "bytes_per_token": held_out_bytes / (stream.tokens - 1),
        "tokens": tokens,
        "steps": tokens // budget.step_tokens,
        "epochs": tokens / train_split["tokens"],
        "bytes_seen": tokens * train_split["bytes"] / train_split["encoded_tokens"],
        "flops": tokens * size.flops_per_token,
        "parameters": size.parameters,
        "embedding_parameters": size.embedding,
        **provenance(trained.machine.device),
    }


@torch.no_grad()
def code_length(model: LanguageModel, stream: TokenStream, objective: Objective) -> float:
    """Return the nats of all tokens of a stream but the first, in windows without overlap.

    The first token is the separator before the first document, so all text is predicted.
    """
    window = model.config.context_length
    device = next(model.parameters()).device
    windows, _ = windows_over(stream, objective, WindowSettings(window, stride=window, min_context=1))
    return math.fsum(float(summed_loss(model, model, window.batch, device=device)) for window in windows)


class _Trainer:
    """A process that trains runs. It sends None when it is ready for a run, or the text of an error."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process would share torch's threads
        self.pipe, theirs = context.Pipe()
        self.run: SweepRun | None = None
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        with process.handle(signal.SIGINT, signal.SIG_IGN):  # inherited until the process sets its own handler
            self.process.start()
        theirs.close()  # so that the end of the process ends the pipe

    def start(self, run: SweepRun) -> None:
        self.run = run
        self.pipe.send(run)

    def answered(self) -> SweepRun | None:
        """Return the finished run, None before the first.

        Raises ValueError if it failed, ChildProcessError if the process died.
        """
        try:
            error = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise ChildProcessError(
                f"a process of the sweep ended with status {self.process.exitcode}, perhaps out of memory: run "
                "the same command again, with fewer `workers`"
            ) from None
        run, self.run = self.run, None
        if error is not None:
            raise ValueError(f"{run.name if run else 'sweep'}: {error}")
        return run

    def stop(self) -> None:
        """Ask the process to end; if it is training, after it has saved a checkpoint."""
        self.pipe.close()
        if self.process.is_alive():
            os.kill(self.process.pid or 0, signal.SIGINT if self.run else signal.SIGTERM)


def train_all(work: Work, runs: Sequence[SweepRun], workers: int, done: Callable[[SweepRun], None]) -> None:
    """Train `runs`, `workers` at a time in this order; call `done` after each.

    After Ctrl-C, SIGTERM or an error, the runs in training save a checkpoint first.
    """
    waiting = list(reversed(runs))
    trainers: list[_Trainer] = []
    with process.handle(signal.SIGTERM, process.interrupt):
        try:
            for _ in range(min(workers, len(runs))):
                trainers.append(_Trainer(work))
            open_pipes: dict[Any, _Trainer] = {trainer.pipe: trainer for trainer in trainers}
            while open_pipes:
                for pipe in wait(list(open_pipes)):
                    trainer = open_pipes[pipe]
                    if run := trainer.answered():
                        done(run)
                    if waiting:
                        trainer.start(waiting.pop())
                    else:
                        del open_pipes[pipe]
        finally:
            for started in trainers:
                started.stop()
            for started in trainers:
                started.process.join()


def _serve(pipe: Connection, work: Work) -> None:
    """Train the runs that arrive, until the pipe is closed, a signal arrives or the sweep is killed."""
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
                if not finish(work, run):
                    return
            except Exception as error:
                pipe.send(str(error) or type(error).__name__)
                return
            pipe.send(None)

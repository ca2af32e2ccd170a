"""Compare sequence mixers: speed and memory, associative recall, and quality on the same text.

    python -m benchmarks.mixers [--parts speed recall quality] [--minutes 20] [--threads 1]
    python -m benchmarks.mixers --device cuda --processes 12 --minutes 8 --recall-tokens 1000000 --recall-seeds 2

All models have the parameters of the model with attention, to 1 %: the width of the MLP makes up for the mixer's. The
benchmark ends after `--minutes` with what it has. Each part replaces the same part of an earlier run on this kind of
device in `benchmarks/results/mixers.json` and `mixers.md`, except that runs of different mixers or seeds with the same
options add up. So the same command continues, also on another machine: it repeats no training that has ended. Speeds
add up on one machine only. Processes take one training after the other, all mixers with seed 0 first.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import tyro

from benchmarks.harness import RESULTS, Worker, command_line, device_name, record, say
from benchmarks.mixer_page import page
from benchmarks.mixer_speed import speeds
from benchmarks.mixer_training import NAMES, RECALL_TOKENS, Job
from corpora import open_corpus
from lm.config import MixerKind

HYBRIDS = ("mamba2 + attention", "gated-linear + attention")
MIXERS = (*get_args(MixerKind), *HYBRIDS)
TEXT_BYTES = 50_000_000  # of each split, at most
SHARES = {"speed": 0.25, "recall": 0.4, "quality": 1.0}  # of the time that is left
RUN_OPTIONS = ("mixers", "minutes", "parts", "out", "seeds", "recall_seeds")  # do not change a row
Part = Literal["speed", "recall", "quality"]
Result = dict[str, Any]
"""The recorded result of a part, or one of its rows."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare sequence mixers."""

    parts: tuple[Part, ...] = ("speed", "recall", "quality")
    mixers: tuple[str, ...] = MIXERS
    """Mixers, or patterns by layer such as "mamba2 + attention"."""
    device: Literal["cpu", "cuda"] = "cpu"
    minutes: float = 600.0
    """Minutes after which the benchmark ends with what it has."""
    processes: int = 1
    """Trainings at once. Small models leave most of a GPU idle."""
    threads: int = 1
    """Threads of each process."""
    lengths: tuple[int, ...] = (256, 1024, 4096)
    """Lengths at which speed is measured."""
    rounds: int = 3
    """Turns of each mixer at each length."""
    text: str = "stdlib"
    """Corpus whose bytes the models predict."""
    tokens: int = 3_000_000
    """Training tokens (bytes) for quality."""
    seeds: int = 3
    batch_tokens: int = 4096
    lr: float = 2e-3
    test_tokens: int = 131_072
    """Held-out tokens for quality; recall takes a quarter of them for each number of pairs."""
    recall_tokens: int = 400_000
    """Training tokens for recall."""
    recall_seeds: int = 1
    recall_lr: float = 5e-3
    out: Path = RESULTS


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    ends = time.monotonic() + 60 * options.minutes
    stored = options.out / "mixers.json"
    for part in options.parts:
        now = time.monotonic()
        deadline = ends if part == options.parts[-1] else now + SHARES[part] * (ends - now)
        new: Result = {
            "command": command_line("benchmarks.mixers", sys.argv[1:]),
            "machine": device_name(options.device),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "options": asdict(options) | {"out": ""},
        }
        key = f"{part} {options.device}"
        results = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
        earlier = results[key] if key in results and setting(results[key], part) == setting(new, part) else None
        ended = [row["job"] for row in earlier["rows"] if "error" not in row] if earlier and part != "speed" else []
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(part, options, Path(folder), deadline, ended)
        new |= {"seconds": time.monotonic() - now, "rows": [row | {"machine": new["machine"]} for row in rows]}
        results[key] = joined(earlier, new) if earlier else new
        record(options.out, "mixers", results, page(results))
    say(options.out / "mixers.md")


def setting(result: Result, part: Part) -> Result:
    """Return what two results must share to add up."""
    options = {name: value for name, value in result["options"].items() if name not in RUN_OPTIONS}
    machine = result["machine"] if part == "speed" else ""
    return json.loads(json.dumps({**options, "machine": machine, "torch": result["torch"]}))


def joined(earlier: Result, new: Result) -> Result:
    """Return a part's result with the rows of an earlier run that were not measured again."""

    def identity(row: Result) -> tuple[Any, ...]:
        return (row["mixer"], row["length"]) if "mixer" in row else (row["job"]["mixers"], row["job"]["seed"])

    rows = {identity(row): row for row in (*earlier["rows"], *new["rows"])}
    commands = earlier["command"].split("; ")
    command = "; ".join(dict.fromkeys((*commands, new["command"])))
    return {**new, "command": command, "seconds": earlier["seconds"] + new["seconds"], "rows": [*rows.values()]}


def measure(part: Part, options: Options, folder: Path, deadline: float, ended: Sequence[dict]) -> list[Result]:
    """Return the rows of a part: `speeds`, or a row for each training that is not in `ended`."""
    if part == "speed":
        return speeds(options.device, options.mixers, options.lengths, options.rounds, deadline)
    shared = {"device": options.device, "threads": options.threads}
    if part == "recall":
        sizes = {"tokens": options.recall_tokens, "lr": options.recall_lr, "batch_tokens": RECALL_TOKENS}
        sizes |= {"test_tokens": options.test_tokens // 4}
    else:
        write_splits(options.text, folder)
        sizes = {"tokens": options.tokens, "lr": options.lr, "batch_tokens": options.batch_tokens}
        sizes |= {"test_tokens": options.test_tokens, "text": str(folder)}
    seeds = options.recall_seeds if part == "recall" else options.seeds
    jobs = [Job(mixers=mixers, seed=seed, **sizes, **shared) for seed in range(seeds) for mixers in options.mixers]
    missing = [job for job in jobs if asdict(replace(job, text="")) not in ended]
    return trainings(missing, options.processes, deadline)


def write_splits(text: str, folder: Path) -> None:
    """Write the bytes of the splits of a corpus, with a line end after each document."""
    corpus = open_corpus(text)
    for name in NAMES:
        documents = (document for batch in corpus.batches(name) for document in batch.column(0).to_pylist())
        joined = b"".join((each.encode() if isinstance(each, str) else each) + b"\n" for each in documents)
        (folder / name).write_bytes(joined[:TEXT_BYTES])


def trainings(jobs: Sequence[Job], processes: int, deadline: float) -> list[dict]:
    """Return a row for each job that began before `deadline`, in the order of the jobs.

    A job that did not end has an `error` beside its learning curve.
    """
    queue, rows = iter(enumerate(jobs)), {}
    lock = threading.Lock()

    def take() -> tuple[int, Job] | None:
        with lock:
            return next(queue, None) if time.monotonic() < deadline else None

    def work() -> None:
        while (taken := take()) is not None:
            with Worker("benchmarks.mixer_training", {}) as worker:
                ready = worker.answer(left(deadline))
                while taken is not None:
                    number, job = taken
                    found = {"curve": [], **ready} if "error" in ready else finished(worker, job, deadline)
                    rows[number] = {"job": asdict(replace(job, text="")), **found}
                    say(
                        f"{job.mixers}, seed {job.seed}: {found.get('bits') or found.get('accuracy') or found['error']}"
                    )
                    if "error" in rows[number]:
                        break
                    taken = take()

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [rows[number] for number in sorted(rows)]


def left(deadline: float) -> float:
    """Return the seconds until the deadline, at least a tenth: 0 would mean no limit."""
    return max(0.1, deadline - time.monotonic())


def finished(worker: Worker, job: Job, deadline: float) -> dict:
    """Let a worker do a job. Return its learning curve with its results, or with an `error`."""
    curve: list[dict] = []
    answer = worker.ask(json.dumps(asdict(job)), left(deadline))
    while "point" in answer:
        curve.append(answer["point"])
        answer = worker.answer(left(deadline))
    return {"curve": curve, **answer}


if __name__ == "__main__":
    main(tyro.cli(Options, prog="python -m benchmarks.mixers", description=__doc__))

"""Compare sequence mixers: speed and memory, associative recall, and quality on the same text.

    python -m benchmarks.mixers [--parts speed recall quality long] [--minutes 20] [--threads 1]
    python -m benchmarks.mixers --device cuda --processes 12 --minutes 8 --recall-tokens 1000000 --recall-seeds 2

All models have the parameters of the model with attention, to 1 %: the width of the MLP makes up for the mixer's. The
part `long` is `quality` with more tokens, for a few mixers and one seed. The benchmark ends after `--minutes` with what
it has. Each part replaces the same part of an earlier run on this kind of device in `benchmarks/results/mixers.json`
and `mixers.md`, except that rows of different mixers, seeds or lengths with the same options add up. So the same
command continues, also on another machine: it repeats no training that has ended. Speeds add up on one machine only,
and results on the standard library with one version of Python only. Processes take one training after the other, all
mixers with seed 0 first. `mixers-cpu.png` and `mixers-cuda.png` have the learning curves of `quality` and `long` on a
device.
"""

import json
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import tyro

from benchmarks.harness import RESULTS, Worker, command_line, device_name, record, say
from benchmarks.mixer_page import page
from benchmarks.mixer_picture import PARTS, draw
from benchmarks.mixer_speed import speeds
from benchmarks.mixer_training import NAMES, RECALL_TOKENS, Job
from corpora import open_corpus
from lm.config import MixerKind

HYBRIDS = ("mamba2 + attention", "gated-linear + attention")
MIXERS = (*get_args(MixerKind), *HYBRIDS)
TEXT_BYTES = 50_000_000  # of each split, at most
Part = Literal["speed", "recall", "quality", "long"]
SHARES: dict[Part, float] = {"speed": 0.25, "recall": 0.4, "quality": 0.7, "long": 1.0}  # of the time that is left
TRAINING = ("text", "lr", "batch_tokens", "test_tokens")
SETTINGS: dict[Part, tuple[str, ...]] = {  # options that change a part's rows, beside device, processes and threads
    "speed": ("rounds",),
    "recall": ("recall_tokens", "recall_lr", "test_tokens"),
    "quality": ("tokens", *TRAINING),
    "long": ("long_tokens", *TRAINING),
}
Result = dict[str, Any]
"""The recorded result of a part, or one of its rows."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare sequence mixers."""

    parts: tuple[Part, ...] = get_args(Part)
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
    long_tokens: int = 10_000_000
    """Training tokens (bytes) of the long runs."""
    long_mixers: tuple[str, ...] = ("attention", "mamba2", "mamba2 + attention")
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
    for part in options.parts:
        now = time.monotonic()
        run_part(part, options, ends if part == options.parts[-1] else now + SHARES[part] * (ends - now))
    say(options.out / "mixers.md")


def run_part(part: Part, options: Options, deadline: float) -> None:
    """Measure a part, and record the rows so far after each training."""
    began = time.monotonic()
    stored, key = options.out / "mixers.json", f"{part} {options.device}"
    new: Result = {
        "command": command_line("benchmarks.mixers", sys.argv[1:]),
        "machine": device_name(options.device),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "options": asdict(options) | {"out": ""},
    }
    results = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    earlier = results[key] if key in results and setting(results[key], part) == setting(new, part) else None
    ended = [row["job"] for row in earlier["rows"] if "error" not in row] if earlier and part != "speed" else []
    with tempfile.TemporaryDirectory() as folder:
        for rows in measure(part, options, Path(folder), deadline, ended):
            new["seconds"] = time.monotonic() - began
            new["rows"] = [row | {"machine": new["machine"]} for row in rows]
            results[key] = joined(earlier, new) if earlier else new
            record(options.out, "mixers", results, page(results))
            if part in PARTS:
                draw(results, options.device, options.out / f"mixers-{options.device}.png")


def setting(result: Result, part: Part) -> Result:
    """Return what two results must share to add up."""
    options = {name: result["options"][name] for name in ("device", "processes", "threads", *SETTINGS[part])}
    machine = result["machine"] if part == "speed" else ""
    python = result["python"] if options.get("text") == "stdlib" else ""  # whose library is the text
    return json.loads(json.dumps({**options, "machine": machine, "torch": result["torch"], "python": python}))


def joined(earlier: Result, new: Result) -> Result:
    """Return a part's result with the rows of an earlier run that were not measured again."""

    def identity(row: Result) -> tuple[Any, ...]:
        return (row["mixer"], row["length"]) if "mixer" in row else (row["job"]["mixers"], row["job"]["seed"])

    rows = {identity(row): row for row in (*earlier["rows"], *new["rows"])}
    commands = earlier["command"].split("; ")
    command = "; ".join(dict.fromkeys((*commands, new["command"])))
    return {**new, "command": command, "seconds": earlier["seconds"] + new["seconds"], "rows": [*rows.values()]}


def measure(
    part: Part, options: Options, folder: Path, deadline: float, ended: Sequence[dict]
) -> Iterator[list[Result]]:
    """Yield the rows so far of a part: `speeds` at once, or one row more after each training that is not in `ended`."""
    if part == "speed":
        yield speeds(options.device, options.mixers, options.lengths, options.rounds, deadline)
        return
    shared = {"device": options.device, "threads": options.threads}
    if part == "recall":
        sizes = {"tokens": options.recall_tokens, "lr": options.recall_lr, "batch_tokens": RECALL_TOKENS}
        sizes |= {"test_tokens": options.test_tokens // 4}
        seeds, kinds = options.recall_seeds, options.mixers
    else:
        write_splits(options.text, folder)
        sizes = {"lr": options.lr, "batch_tokens": options.batch_tokens, "test_tokens": options.test_tokens}
        sizes |= {"tokens": options.tokens, "text": str(folder)}
        seeds, kinds = options.seeds, options.mixers
        if part == "long":
            sizes["tokens"], seeds, kinds = options.long_tokens, 1, options.long_mixers
    jobs = [Job(mixers=mixers, seed=seed, **sizes, **shared) for seed in range(seeds) for mixers in kinds]
    missing = [job for job in jobs if asdict(replace(job, text="")) not in ended]
    yield from trainings(missing, options.processes, deadline)


def write_splits(text: str, folder: Path) -> None:
    """Write the bytes of the splits of a corpus, with a line end after each document."""
    corpus = open_corpus(text)
    for name in NAMES:
        documents = (document for batch in corpus.batches(name) for document in batch.column(0).to_pylist())
        joined = b"".join((each.encode() if isinstance(each, str) else each) + b"\n" for each in documents)
        (folder / name).write_bytes(joined[:TEXT_BYTES])


def trainings(jobs: Sequence[Job], processes: int, deadline: float) -> Iterator[list[dict]]:
    """Run each job that can begin before `deadline`. Yield the rows so far after each, in the order of the jobs.

    A job that did not end has an `error` beside its learning curve.
    """
    waiting, rows = iter(enumerate(jobs)), {}
    lock = threading.Lock()
    done: queue.SimpleQueue[tuple[int, dict] | None] = queue.SimpleQueue()

    def take() -> tuple[int, Job] | None:
        with lock:
            return next(waiting, None) if time.monotonic() < deadline else None

    def work() -> None:
        while (taken := take()) is not None:
            with Worker("benchmarks.mixer_training", {}) as worker:
                ready = worker.answer(left(deadline))
                while taken is not None:
                    number, job = taken
                    found = {"curve": [], **ready} if "error" in ready else finished(worker, job, deadline)
                    done.put((number, {"job": asdict(replace(job, text="")), **found}))
                    if "error" in found:
                        break
                    taken = take()
        done.put(None)

    for _ in range(processes):
        threading.Thread(target=work, daemon=True).start()
    while processes:
        if (ended := done.get()) is None:
            processes -= 1
            continue
        number, row = ended
        rows[number] = row
        job, answer = jobs[number], row.get("bits") or row.get("accuracy") or row["error"]
        say(f"{job.mixers}, seed {job.seed}: {answer}")
        yield [rows[each] for each in sorted(rows)]


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

"""train-tokenizer and build-dataset on a local Ray cluster beside the same commands on one machine.

    python -m benchmarks.cluster [--gigabytes 1] [--rounds 1] [--out benchmarks/results/cluster.md]

The corpus is generated, in JSONL files. Every command runs with 1 and 2 workers (without Ray: threads), and all outputs
must be equal. Start-up is the time of the same command on a small corpus. It is subtracted for the time after start-up
and the MB/s. Memory is the peak of the command's own process, which adds up all counts.

The overhead of a range has two parts: the time of a task that does nothing, and the extra CPU time of counting ranges,
writing their files and adding them up, compared with counting the corpus in one pass.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.big_corpus import Generator
from benchmarks.harness import RESULTS, command_line, device_name, heading, run_command, table, turns
from corpora import open_corpus
from pipelines.cluster.counting_tasks import (
    COUNTS,
    WORKER_MEMORY,
    CountTask,
    compile_counting,
    count_range,
    range_bytes,
)
from pipelines.cluster.tasks import cluster, collect
from pipelines.dataset.outputs import output_prefix
from tokenizer import PretokenCounts, count_pretokens

FILE_BYTES = 100_000_000
SMALL_BYTES = 3_000_000
TASKS = 1000
PATTERN = "cl100k"
BYTELM = Path(sys.executable).with_name("bytelm")
VERBS = {
    "train-tokenizer": ("--vocab-size", 32_000, "--json"),
    "build-dataset": ("--context-length", 1024, "--shard-size", "50M"),
}


def write_corpus(folder: Path, size: float) -> int:
    """Write about `size` bytes of text in JSONL files, and return the exact number."""
    folder.mkdir()
    written = done = 0
    for batch in Generator(seed=0).batches(size):
        with (folder / f"{done // FILE_BYTES:04}.jsonl").open("a", encoding="utf-8") as file:
            for text in batch.to_pylist():
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                written += len(text.encode())
                if written >= size:
                    return written
        done += batch.buffers()[2].size
    return written


def run(verb: str, corpus: Path, tokenizer: Path, out: Path, engine: str, workers: int) -> dict:
    """Run a command, check that it succeeds, and return its time, memory and a digest of its output."""
    words = [BYTELM, verb, corpus, "--out", out, "--engine", engine, "--threads", workers, *VERBS[verb]]
    if verb == "build-dataset":
        words += ["--tokenizer", tokenizer]
    result = run_command(words)
    if result["error"]:
        raise RuntimeError(f"{verb} {result['error']}")
    paths = sorted(path for path in out.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)).hexdigest()
    shutil.rmtree(out)
    return {"seconds": result["seconds"], "peak": result["peak"], "digest": digest}


def measure(folder: Path, size: float, rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each command and engine."""
    written = write_corpus(folder / "corpus", size)
    write_corpus(folder / "small", SMALL_BYTES)
    tokenizer = folder / "tok"
    words = [BYTELM, "train-tokenizer", folder / "small", "--vocab-size", 8000, "--out", tokenizer]
    run_command(words)
    ways = [(engine, workers) for engine in ("local", "ray") for workers in (1, 2)]
    for verb in VERBS:
        times: dict[tuple[str, int], list[dict]] = {way: [] for way in ways}
        starts = {}
        for engine in ("local", "ray"):
            starts[engine] = run(verb, folder / "small", tokenizer, folder / "out", engine, 1)["seconds"]
        for _, way in turns(ways, rounds):
            times[way].append(run(verb, folder / "corpus", tokenizer, folder / "out", *way))
        assert len({each["digest"] for found in times.values() for each in found}) == 1, f"{verb}: outputs differ"
        best = {way: min(each["seconds"] for each in found) - starts[way[0]] for way, found in times.items()}
        for way, found in times.items():
            yield (
                verb,
                *map(str, way),
                f"{starts[way[0]]:.1f}",
                f"{best[way]:.1f}",
                f"{written / 1e6 / best[way]:.1f}",
                f"{max(each['peak'] for each in found) / 1e6:,.0f}",
            )


def overhead(folder: Path) -> str:
    """Return a sentence about the overhead of a range of the corpus in `folder`."""
    corpus = open_corpus(str(folder / "corpus"))
    ranges = corpus.ranges(range_bytes(corpus.text_bytes_estimate))
    compile_counting(PATTERN)
    started = time.process_time()
    count_pretokens(corpus.batches("train"), PATTERN, threads=1)
    whole = time.process_time() - started
    (folder / "ranges").mkdir()
    started = time.process_time()
    outputs = [
        count_range(CountTask(each, PATTERN, (), WORKER_MEMORY, output_prefix(folder / "ranges", number)))
        for number, each in enumerate(ranges)
    ]
    PretokenCounts.merge([output.file(COUNTS) for output in outputs])
    parts = time.process_time() - started
    with cluster(None, 1):
        collect(abs, range(100))
        started = time.perf_counter()
        collect(abs, range(TASKS))
        task = (time.perf_counter() - started) / TASKS
    more = (parts - whole) / len(ranges)
    return (
        f"A task that does nothing takes {task * 1e3:.1f} ms. Counting {len(ranges)} ranges and adding them up takes "
        f"{parts:.1f} CPU seconds, and one pass takes {whole:.1f}: {more * 1e3:.0f} ms more per range."
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "cluster.md")
    options = parser.parse_args()
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for row in measure(Path(folder), options.gigabytes * 1e9, options.rounds):
            print(*row, sep=" | ", flush=True)
            rows.append(row)
        overhead_line = overhead(Path(folder))
    command = command_line("benchmarks.cluster", sys.argv[1:])
    machine = f"{device_name('cpu')}, Python {sys.version.split()[0]}. Load at the start and end: {load}, "
    machine += f"{os.getloadavg()[0]:.1f}. All outputs were equal."
    heads = ("command", "engine", "workers", "start-up, s", "after start-up, s", "MB/s", "memory, MB")
    options.out.write_text(
        "\n".join([*heading("A local Ray cluster", command, machine), *table(heads, rows), "", overhead_line, ""])
    )


if __name__ == "__main__":
    main()

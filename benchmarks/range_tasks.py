"""Measure the speed of a cluster's tasks on one core. docs/data_scale.py uses the results.

    python -m benchmarks.range_tasks NAME=FILE...

Each file is one corpus, such as English=enwiki.jsonl. It is counted and encoded in eight ranges in this process, as
`train-tokenizer` and `build-dataset` do with `--engine ray`. Speeds are per CPU second. The exponent is the growth of
distinct pretokens from the ranges to the whole corpus: log(whole / mean of the ranges) / log(8). It is too large if the
documents are not in random order.
"""

import argparse
import itertools
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, command_line, heading, machine, record, table
from corpora import open_corpus
from pipelines.cluster.counting_tasks import COUNTS, WORKER_MEMORY, CountTask, compile_counting, count_range
from pipelines.dataset.arrow import id_dtype
from pipelines.dataset.encoded_range import encode_range
from pipelines.dataset.outputs import output_prefix
from pipelines.dataset.shards import shard_tasks, write_shard
from tokenizer import PretokenCounts, Tokenizer

PATTERN = "cl100k"
ENTRIES = 32_000
RANGES = 8
CONTEXT = 1024


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `function`, and its CPU seconds."""
    started = time.process_time()
    return function(), time.process_time() - started


def measure(path: Path, folder: Path) -> dict[str, float]:
    """Return what the tasks on the corpus in a file take. Their outputs go to `folder`."""
    corpus = open_corpus(str(path))
    ranges = corpus.ranges(math.ceil(path.stat().st_size / RANGES))
    counting = [
        CountTask(each, PATTERN, (), WORKER_MEMORY, output_prefix(folder, number)) for number, each in enumerate(ranges)
    ]
    outputs, count_seconds = timed(lambda: [count_range(task) for task in counting])
    size = sum(output.facts["bytes"] for output in outputs)
    files = [output.file(COUNTS) for output in outputs]
    counts, add_seconds = timed(lambda: PretokenCounts.merge(files))
    rows = [len(PretokenCounts.load(file)) for file in files]
    tok = Tokenizer.train_from_counts(counts, ENTRIES)
    tok.warm_up(threads=1)
    (folder / "ids").mkdir()
    prefixes = [output_prefix(folder / "ids", number) for number in range(len(ranges))]
    encoded, encode_seconds = timed(
        lambda: [encode_range(each, tok, prefix, threads=1) for each, prefix in zip(ranges, prefixes, strict=True)]
    )
    splits = [each.splits["train"] for each in encoded]
    tokens = sum(split.tokens for split in splits)
    dtype = np.dtype(id_dtype(tok.vocab_size))
    numbers = itertools.count(len(ranges))
    writing = shard_tasks(
        splits, CONTEXT, dtype, tokens * dtype.itemsize, (output_prefix(folder / "ids", number) for number in numbers)
    )
    written, write_seconds = timed(lambda: [write_shard(task) for task in writing])
    return {
        "bytes": size,
        "ranges": len(ranges),
        "distinct": len(counts),
        "exponent": round(math.log(len(counts) / (sum(rows) / len(rows))) / math.log(len(ranges)), 3),
        "count_speed": round(sum(each.bytes for each in encoded) / count_seconds),
        "count_file_bytes": round(sum(file.stat().st_size for file in files) / sum(rows), 2),
        "add_rows_per_s": round(sum(rows) / add_seconds),
        "encode_speed": round(sum(each.bytes for each in encoded) / encode_seconds),
        "write_speed": round(sum(each.bytes for each in written) / write_seconds),
        "bytes_per_token": round(sum(split.bytes for split in splits) / tokens, 3),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    compile_counting(PATTERN)
    found = {}
    for word in options.corpora:
        name, _, path = word.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(path), Path(folder))  # compiles what is left, and fills the system's cache of files
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure(Path(path), Path(folder))
    fields = list(next(iter(found.values())))
    rows = [(field, *(f"{numbers[field]:,}" for numbers in found.values())) for field in fields]
    command = command_line("benchmarks.range_tasks", [f"{name}=FILE" for name in found])
    lines = table(("", *found), rows)
    page = [*heading("The tasks of a cluster, on one core", command, f"{machine()['processor']}."), *lines, ""]
    record(options.out, "range_tasks", {"corpora": found, "machine": machine()}, "\n".join(page))
    print("\n".join(lines))


if __name__ == "__main__":
    main()

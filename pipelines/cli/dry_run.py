"""What a dry run prints: the planned work, its size and its output path."""

import os
from pathlib import Path

from pipelines.cli.display import answer, count_text, duration, quantity
from pipelines.cli.errors import UsageError

START_SECONDS = 20  # of a Ray cluster, and to compile the kernels
LOADING_SECONDS = 3
# Speeds of one core, for estimates.
COUNTED_PER_SECOND, ENCODED_PER_SECOND = 30_000_000, 10_000_000


def check_dry_run(dry_run: bool, as_json: bool) -> None:
    """Raise UsageError for `dry_run` with `as_json`."""
    if dry_run and as_json:
        raise UsageError("`as_json` prints the summary, but `dry_run` makes none: leave one of them out")


def plan_dataset(
    tokenizer: Path,
    entries: int,
    text_bytes: int | None,
    context_length: int,
    split: str,
    out: str | Path,
    shard_size: int | None,
    threads: int | None,
) -> None:
    """Print the plan of encoding `text_bytes` of text; a context length of 0 means pairs."""
    per_token = 2 if entries <= 1 << 16 else 4
    shape = f"blocks of {context_length:,} tokens" if context_length else "pairs"
    answer(
        f"would encode {_size(text_bytes)} with the {entries:,} entries of {tokenizer} into {shape}, split by {split}"
    )
    most = "" if text_bytes is None else f", at most {quantity(text_bytes * per_token, 'B')}"
    files = f", in files of {quantity(shard_size, 'B')}" if shard_size else ""
    answer(f"would write the folder {out}: {per_token} bytes per token{most}{files}")
    _answer_time(text_bytes, ENCODED_PER_SECOND, threads)


def plan_tokenizer(
    vocab_size: int,
    text_bytes: int | None,
    split: str | None,
    pattern: str,
    out: Path,
    save_counts: Path | None,
    threads: int | None,
) -> None:
    """Print the plan of training a vocabulary on `text_bytes` of text."""
    text = _size(text_bytes) + (f", the training split ({split})" if split else ", saved counts")
    answer(f"would train a vocabulary of {vocab_size:,} entries with the pattern {pattern} on {text}")
    answer(f"would write {out / 'tokenizer.json'}" + (f" and {save_counts}" if save_counts else ""))
    _answer_time(text_bytes, COUNTED_PER_SECOND, threads)


def _answer_time(text_bytes: int | None, bytes_per_second: int, threads: int | None) -> None:
    """Print about how long `threads` cores of this machine, by default all, take at `bytes_per_second` each."""
    if text_bytes is not None:
        cores = min(os.cpu_count() or 1, threads or os.cpu_count() or 1)
        seconds = text_bytes / bytes_per_second / cores + LOADING_SECONDS
        speed = f"{quantity(bytes_per_second, 'B')}/s on each of {count_text(cores, 'core')}"
        answer(f"would take about {duration(seconds)}, at {speed}")


def plan_tasks(
    tasks: str,
    text_bytes: int | None,
    *,
    bytes_per_second: int,
    memory: int,
    work: Path,
    work_bytes: float | None,
    workers: int | None,
) -> None:
    """Print the plan of `tasks`, such as "64 tasks to count", on Ray.

    bytes_per_second: speed of a worker. memory: bytes that a worker needs. work_bytes: size of the folder `work`.
    workers: None if only the cluster knows their number.
    """
    answer(f"would run {tasks} on Ray, each with {quantity(memory, 'B')} of memory beside Python and its libraries")
    if text_bytes is None or work_bytes is None:
        return
    answer(f"would need at most about {quantity(work_bytes, 'B')} of disk for {work} until the end")
    speed = f"{quantity(bytes_per_second, 'B')}/s"
    if workers is None:
        hours = f"{text_bytes / bytes_per_second / 3600:.2g} worker-hours at {speed}, shared by the cluster's workers"
        answer(f"would take about {hours}, and {START_SECONDS} s to join and compile")
    else:
        seconds = text_bytes / bytes_per_second / workers + START_SECONDS
        start = f"{START_SECONDS} s of them to start and compile"
        answer(f"would take about {duration(seconds)} with {count_text(workers, 'worker')} at {speed} each, {start}")


def _size(text_bytes: int | None) -> str:
    return "text of unknown size" if text_bytes is None else f"about {quantity(text_bytes, 'B')} of text"

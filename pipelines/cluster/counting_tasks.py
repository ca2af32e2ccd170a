"""Count the pretokens of a corpus on a cluster: one task per range, then a tree of sums."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipelines.cli.display import count_text
from pipelines.cli.dry_run import COUNTED_PER_SECOND, plan_tasks
from pipelines.cluster.tasks import cluster, collect, prepare_nodes
from pipelines.dataset.outputs import NewFile, Output, key_of, output_prefix, remove_outputs, whole_output
from pipelines.files import locked_file, with_a_name

if TYPE_CHECKING:
    import pyarrow as pa

    from corpora import Corpus
    from corpora.ranges import InputRange
    from pipelines.reporting.tokenizer_summary import HeldOut
    from tokenizer import PretokenCounts

# Bytes of input in a task: enough tasks to occupy all workers to the end, few enough for the driver. The size depends
# on the corpus alone, so the same command finds its outputs whatever the number of workers.
LEAST_RANGE = 1_000_000
MOST_RANGE = 256_000_000
FEW_RANGES, MANY_RANGES = 64, 20_000
WORKER_MEMORY = 1_000_000_000  # bytes for the counts in a worker; more are spilled
COUNTS_SHARE = 0.2  # bytes of a range's counts per byte of text in many languages; in English 0.02 to 0.1
FAN_IN = 32  # counts that one task adds up
COUNTS = "parquet"  # name of an output's only file


class Progress(Protocol):
    """Called with the phase (start, count, combine), the bytes or tasks done so far, and their total if it is known."""

    def __call__(self, phase: str, done: int, total: int | None, note: str = "") -> None: ...


def range_bytes(total: int | None) -> int:
    """Return the bytes per range for a corpus of about `total` bytes; `total` is None if unknown."""
    if total is None:
        return MOST_RANGE
    return max(LEAST_RANGE, min(total // FEW_RANGES, MOST_RANGE), total // MANY_RANGES)


def count_on_ray(
    corpus: "Corpus",
    pattern: str,
    where: tuple[str | None, int | None],
    cut_at: tuple[str, ...],
    memory: int | None,
    spill_folder: Path,
    out: Path,
    held_out: "HeldOut",
    progress: Progress,
) -> "PretokenCounts":
    """Return the pretoken counts of the training split of `corpus`, and fill `held_out` from its validation split.

    where: the address of a cluster, or None and the number of workers to start on this machine. The counts of ranges
    stay beside `out`, and the same call resumes from them after an error; `remove_range_counts` removes them. Other
    arguments are as in `count_pretokens`.
    """
    from corpora import Dropped
    from tokenizer import PretokenCounts

    folder = counts_folder(out).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    progress("start", 0, None)
    with locked_file(folder / "lock", f"{folder} is in use by another command: wait, or choose another `out`"):
        with cluster(*where):
            counts = count_corpus(corpus, pattern, cut_at=cut_at, memory=memory, folder=folder, progress=progress)
        passes = (part.routed_batches(Dropped()) for part in counts.held_out)
        held_out.take(batch for routed in passes for split, batch in routed if split == "validation")
        return PretokenCounts.merge(counts.paths, memory, spill_folder, progress)


def plan_counting(
    engine: str, corpus: object, where: tuple[str | None, int | None], memory: int | None, out: Path
) -> None:
    """Print what `count_on_ray` would do, if `engine` is ray."""
    from corpora import Corpus
    from tokenizer.workers import thread_count

    if engine != "ray" or not isinstance(corpus, Corpus):
        return
    total = corpus.text_bytes_estimate
    address, workers = where
    plan_tasks(
        f"{count_text(len(corpus.ranges(range_bytes(total))), 'task')} to count",
        total,
        bytes_per_second=COUNTED_PER_SECOND,
        memory=memory or WORKER_MEMORY,
        work=counts_folder(out),
        work_bytes=total and total * COUNTS_SHARE,
        workers=None if address else thread_count(workers),
    )


def remove_range_counts(out: Path) -> None:
    """Remove the counts of ranges that `count_on_ray` left beside `out`, if any."""
    remove_outputs(counts_folder(out))


def counts_folder(out: Path) -> Path:
    """Return the folder for the counts of ranges."""
    out = with_a_name(out)
    return out.with_name(out.name + ".range-counts")


@dataclass(frozen=True)
class CountTask:
    """A range of a corpus to count, and how."""

    input: "InputRange"
    pattern: str
    cut_at: tuple[str, ...]
    memory: int
    prefix: Path
    """prefix of its output files"""


@dataclass(frozen=True)
class SumTask:
    """Counts to add up."""

    counts: tuple[Output, ...]
    memory: int
    prefix: Path
    """prefix of its output files"""


def count_range(task: CountTask) -> Output:
    """Return the counts of the training split in a range, as Parquet, with the facts of `_training_split`."""
    from tokenizer import count_pretokens
    from tokenizer.kinds.registry import resolve_splitter

    def make(new: NewFile) -> dict[str, Any]:
        facts: dict[str, Any] = {"bytes": 0, "held_out_bytes": 0}
        counts = count_pretokens(
            _training_split(task.input, facts),
            task.pattern,
            threads=1,
            memory=task.memory,
            spill_folder=task.prefix.parent,
            cut_at=task.cut_at,
        )
        counts.save(new(COUNTS))
        return facts

    spelling = resolve_splitter(task.pattern).spelling
    return whole_output(task.prefix, key_of("count", task.input.fingerprint, spelling, task.cut_at), make)


def _training_split(documents: "InputRange", facts: dict[str, Any]) -> "Iterator[pa.RecordBatch]":
    """Yield the training split. Record the bytes of both splits and the counts of dropped documents in `facts`."""
    import pyarrow.compute as pc

    from corpora import Dropped

    dropped = Dropped()
    for split, batch in documents.routed_batches(dropped):
        size = pc.sum(pc.binary_length(batch.column(0))).as_py()
        if split == "train":
            facts["bytes"] += size
            yield batch
        elif split == "validation":
            facts["held_out_bytes"] += size
    facts["dropped"] = vars(dropped)


def add_counts(task: SumTask) -> Output:
    """Return the sum of counts, as Parquet."""
    from tokenizer import PretokenCounts

    def make(new: NewFile) -> dict[str, Any]:
        paths = [output.file(COUNTS) for output in task.counts]
        PretokenCounts.merge(paths, memory=task.memory, spill_folder=task.prefix.parent).save(new(COUNTS))
        return {}

    return whole_output(task.prefix, key_of("add", [output.key for output in task.counts]), make)


def compile_counting(pattern: str) -> None:
    """Compile the kernels for counting, saving and adding up, or load them from the cache on disk."""
    from tokenizer import PretokenCounts, count_pretokens
    from tokenizer.training.counting import LEAST_MEMORY

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts"
        count_pretokens([b"a b"], pattern, threads=1, memory=LEAST_MEMORY).save(path)
        PretokenCounts.merge([path, path])


@dataclass(frozen=True)
class Counted:
    """The counts of a corpus in at most `FAN_IN` files, and the ranges that hold validation documents."""

    paths: list[Path]
    held_out: list["InputRange"]


def count_corpus(
    corpus: "Corpus",
    pattern: str,
    *,
    cut_at: tuple[str, ...],
    memory: int | None,
    folder: Path,
    progress: Progress,
) -> Counted:
    """Count the training split of a corpus on the cluster that this process has joined.

    Complete outputs in `folder` are reused. memory: bytes for the counts in a worker, by default WORKER_MEMORY.
    `corpus.dropped` is set to the counts of documents left out of any split.
    """
    from corpora import Dropped

    memory = memory or WORKER_MEMORY
    ranges = corpus.ranges(range_bytes(corpus.text_bytes_estimate))
    prepare_nodes(compile_counting, pattern)
    prefixes = (output_prefix(folder, number) for number in count())
    tasks = [CountTask(part, pattern, cut_at, memory, next(prefixes)) for part in ranges]
    outputs = sums = _outputs("count", count_range, tasks, progress)
    corpus.dropped.reset()
    for output in outputs:
        corpus.dropped.add(Dropped(**output.facts["dropped"]))
    held_out = [part for part, output in zip(ranges, outputs, strict=True) if output.facts["held_out_bytes"]]
    while len(sums) > FAN_IN:
        groups = [tuple(sums[i : i + FAN_IN]) for i in range(0, len(sums), FAN_IN)]
        adding = [SumTask(group, memory, next(prefixes)) for group in groups]
        sums = _outputs("combine", add_counts, adding, progress)
    return Counted([output.file(COUNTS) for output in sums], held_out)


def _outputs(phase: str, function: Callable[[Any], Output], tasks: Sequence[Any], progress: Progress) -> list[Output]:
    """Return the outputs of a phase in the order of its tasks."""

    def report(done: list[Output], note: str) -> None:
        if phase == "count":
            progress(phase, sum(output.facts["bytes"] for output in done), None, note)
        else:
            progress(phase, len(done), len(tasks), note)

    return collect(function, tasks, "range" if phase == "count" else "sum", report)

"""Build a dataset on a cluster: one task encodes each range of the corpus, then one writes each shard."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from corpora import Corpus
from corpora.ranges import InputRange
from pipelines.cli.display import Bar, count_text
from pipelines.cli.dry_run import plan_tasks
from pipelines.cluster.counting_tasks import range_bytes
from pipelines.cluster.tasks import cluster, collect, prepare_nodes
from pipelines.dataset.arrow import id_dtype
from pipelines.dataset.encoded_range import EncodedRange, encode_range
from pipelines.dataset.encoding import SamplingEncoder
from pipelines.dataset.outputs import output_prefix
from pipelines.dataset.shards import ShardTask, WrittenShard, assemble
from pipelines.dataset.stored import Upload, send
from tokenizer import Tokenizer
from tokenizer.workers import thread_count

WORKER_MEMORY = 250_000_000  # bytes, for estimates; a document longer than a batch takes more
BYTES_PER_SECOND = 10_000_000  # of one core, for estimates


class Progress(Protocol):
    """Called with the phase (starting Ray, encoding, writing), the amount done, its total, its unit and a note.

    The total is None if it is unknown.
    """

    def __call__(self, label: str, done: float, total: float | None, unit: str, note: str = "") -> None: ...


@dataclass(frozen=True)
class Encoders:
    """A tokenizer in a folder, and the arguments of the `SamplingEncoder` of training documents, if there is one."""

    folder: Path
    fingerprint: str
    sampling: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class EncodeTask:
    """A range of a corpus to encode, and how."""

    input: InputRange
    encoders: Encoders
    separator: bool
    prefix: Path
    """prefix of its output files"""


def write_shards_on_ray(
    corpus: Corpus,
    tokenizer: Tokenizer,
    context_length: int,
    folder: Path,
    *,
    address: str | None,
    work: Path,
    shard_size: int,
    separator: bool = True,
    sampler: SamplingEncoder | None = None,
    threads: int | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Write the dataset that `pipelines.dataset.shards.write_shards` writes, and return the content of dataset.json.

    address: a cluster, or None to start one of `threads` workers on this machine. The workers read the tokenizer in
    `folder`. Encoded ranges and whole shards stay in the folder `work`, from which the same call resumes.
    """
    work, folder = work.absolute(), folder.absolute()
    work.mkdir(exist_ok=True)
    encoders = Encoders(folder, tokenizer.fingerprint, tuple(sampler.described.items()) if sampler else ())
    tasks = [
        EncodeTask(each, encoders, separator, output_prefix(work, number))
        for number, each in enumerate(corpus.ranges(range_bytes(corpus.text_bytes_estimate)))
    ]

    total = corpus.text_bytes_estimate

    def encoding(done: Sequence[EncodedRange], note: str) -> None:
        progress("encoding", sum(each.bytes for each in done), total, "B", note)

    def run(write: Callable[[ShardTask], WrittenShard], shards: Sequence[ShardTask]) -> list[WrittenShard]:
        size = context_length * id_dtype(tokenizer.vocab_size).itemsize
        blocks = sum(task.shard.blocks for task in shards)

        def writing(done: Sequence[WrittenShard], note: str) -> None:
            progress("writing", sum(shard.blocks for shard in done) * size, blocks * size, "B", note)

        return collect(write, shards, "shard", writing)

    progress("starting Ray", 0, None, "")
    with cluster(address, threads):
        prepare_nodes(compile_encoding, encoders)
        encoded = collect(encode, tasks, "range", encoding)
        return assemble(corpus, tokenizer, context_length, folder, encoded, shard_size, separator, sampler, run)


def send_on_ray(label: str, uploads: Sequence[Upload], *, address: str) -> None:
    """Send files to an object store, each in a task of the cluster at `address`, whose nodes share the files."""
    with Bar(label, sum(upload.bytes for upload in uploads), "B") as bar, cluster(address):
        collect(send, uploads, "file", lambda done, note: bar.update(sum(done), note=note))


def plan_encoding(
    corpus: Corpus, tokenizer: Tokenizer, shard_size: int, address: str | None, threads: int | None, work: Path
) -> None:
    """Print what `write_shards_on_ray` would do."""
    total = corpus.text_bytes_estimate
    most = total and total * id_dtype(tokenizer.vocab_size).itemsize  # one token per byte
    shards = (
        "" if most is None else f" and at most {-(-most // shard_size) + len(corpus.split_names) - 1:,} to write shards"
    )
    plan_tasks(
        f"{count_text(len(corpus.ranges(range_bytes(total))), 'task')} to encode{shards}",
        total,
        bytes_per_second=BYTES_PER_SECOND,
        memory=WORKER_MEMORY,
        work=work,
        work_bytes=most,
        workers=None if address else thread_count(threads),
    )


def encode(task: EncodeTask) -> EncodedRange:
    """Encode a range on one core, and return its counts."""
    tok, sampler = _load(task.encoders)
    return encode_range(task.input, tok, task.prefix, separator=task.separator, sampler=sampler, threads=1)


def compile_encoding(encoders: Encoders) -> None:
    """Compile the kernels that encode, or load them from the cache on disk."""
    tok, sampler = _load(encoders)
    tok.warm_up(threads=1)
    if sampler:
        sampler.encode_arrow(pa.array(["some text " * 10_000]))  # short texts need no kernels


@cache
def _load(encoders: Encoders) -> tuple[Tokenizer, SamplingEncoder | None]:
    """Return the encoders. A worker loads them once."""
    tok = Tokenizer.load(encoders.folder)
    assert tok.fingerprint == encoders.fingerprint, f"{encoders.folder} holds another tokenizer"
    return tok, SamplingEncoder(tok, **dict(encoders.sampling)) if encoders.sampling else None

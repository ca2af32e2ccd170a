"""Datasets of several Arrow files (shards), built from the encoded ranges of a corpus.

1. `Corpus.ranges` plans the ranges and decides the splits.
2. `encode_range` encodes each range into files of ids (`pipelines.dataset.encoded_range`).
3. `cut` decides from the lengths of these files where each shard begins. `write_shard` writes each shard to a file,
   which is then hard-linked into the dataset.

The shards of a split, one after the other, hold exactly the blocks of a dataset without shards, for any number of
ranges, shards and processes. The steps for each range and for each shard are stateless and idempotent.
"""

import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from corpora import Corpus
from corpora.corpus import RANGE_BYTES
from corpora.splits import TRAIN
from pipelines.dataset.arrow import Progress, describe_split, id_dtype
from pipelines.dataset.block_dataset import BlockFile, block_features, check_splits, write_description
from pipelines.dataset.document_records import hashes_sha256, joined_documents, write_documents
from pipelines.dataset.encoded_range import EncodedRange, EncodedSplit, encode_range
from pipelines.dataset.encoding import SamplingEncoder, separator_of
from pipelines.dataset.outputs import NewFile, key_of, output_file, output_prefix, whole_output
from tokenizer import Tokenizer

ARROW = "arrow"


@dataclass(frozen=True)
class Slice:
    """Tokens [start, stop) of a file of ids."""

    path: Path
    sha256: str
    """of the whole file"""
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """A shard to write: its file name, and its blocks of tokens."""

    name: str
    blocks: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class ShardTask:
    """The task of writing one shard."""

    shard: Shard
    context_length: int
    dtype: np.dtype
    prefix: Path
    """prefix of its output files"""

    @property
    def file(self) -> Path:
        """The Arrow file that the task writes."""
        return output_file(self.prefix, ARROW)


@dataclass(frozen=True)
class WrittenShard:
    """The entry of a shard in dataset.json."""

    name: str
    blocks: int
    bytes: int
    sha256: str


Run = Callable[[Callable[[ShardTask], WrittenShard], Sequence[ShardTask]], Iterable[WrittenShard]]
"""Calls a function with each task, and returns the results in order, as `map` does"""


@dataclass(frozen=True)
class ShardedSplit:
    """The entry of a split in dataset.json; `bytes` are of text, and `encoded_tokens` include the dropped tail."""

    documents: int
    bytes: int
    encoded_tokens: int
    tokens: int
    blocks: int
    shards: tuple[WrittenShard, ...]
    hashes_sha256: str
    """SHA-256 of the SHA-256 of every document"""


def write_shards(
    corpus: Corpus,
    tokenizer: Tokenizer,
    context_length: int,
    folder: Path,
    *,
    work: Path,
    shard_size: int,
    separator: bool = True,
    sampler: SamplingEncoder | None = None,
    threads: int | None = None,
    range_bytes: int = RANGE_BYTES,
    progress: Progress = lambda done: None,
) -> dict[str, Any]:
    """Encode `corpus` into shards in the existing, empty `folder`, and return the content of dataset.json.

    Encoded ranges and complete shards are kept in the folder `work`, from which the same call resumes after an
    interruption.

    Args:
        shard_size: bytes of ids of a shard; the last one of a split may have fewer
        separator: put a separator before every document; ValueError if the tokenizer has none
        sampler: the encoder of training documents; by default the tokenizer
        range_bytes: bytes of input of a range
    """
    work.mkdir(exist_ok=True)
    encoded: list[EncodedRange] = []
    done = 0

    def advance(more: int) -> None:
        progress(done + more)

    for number, input_range in enumerate(corpus.ranges(range_bytes)):
        prefix = output_prefix(work, number)
        options: Any = {"separator": separator, "sampler": sampler, "threads": threads, "progress": advance}
        encoded.append(encode_range(input_range, tokenizer, prefix, **options))
        done += encoded[-1].bytes
    return assemble(corpus, tokenizer, context_length, folder, encoded, shard_size, separator, sampler)


def assemble(
    corpus: Corpus,
    tokenizer: Tokenizer,
    context_length: int,
    folder: Path,
    encoded: Sequence[EncodedRange],
    shard_size: int,
    separator: bool = True,
    sampler: SamplingEncoder | None = None,
    run: Run = map,
) -> dict[str, Any]:
    """Write the dataset of all encoded ranges of a corpus, and return the content of dataset.json.

    `run` calls `write_shard` for each shard: by default one after the other, on a cluster in parallel. Shards are
    written beside the encoded ranges; complete ones are reused. Raises ValueError if a split has less than one block.
    """
    corpus.dropped.reset()
    for output in encoded:
        corpus.dropped.add(output.dropped)
    parts = {
        name: found
        for name in corpus.split_names
        if (found := [output.splits[name] for output in encoded if name in output.splits])
    }
    check_splits(corpus, context_length, {name: sum(part.tokens for part in found) for name, found in parts.items()})
    dtype, work = id_dtype(tokenizer.vocab_size), encoded[0].output.prefix.parent
    prefixes = (output_prefix(work, number) for number in count(len(encoded)))  # ranges have the lower numbers
    tasks = {name: shard_tasks(found, context_length, dtype, shard_size, prefixes) for name, found in parts.items()}
    written = iter(run(write_shard, [task for of_split in tasks.values() for task in of_split]))
    shards = {name: tuple(islice(written, len(of_split))) for name, of_split in tasks.items()}
    splits = {
        name: _write_split(folder / name, parts[name], tasks[name], shards[name], block_features(context_length, dtype))
        for name in parts
    }
    entries = {name: asdict(split) for name, split in splits.items()}
    texts = {name: split.hashes_sha256 for name, split in splits.items()}
    separator_id = separator_of(tokenizer) if separator else None
    return write_description(
        folder, corpus, tokenizer, context_length, separator_id, corpus.dropped, entries, texts, sampler
    )


def shard_tasks(
    parts: Sequence[EncodedSplit], context_length: int, dtype: np.dtype, shard_size: int, prefixes: Iterator[Path]
) -> list[ShardTask]:
    """Return one task for each shard of a split. Each task takes the next of `prefixes`."""
    shard_blocks = max(1, shard_size // (context_length * dtype.itemsize))
    shards = cut(parts, context_length, shard_blocks)
    return [ShardTask(shard, context_length, dtype, next(prefixes)) for shard in shards]


def _write_split(
    folder: Path,
    parts: Sequence[EncodedSplit],
    tasks: Sequence[ShardTask],
    shards: tuple[WrittenShard, ...],
    features: dict[str, Any],
) -> ShardedSplit:
    """Write the folder of a split, and return its entry in dataset.json."""
    folder.mkdir()
    for task in tasks:
        _link(task.file, folder / task.shard.name)
    documents = [part.documents_file for part in parts]
    describe_split(folder, features, {shard.name: shard.sha256 for shard in shards})
    if folder.name != TRAIN:
        write_documents(folder, joined_documents(documents))
    blocks = sum(shard.blocks for shard in shards)
    return ShardedSplit(
        documents=sum(part.documents for part in parts),
        bytes=sum(part.bytes for part in parts),
        encoded_tokens=sum(part.tokens for part in parts),
        tokens=blocks * tasks[0].context_length,
        blocks=blocks,
        shards=shards,
        hashes_sha256=hashes_sha256(documents),
    )


def _link(file: Path, to: Path) -> None:
    """Hard-link `file`, so that it survives if the dataset is discarded. Move it where links are not supported."""
    try:
        os.link(file, to)
    except OSError:
        shutil.move(file, to)


def cut(parts: Sequence[EncodedSplit], context_length: int, shard_blocks: int) -> list[Shard]:
    """Return the shards of a split, of `shard_blocks` blocks each; the last one may have fewer.

    `parts`: the parts of the split in each range, in corpus order. Tokens after the last whole block are left out.
    """
    ends = list(accumulate(part.tokens for part in parts))
    blocks = ends[-1] // context_length
    count = -(-blocks // shard_blocks)
    shards = []
    for number in range(count):
        start, stop = (min(n * shard_blocks, blocks) * context_length for n in (number, number + 1))
        slices = []
        for index in range(bisect_right(ends, start), bisect_left(ends, stop) + 1):
            part = parts[index]
            begin = ends[index] - part.tokens
            if part.tokens:
                first, last = max(0, start - begin), min(part.tokens, stop - begin)
                slices.append(Slice(part.ids, part.ids_sha256, first, last))
        name = f"data-{number:05}-of-{count:05}.arrow"
        shards.append(Shard(name, (stop - start) // context_length, tuple(slices)))
    return shards


def write_shard(task: ShardTask) -> WrittenShard:
    """Write a shard beside the encoded ranges. A complete file is reused."""

    def make(new: NewFile) -> dict[str, Any]:
        path = new(ARROW)
        file = BlockFile(path, task.context_length, task.dtype)
        try:
            for part in task.shard.slices:
                file.add(np.memmap(part.path, task.dtype, "r")[part.start : part.stop])
            file.end()
        finally:
            file.close()
        return {"blocks": file.blocks, "bytes": path.stat().st_size}

    slices = [(part.sha256, part.start, part.stop) for part in task.shard.slices]
    output = whole_output(task.prefix, key_of("shard", slices, task.context_length, task.dtype.name), make)
    return WrittenShard(task.shard.name, **output.facts, sha256=output.files[ARROW])

"""Text: encode a corpus into blocks of token ids.

Examples:
    bytelm build-dataset stdlib --tokenizer words --context-length 256 --out data
    bytelm build-dataset text.jsonl --tokenizer words --pairs en de --out pairs
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

import tyro

from lm.values import read_as
from pipelines.cli.arguments import Address, DatasetPlace, DryRun, Engine, TokenizerPath, TokenizerPattern, check_engine
from pipelines.cli.corpus_arguments import (
    READING,
    CorpusNames,
    PairColumns,
    ReadingOptions,
    SplitRule,
    check_text,
    refuse_with_pairs,
    say_left_out,
)
from pipelines.cli.display import Bar, answer, count_text, quantity, say, table
from pipelines.cli.dry_run import plan_dataset
from pipelines.cli.errors import UsageError
from pipelines.cli.named_tokenizers import load_tokenizer
from pipelines.cli.process import resumable
from pipelines.cli.shell import command
from pipelines.cli.verbs import verb
from pipelines.dataset.built_dataset import BuiltDataset
from pipelines.files import place

if TYPE_CHECKING:
    from corpora import Corpus, PairCorpus

OUT_OF_MEMORY = "lower `max_document` or `threads`"

# Arrow allows lists of 31-bit lengths, but a batch of blocks must fit in memory.
LONGEST_CONTEXT = 1 << 26

Deduplicate = Annotated[
    Literal["exact", "near"] | None,
    tyro.conf.arg(
        help="Duplicates to remove before the corpus is split. exact: documents with the same bytes. near: also "
        "documents that share three quarters of their runs of five words. duplicates.jsonl lists them."
    ),
]

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Corpus": ("corpus split deduplicate", "pairs"),
    "Reading files": READING,
    "Tokens": ("tokenizer context_length", "pattern separator alpha dropout seed"),
    "Output": ("out shard_size overwrite dry_run", ""),
    "Workers": ("threads", "engine address"),
}


@verb
def build_dataset(
    corpus: CorpusNames,
    *,
    tokenizer: TokenizerPath,
    out: DatasetPlace,
    context_length: int | None = None,
    pattern: TokenizerPattern = None,
    pairs: PairColumns = None,
    split: SplitRule = None,
    shard_size: int | None = None,
    separator: bool = True,
    deduplicate: Deduplicate = None,
    alpha: float | None = None,
    dropout: float = 0,
    seed: int = 0,
    threads: int | None = None,
    engine: Engine = "local",
    address: Address = None,
    overwrite: bool = False,
    dry_run: DryRun = False,
    **reading: Unpack[ReadingOptions],
) -> BuiltDataset | None:
    """Encode a corpus into blocks of token ids, or pairs of texts into pairs of lists, and return the numbers of
    dataset.json.

    The folder opens with datasets.load_from_disk. It appears whole or not at all. In an object store, manifest.json
    is written last and marks a complete dataset; the same command resumes an interrupted upload.

    Args:
        out: Folder to write, or its URI in an object store, such as s3://bucket/data.
        context_length: Tokens per block. Pairs keep their lengths.
        shard_size: Bytes of an Arrow file, such as 1G; by default each split is one file. With `shard_size` the same
            command resumes an interrupted build, whose finished work is in the folder OUT.ranges.
        separator: Put <|endoftext|> before every document. If a published tokenizer lacks it, use the token that ends
            its texts: [SEP] for BERT, </s> for RoBERTa, T5 and SentencePiece models.
        alpha: Inverse temperature, such as 0.1: draw the segmentation of each training document with a probability
            proportional to exp(ALPHA * score); unigram only. Uses one thread.
        dropout: Probability of dropping a merge (BPE dropout) in training documents; not for wordpiece, unigram, words
            or characters. Uses one thread.
        seed: Seed of `alpha` and `dropout`.
        threads: Threads that encode, or workers of a local Ray cluster; all cores by default. With `address`, the
            cluster decides the number of workers.
        overwrite: Replace an existing dataset.
    """
    length = _block_length(context_length, pairs, separator)
    _check_shard_size(shard_size, pairs)
    check_text(corpus, place(out), split, reading, "a dataset")
    check_engine(engine, address, threads, without={"`pairs`": pairs})
    if engine == "ray" and not shard_size:
        raise UsageError("`engine='ray'` writes several files per split: add `shard_size`, such as 1G")
    if pairs and deduplicate:
        raise ValueError("`deduplicate` is for blocks: leave it out, since pairs keep their duplicates")
    from corpora import PairCorpus
    from pipelines.cluster.dataset_tasks import plan_encoding, send_on_ray, write_shards_on_ray
    from pipelines.dataset.block_dataset import write_blocks
    from pipelines.dataset.encoding import SamplingEncoder
    from pipelines.dataset.outputs import remove_outputs
    from pipelines.dataset.pair_dataset import write_pairs
    from pipelines.dataset.shards import write_shards
    from pipelines.dataset.stored import new_dataset, refuse_existing, work_folder

    to, work = place(out), work_folder(place(out))
    refuse_existing(to, overwrite)
    tok = load_tokenizer(tokenizer, pattern)
    drawn = alpha is not None or bool(dropout)
    sampler = SamplingEncoder(tok, alpha=alpha, dropout=dropout, seed=seed) if drawn else None
    source = _opened(corpus, pairs, split, reading)
    if dry_run:
        size = source.text_bytes_estimate
        plan_dataset(tokenizer, tok.vocab_size, size, length, source.split_rule, out, shard_size, threads)
        if deduplicate:
            answer(f"would remove {deduplicate} duplicates first")
        if engine == "ray" and shard_size and not isinstance(source, PairCorpus):
            plan_encoding(source, tok, shard_size, address, threads, work)
        say_left_out(None, source.skipped_files, say=answer)
        return None
    # A cluster on this machine alone would not upload faster.
    send_all = partial(send_on_ray, address=address) if engine == "ray" and address else None
    with resumable(work, "ranges"), new_dataset(to, overwrite, send_all) as new:
        tok.save(new)  # runs read it there
        if deduplicate and not isinstance(source, PairCorpus):
            source = _deduplicate(source, deduplicate, new, threads)
        with Bar("encoding", source.text_bytes_estimate, "B") as bar:
            options: Any = {"sampler": sampler, "threads": threads, "progress": bar.update}
            if isinstance(source, PairCorpus):
                info = write_pairs(source, tok, new, **options)
            else:
                write: Callable[..., dict[str, Any]] = write_blocks
                if shard_size:
                    write = partial(write_shards, work=work, shard_size=shard_size)
                if shard_size and engine == "ray":
                    write = partial(write_shards_on_ray, address=address, work=work, shard_size=shard_size)
                    options["progress"] = bar.phase
                info = write(source, tok, length, new, separator=separator, **options)
    remove_outputs(work)  # an interrupted build with `shard_size` may have left some
    built: BuiltDataset = read_as(BuiltDataset, info)
    (_print_pairs if pairs else _print_blocks)(out, built)
    say_left_out(source.dropped, source.skipped_files)
    return built


def next_step(given: Mapping[str, Any], _: Any) -> str:
    """Return the command that follows: it trains a small model on the dataset."""
    data = given["out"]
    if given["pairs"]:
        return command("pretrain", "translate-tiny", data=data, out=_beside(data, "translator"))
    length = given["context_length"]
    options = {} if length == 256 else {"model.context_length": length}  # that of the recipe
    return command("pretrain", "gpt-tiny", data=data, out=_beside(data, "gpt"), **options)


def _opened(
    corpus: Sequence[str], pairs: tuple[str, str] | None, split: str | None, reading: ReadingOptions
) -> "Corpus | PairCorpus":
    """Return the corpus, with text for validation; say why it is not split by the usual rule."""
    from corpora import open_corpus, open_pairs

    if pairs:
        refuse_with_pairs(reading)
        return open_pairs(corpus, pairs, split, **reading)
    source = open_corpus(corpus, split=split, **reading)
    source.check_validation()
    if source.split_reason:
        say(source.split_reason)
    return source


def _beside(data: str | Path, name: str) -> Path:
    """Return a folder beside the dataset, or in the working folder if the dataset is in an object store."""
    return Path(name) if "://" in str(data) else Path(data).with_name(name)


def _deduplicate(source: "Corpus", method: Literal["exact", "near"], folder: Path, threads: int | None) -> "Corpus":
    """Return a corpus without its duplicates, and list them in `folder`."""
    from pipelines.dataset.duplicates import DUPLICATES_FILE, find_duplicates

    with Bar("finding duplicates", source.text_bytes_estimate, "B") as bar:
        found = find_duplicates(source, method, folder, threads=threads, progress=bar.phase)
    found.write(folder / DUPLICATES_FILE)
    count, size = f"{len(found.documents):,} of {found.corpus_documents:,}", quantity(found.removed_bytes, "B")
    say(f"duplicates: {count} documents, {size} of text")
    if found.uncompared:
        times = count_text(found.uncompared, "time")
        say(f"a document was compared with only some of its candidates, because too many differed from it: {times}")
    left = source.without(found.marks, found.removed_bytes)
    left.check_validation()
    if left.split_reason and not source.split_reason:
        say(left.split_reason)
    return left


def _block_length(context_length: int | None, pairs: tuple[str, str] | None, separator: bool) -> int:
    """Return the length of blocks, 0 for pairs; ValueError for options that do not fit."""
    if pairs:
        if context_length is not None:
            raise ValueError("`context_length` is for blocks: leave it out, since pairs keep their lengths")
        if not separator:
            raise ValueError("`separator=False` is for blocks: leave it out, since pairs have no separators")
        return 0
    if context_length is None:
        raise ValueError("`context_length` is missing: give the tokens of a block, such as 256 (or `pairs` for pairs)")
    if not 2 <= context_length <= LONGEST_CONTEXT:
        raise ValueError(f"`context_length` is {context_length:,}, but must be from 2 to {LONGEST_CONTEXT:,} tokens")
    return context_length


def _check_shard_size(shard_size: int | None, pairs: tuple[str, str] | None) -> None:
    """Raise ValueError for a bad `shard_size`."""
    if shard_size is None:
        return
    if pairs:
        raise ValueError("`shard_size` is for blocks: leave it out, since pairs are in one file per split")
    if shard_size < 1:
        raise ValueError(f"`shard_size` is {shard_size:,}, but must be a positive number of bytes, such as 1G")


def _print_blocks(out: str | Path, built: BuiltDataset) -> None:
    from pipelines.cli.console import messages

    rows = [
        (
            name,
            f"{s.documents:,}",
            f"{s.bytes:,}",
            f"{s.tokens:,}",
            f"{s.blocks:,}",
            f"{s.bytes / s.encoded_tokens:.3f}",
        )
        for name, s in built.splits.items()
    ]
    table(("split", "documents", "bytes", "tokens", "blocks", "bytes/token"), rows, to=messages)
    say(f"{out}: blocks of {built.context_length} tokens, split by {built.corpus.split_rule}")


def _print_pairs(out: str | Path, built: BuiltDataset) -> None:
    from pipelines.cli.console import messages

    assert built.corpus.columns is not None
    source, target = built.corpus.columns
    rows = [
        (name, f"{s.pairs:,}", column, f"{tokens:,}", f"{longest:,}", f"{size / max(1, tokens):.3f}")
        for name, s in built.splits.items()
        for column, tokens, longest, size in (
            (source, s.source_tokens, s.longest_source, s.source_bytes),
            (target, s.target_tokens, s.longest_target, s.target_bytes),
        )
    ]
    table(("split", "pairs", "column", "tokens", "longest", "bytes/token"), rows, to=messages)
    say(f"{out}: pairs, split by {built.corpus.split_rule}")

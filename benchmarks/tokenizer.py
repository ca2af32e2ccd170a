"""Training a vocabulary, ours beside Hugging Face `tokenizers`: the same text, the same pattern, the same merges.

    python -m benchmarks.tokenizer CORPUS... [--megabytes 50] [--vocab-size 32000] [--runs 3] [--out result.json]

The text is read first; each clock runs from the call to the finished vocabulary. The two take turns in one process, on
as many threads as they like. Merges are compared before a time counts.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from corpora import open_corpus
from tokenizer import Tokenizer, resolve_pattern

Merges = list[tuple[bytes, bytes]]
PATTERN = "gpt2"


def read(corpus: list[str], megabytes: float) -> list[pa.Array]:
    """Documents of the training split, up to about so many million bytes."""
    columns, size = [], 0
    for batch in open_corpus(corpus).batches("train"):
        columns.append(batch.column(0))
        size += batch.column(0).nbytes
        if size >= megabytes * 1e6:
            break
    return columns


def ours(columns: list[pa.Array], vocab_size: int) -> Merges:
    return Tokenizer.train(
        iter(columns), vocab_size=vocab_size, pattern=PATTERN, special_tokens=(), min_frequency=1
    ).merges


def hugging_face(columns: list[pa.Array], vocab_size: int) -> Merges:
    peer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(resolve_pattern(PATTERN).regex), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    peer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    peer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    peer.train_from_iterator((text for column in columns for text in column.to_pylist()), trainer)
    spelled = json.loads(peer.to_str())["model"]["merges"]
    # GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on, in their order.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in plain} | {
        chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)
    }
    return [tuple(bytes(byte_of[c] for c in part) for part in merge) for merge in spelled]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--megabytes", type=float, default=50)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    columns = read(options.corpus, options.megabytes)
    started = time.perf_counter()
    ours(columns[:1], 300)
    warm_up = time.perf_counter() - started
    trainers_: dict[str, Callable[[list[pa.Array], int], Merges]] = {"bytelm": ours, "tokenizers": hugging_face}
    seconds: dict[str, list[float]] = {name: [] for name in trainers_}
    for _ in range(options.runs):
        merges = {}
        for name, train in trainers_.items():
            started = time.perf_counter()
            merges[name] = train(columns, options.vocab_size)
            seconds[name].append(time.perf_counter() - started)
        if merges["bytelm"] != merges["tokenizers"]:
            sys.exit("the merges differ: no time counts")
    result = {
        "megabytes": round(sum(column.nbytes for column in columns) / 1e6, 1),
        "vocab_size": options.vocab_size,
        "pattern": PATTERN,
        "first_call_seconds": round(warm_up, 2),
        "seconds": {
            name: {"minimum": round(min(times), 2), "median": round(statistics.median(times), 2)}
            for name, times in seconds.items()
        },
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numba", "numpy", "tokenizers")},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

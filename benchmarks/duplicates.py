"""MinHash signatures beside datasketch and rensa: megabytes of text per CPU second, in one thread.

`python -m benchmarks.duplicates FILE...` computes signatures of 112 minima over runs of five words of each document.
Each row is the best of several rounds, in which all take turns. The peers are slower and get the start of each
document, 2 MB in total; one row of ours has the same text. They get the runs from a regular expression in Python, and
the row `shingles in Python` is the time that this takes. `find_duplicates` also reads and decompresses the file,
computes the SHA-256 of each document, and compares the candidates.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.harness import command_line, heading, table
from benchmarks.texts import size_name
from corpora import open_corpus
from pipelines.dataset.duplicates import BUFFER, find_duplicates
from pipelines.dataset.shingle_kernels import BANDS, PERMUTATIONS, WORDS, sign
from tokenizer.document_blocks import block_of

PEER_BYTES = 2_000_000
ROUNDS = 2


def shingles(text: str) -> list[str]:
    """Return the runs of five words of a text."""
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[k : k + WORDS]) for k in range(len(words) - WORDS + 1)]


def with_shingles_alone(documents: list[bytes]) -> None:
    for document in documents:
        shingles(document.decode())


def with_datasketch(documents: list[bytes]) -> None:
    from datasketch import MinHash

    for document in documents:
        MinHash(PERMUTATIONS).update_batch([shingle.encode() for shingle in shingles(document.decode())])


def with_rensa(documents: list[bytes]) -> None:
    from rensa import RMinHash

    for document in documents:
        signature = RMinHash(PERMUTATIONS, 1)
        signature.update(shingles(document.decode()))
        signature.digest()


def with_bytelm(documents: list[bytes]) -> None:
    block, count = block_of(documents), len(documents)
    memory, signature = np.empty(WORDS + 1 + BUFFER, np.uint64), np.empty((1, PERMUTATIONS), np.uint32)
    sign(block.data, block.offsets, memory, signature, np.empty((count, BANDS), np.uint64), np.empty(count, np.int64))


def starts(documents: list[bytes], size: int) -> list[bytes]:
    """Return the start of each document, about `size` bytes in total, so that each language keeps its share."""
    share = min(1.0, size / sum(map(len, documents)))
    return [text[: round(share * len(text))].decode(errors="ignore").encode() for text in documents]


def cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def measure(path: Path) -> list[tuple[str, ...]]:
    """Return a row for each way to compute the signatures of a corpus."""
    documents = [text for _, texts in open_corpus(str(path)).documents() for text in texts.to_pylist()]
    few = starts(documents, PEER_BYTES)
    corpus = open_corpus(str(path))
    ways: list[tuple[str, list[bytes], Callable[[], object]]] = [
        ("bytelm, signatures", documents, lambda: with_bytelm(documents)),
        (
            "bytelm, find_duplicates",
            documents,
            lambda: find_duplicates(corpus, "near", Path(tempfile.gettempdir()), threads=1),
        ),
        ("bytelm, signatures", few, lambda: with_bytelm(few)),
        ("shingles in Python", few, lambda: with_shingles_alone(few)),
        ("datasketch", few, lambda: with_datasketch(few)),
        ("rensa", few, lambda: with_rensa(few)),
    ]
    with_bytelm(documents[:1])  # compiles or loads the kernel
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for spent, (_, _, work) in zip(seconds, ways, strict=True):
            spent.append(cpu_seconds(work))
    rows = []
    for spent, (name, texts, _) in zip(seconds, ways, strict=True):
        size = sum(map(len, texts))
        rows.append((path.name, name, size_name(size), f"{size / 1e6 / min(spent):.1f}"))
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="corpora, such as books.jsonl.xz")
    parser.add_argument("--out", type=Path, help="file for the table, such as benchmarks/results/duplicates.md")
    options = parser.parse_args()
    rows = [row for path in options.files for row in measure(path)]
    if options.out:
        facts = f"{os.cpu_count()} cores, Python {sys.version.split()[0]}. CPU seconds, best of {ROUNDS} rounds."
        command = command_line("benchmarks.duplicates", [path.name for path in options.files])
        lines = [*heading("Near duplicates", command, facts), *table(("corpus", "what", "text", "MB/s"), rows), ""]
        options.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()

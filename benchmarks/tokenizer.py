"""Compare the tokenizer with every peer that pip installs, on the same texts and with equal results.

    python -m benchmarks.tokenizer [FILE...] [--works training,encoding] [--rounds 5] [--quick]

The default texts are English, Python code and multilingual text, as far as they are available. A complete run writes
JSON and Markdown to `benchmarks/results/`, any other run to a temporary folder.
"""

import hashlib
import sys
import tempfile
from base64 import b64encode
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from benchmarks.cases import Case, Patience, Row
from benchmarks.harness import RESULTS, command_line, duration, machine, record
from benchmarks.limits import access_latency, read_bandwidth
from benchmarks.peers import DISTRIBUTIONS, OURS, installed_version
from benchmarks.peers.encoding import VocabularyFiles
from benchmarks.report import markdown
from benchmarks.texts import SHARED, Text, corpora, line_texts
from benchmarks.workloads import WORKLOADS, Session
from tokenizer import Tokenizer

# The published file; some peers have just this vocabulary built in.
CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare the tokenizer with its peers."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """UTF-8 text files to use instead of the default texts."""
    works: str = ",".join(WORKLOADS)
    """Workloads, separated by commas."""
    peers: str = ",".join(peer for peer in DISTRIBUTIONS if peer != OURS)
    """Peers, separated by commas."""
    threads: tuple[int, ...] = (1, 2)
    """Numbers of threads."""
    rounds: int = 5
    """Turns of each contestant; none starts after 20 s in total."""
    vocab_size: int = 32000
    """Vocabulary size for training."""
    vocabulary: Path | None = None
    """.tiktoken file for encoding, pattern cl100k; default: cl100k_base, or a vocabulary trained on the first text."""
    quick: bool = False
    """Smoke test: 2 MB of each text, 2,000 entries, one round."""
    out: Path | None = None
    """Results folder."""


def main(options: Options) -> int:
    workloads, peers = _chosen("works", options.works, WORKLOADS), _chosen("peers", options.peers, DISTRIBUTIONS)
    console = Console(stderr=True)
    all_peers = len(peers) == len(DISTRIBUTIONS) - 1
    complete = len(workloads) == len(WORKLOADS) and all_peers and not (options.files or options.quick)
    out = options.out or (RESULTS if complete else Path(tempfile.gettempdir()) / "bytelm-benchmarks")
    with tempfile.TemporaryDirectory(prefix="bytelm-benchmarks-") as temporary, console.status("texts") as status:
        folder = Path(temporary)
        texts = corpora(folder, list(options.files), options.quick)
        with_lines = {"wordpiece", "unigram", "character-bpe"} & {*workloads}
        lines = line_texts(folder, list(options.files), options.quick) if with_lines else []
        status.update("vocabulary")
        vocab_size = 2000 if options.quick else options.vocab_size
        vocabulary = vocabulary_files(folder, options.vocabulary, texts[0], vocab_size)
        status.update("memory")
        bandwidth, latency = read_bandwidth(texts[0].path), access_latency()
        result = {
            "command": command_line("benchmarks.tokenizer", sys.argv[1:]),
            "device": machine() | {"read_gb_per_s": round(bandwidth / 1e9, 1), "access_ns": round(latency * 1e9)},
            "versions": {peer: installed_version(peer) for peer in (OURS, *peers)}
            | {name: version(name) for name in ("numba", "numpy")},
            "texts": [describe(text) for text in (*texts, *lines)],
        }
        cases: list[Case] = []

        def begin(case: Case) -> None:
            cases.append(case)

        def show(case: Case, row: Row) -> None:
            last = f", last {duration(row.runs[-1]['seconds'])}" if row.runs else ""
            status.update(f"{case.work}, {case.name}: {row.name} on {row.threads}{last}")

        session = Session(
            texts=texts,
            line_texts=lines,
            vocabulary=vocabulary,
            vocab_size=vocab_size,
            folder=folder,
            threads=options.threads,
            patience=Patience(rounds=1 if options.quick else options.rounds),
            quick=options.quick,
            wanted={OURS, *peers}.__contains__,
            bandwidth=bandwidth,
            latency=latency,
            begin=begin,
            show=show,
        )
        stopped = False
        try:
            for workload in workloads:
                before = len(cases)
                WORKLOADS[workload](session)
                for case in cases[before:]:
                    for verdict in case.verdicts:
                        met = "[green]met[/]" if verdict.met else "[red]missed[/]"
                        console.print(
                            f"{case.work}, {case.name}: {verdict.target}: {verdict.found}", met, soft_wrap=True
                        )
        except KeyboardInterrupt:
            stopped = True
            result["command"] += " (interrupted)"
        finally:
            result["cases"] = [case.as_dict() for case in cases]
            record(out, "tokenizer", result, markdown(result))
            console.print(f"{out / 'tokenizer.json'}\n{out / 'tokenizer.md'}", soft_wrap=True)
    return 130 if stopped else 0


def vocabulary_files(folder: Path, named: Path | None, text: Text, vocab_size: int) -> VocabularyFiles:
    """Return the encoding vocabulary as ranks and as tokenizer.json."""
    ranks = named or SHARED / "vectors" / "cl100k" / "cl100k_base.tiktoken"
    if ranks.is_file():
        tokenizer = Tokenizer.load(ranks, pattern="cl100k")
    elif named:
        raise SystemExit(f"no such vocabulary: {named}")
    else:
        tokenizer = Tokenizer.train(text.path, vocab_size, "cl100k", special_tokens=())
        ranks = folder / "trained.tiktoken"
        tokens = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
        ranks.write_bytes(b"".join(b"%b %d\n" % (b64encode(token), rank) for rank, token in enumerate(tokens)))
    tokenizer.save(folder)
    published = hashlib.sha256(ranks.read_bytes()).hexdigest() == CL100K_SHA256
    return VocabularyFiles(ranks=str(ranks.resolve()), json=str(folder / "tokenizer.json"), published=published)


def describe(text: Text) -> dict:
    digest = hashlib.sha256(text.path.read_bytes()).hexdigest()
    return {"name": text.name, "bytes": text.size, "source": text.source, "sha256": digest}


def _chosen(option: str, names: str, known) -> list[str]:
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise SystemExit(f"--{option}: unknown name {name!r}; choose from {', '.join(known)}")
    return [name for name in known if name in chosen and name != OURS]


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, prog="python -m benchmarks.tokenizer", description=__doc__)))

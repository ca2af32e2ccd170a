"""Train a vocabulary on a corpus larger than memory within a memory budget, and check that it is exact.

    python -m benchmarks.big_corpus [--gigabytes 10] [--memory 1G] [--vocab-size 32000] [--out FILE]

The corpus is generated while it is read and never stored. It has words of syllables in nine scripts with Zipf's
frequencies. New words keep appearing, so the number of distinct pretokens never stops growing. The budget bounds the
counting; merging then takes memory in proportion to the distinct pretokens. A result is recorded only if the first
`--checked` gigabytes give the same vocabulary with the least budget and without one.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import RESULTS, peak_bytes
from pipelines.cli.arguments import parse_count
from pipelines.cli.display import Bar, say, table
from pipelines.cli.display import show as printing
from tokenizer import Tokenizer, count_pretokens
from tokenizer.training.counting import LEAST_MEMORY
from tokenizer.workers import thread_count

PHRASES = 1 << 18
PHRASE_WORDS = 8
BATCH_PHRASES = 1 << 17
DOCUMENT_PHRASES = 1 << 7
# Consonants, vowels, number of words, and prefix of the words of each script.
SCRIPTS = {
    "Latin": ("b c d f g h l m n p r s t v w st tr ch pr sh", "a e i o u ea ou io er an in", 120_000, " "),
    "accented": ("b c ç d f g h l m n ñ p r s š t v z", "a é e i ö o u ü å á", 20_000, " "),
    "Cyrillic": ("б в г д ж з к л м н п р с т х ч ш", "а е и о у ы я ю", 20_000, " "),
    "Greek": ("β γ δ θ κ λ μ ν π ρ σ τ φ χ", "α ε η ι ο υ ω ά έ", 8_000, " "),
    "Hebrew": ("ב ג ד ה ז ח ט כ ל מ נ ס פ ק ר ש ת", "א ו י ע", 8_000, " "),
    "Arabic": ("ب ت ث ج ح خ د ر ز س ش ص ف ق ك ل م ن", "ا و ي ة", 8_000, " "),
    "Devanagari": ("क ख ग च ज ट ड त द न प ब म य र ल व स ह", "ा ि ी ु े ो ं", 8_000, " "),
    "Hangul": ("가 나 다 라 마 바 사 아 자 차 카 타 파 하", "는 을 기 도 로 서 고 이", 8_000, " "),
    "Han": ("中 国 人 大 学 生 年 月 日 本 時 間 高 小 水 山", "子 的 在 是 有 会 行 法", 8_000, "，"),
}
FREQUENT = [",", ".", ".\n", " the", " of", "'s", " and", " a", "\n\n", " (", ")", " in", " to", ' "', '"', ";", "?\n"]
NUMBERS = 3000
# One phrase in RARE is followed by two endings, which turn its last word into a mostly new one.
RARE = 12


class Generator:
    """Generates batches of documents of about 8 MB; the same seed gives the same batches."""

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        words, endings = [], []
        for consonants, vowels, how_many, before in SCRIPTS.values():
            syllables = np.array([c + v for c in consonants.split() for v in vowels.split()])
            drawn = syllables[rng.integers(len(syllables), size=(how_many, 4))].tolist()
            lengths = rng.choice([1, 2, 3, 4], p=[0.1, 0.4, 0.35, 0.15], size=how_many).tolist()
            words += [before + "".join(parts[:length]) for parts, length in zip(drawn, lengths, strict=True)]
            endings += ["".join(parts[:2]) for parts in drawn[: how_many // 4]]
        words += [f" {number}" for number in rng.integers(1, 10**6, size=NUMBERS)]
        rng.shuffle(words)
        words = [*FREQUENT, *words]
        # Rank r with a probability in proportion to 1 / r.
        ranks = np.exp(rng.random(PHRASES * PHRASE_WORDS) * np.log(len(words))).astype(np.int64) - 1
        drawn = pa.array(words, pa.large_string()).take(pa.array(ranks))
        _, offsets, text = drawn.buffers()
        offsets = pa.array(np.frombuffer(offsets, dtype=np.int64)[::PHRASE_WORDS])
        phrases = pa.LargeStringArray.from_buffers(PHRASES, offsets.buffers()[1], text)
        self._seed = seed
        self._endings = len(endings)
        self._pieces = pa.concat_arrays([phrases, pa.array(endings, pa.large_string())])

    def batches(self, size: float) -> Iterator[pa.Array]:
        """Yield arrays of documents, `size` bytes in total or up to a batch more."""
        done = batch_number = 0
        while done < size:
            batch = self._batch(np.random.default_rng((self._seed, batch_number)))
            done += batch.buffers()[2].size
            batch_number += 1
            yield batch

    def _batch(self, rng: np.random.Generator) -> pa.Array:
        pieces = rng.integers(PHRASES, size=BATCH_PHRASES, dtype=np.int32)
        rare = np.flatnonzero(rng.integers(RARE, size=BATCH_PHRASES - 2, dtype=np.uint8) == 0)
        for following in (1, 2):
            pieces[rare + following] = PHRASES + rng.integers(self._endings, size=len(rare), dtype=np.int32)
        _, offsets, text = self._pieces.take(pa.array(pieces)).buffers()
        offsets = pa.array(np.frombuffer(offsets, dtype=np.int64)[::DOCUMENT_PHRASES])
        return pa.LargeStringArray.from_buffers(BATCH_PHRASES // DOCUMENT_PHRASES, offsets.buffers()[1], text)


class Phases:
    """Records the seconds of each phase, and the peak memory of the process at its end."""

    def __init__(self):
        self.results: dict[str, dict[str, float]] = {}
        self._started = time.perf_counter()
        self._phase = None

    def __call__(self, phase: str, done: int = 0, total: int | None = None) -> None:
        """Enter `phase`; a `progress` callback of the tokenizer."""
        if phase != self._phase:
            self.end()
            self._phase = phase

    def end(self) -> None:
        now = time.perf_counter()
        if self._phase is not None:
            seconds, peak = now - self._started, peak_bytes()
            self.results[self._phase] = {"seconds": round(seconds, 2), "peak_memory_mb": round(peak / 1e6)}
        self._phase, self._started = None, now


def check_exactness(generator: Generator, size: float, vocab_size: int) -> dict:
    """Count the start of the corpus with the least budget and without one. Raises AssertionError if results differ."""
    within = count_pretokens(generator.batches(size), memory=LEAST_MEMORY)
    whole = count_pretokens(generator.batches(size))
    assert within.spilled_runs > 0, "nothing was spilled: check more gigabytes"
    assert within == whole, "the counts within the budget differ"
    fingerprint = Tokenizer.train_from_counts(whole, vocab_size).fingerprint
    assert Tokenizer.train_from_counts(within, vocab_size).fingerprint == fingerprint, "the vocabularies differ"
    return {"gigabytes": size / 1e9, "memory": LEAST_MEMORY, "spilled_runs": within.spilled_runs, "equal": True}


def generation_speed(generator: Generator) -> float:
    """Return the bytes per second of generating the corpus, which is part of the counting time."""
    started = time.perf_counter()
    return sum(batch.buffers()[2].size for batch in generator.batches(3e8)) / (time.perf_counter() - started)


def measure(generator: Generator, options: argparse.Namespace) -> dict:
    size = options.gigabytes * 1e9
    Tokenizer.train(generator.batches(1), 300)  # compiles or loads the kernels
    speed = generation_speed(generator)
    before = peak_bytes()
    phases = Phases()
    with Bar("count", size, "B") as bar:

        def progress(phase: str, done: int, total: int | None) -> None:
            phases(phase)
            bar.phase(phase, done, size if phase == "count" else total, "B" if phase == "count" else "")

        counts = count_pretokens(
            generator.batches(size),
            threads=options.threads,
            memory=options.memory,
            spill_folder=options.spill_folder,
            progress=progress,
        )
        phases("merge")
        tok = Tokenizer.train_from_counts(counts, options.vocab_size, progress=progress)
        phases.end()
    counting = sum(seconds["seconds"] for phase, seconds in phases.results.items() if phase != "merge")
    return {
        "gigabytes": round(counts.total_bytes / 1e9, 3),
        "memory_budget_mb": options.memory / 1e6 if options.memory else None,
        "threads": options.threads or thread_count(None),
        "phases": phases.results,
        "peak_memory_before_mb": round(before / 1e6),
        "counting_mb_per_s": round(counts.total_bytes / 1e6 / counting, 1),
        "generating_alone_mb_per_s": round(speed / 1e6, 1),
        "pretokens": counts.total,
        "distinct_pretokens": len(counts),
        "distinct_pretoken_mb": round(len(counts.data) / 1e6, 1),
        "spilled_runs": counts.spilled_runs,
        "spilled_mb": round(counts.spilled_bytes / 1e6, 1),
        "vocab_size": tok.vocab_size,
        "fingerprint": tok.fingerprint,
    }


def show(result: dict) -> None:
    rows = [
        (phase, f"{numbers['seconds']:,.1f}", f"{numbers['peak_memory_mb']:,}")
        for phase, numbers in result["phases"].items()
    ]
    rows.append(("before", "", f"{result['peak_memory_before_mb']:,}"))
    table(("phase", "seconds", "peak memory, MB"), rows)
    say(
        f"{result['gigabytes']:,} GB counted at {result['counting_mb_per_s']:,} MB/s (generated alone at "
        f"{result['generating_alone_mb_per_s']:,}); {result['distinct_pretokens']:,} distinct pretokens of "
        f"{result['distinct_pretoken_mb']:,} MB; {result['spilled_runs']:,} runs of {result['spilled_mb']:,} MB spilled"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--memory", type=parse_count, default=10**9, help="memory budget (default: 1G); 0: no limit")
    parser.add_argument("--vocab-size", type=parse_count, default=32_000)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--checked", type=float, default=0.2, help="gigabytes on which exactness is verified")
    parser.add_argument("--spill-folder", type=Path, help="default: the system's temporary folder")
    parser.add_argument("--out", type=Path, default=RESULTS / "big-corpus.json")
    options = parser.parse_args()
    options.memory = options.memory or None
    generator = Generator(seed=0)
    result = measure(generator, options)
    show(result)
    result["exact"] = check_exactness(generator, options.checked * 1e9, options.vocab_size)
    say(f"the first {options.checked:g} GB give the same vocabulary without a budget and with the least")
    result["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
    result["python"] = platform.python_version()
    result["versions"] = {name: version(name) for name in ("numba", "numpy", "pyarrow")}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with printing():
        main()

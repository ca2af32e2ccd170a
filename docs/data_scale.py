"""Estimate the time, memory and storage to build a dataset of 1 TB or 100 TB on a cluster: a table of docs/scale.md.

`python docs/data_scale.py` writes the table into that page. It extrapolates what `python -m benchmarks.range_tasks`
measured of each task on one core, by the growth of distinct pretokens with the size of a text. The numbers of ranges
and of rounds come from the code.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, exp, lgamma
from pathlib import Path
from typing import Any

from pipelines.cluster.counting_tasks import FAN_IN, range_bytes

PAGE = Path(__file__).with_name("scale.md")
BEGIN, END = "<!-- begin: written by python docs/data_scale.py -->", "<!-- end -->"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
MEASURED: dict[str, Any] = json.loads((RESULTS / "range_tasks.json").read_text(encoding="utf-8"))["corpora"]
BIG: dict[str, Any] = json.loads((RESULTS / "big-corpus.json").read_text(encoding="utf-8"))

CORES = 1000
SIZES = (10**12, 10**14)
SHARD_BYTES = 1e9
STORAGE_SPEED = 100e9  # bytes/s that the storage reads or writes for all cores together
LARGE_MEMORY = 1e12  # bytes of the machine that trains the vocabulary
# The power of a text's size with which its distinct pretokens grow (Heaps' law).
EXPONENTS = {"English": 0.59, "multilingual": 0.85}
# Memory and seconds of each distinct pretoken in finding 32,000 merges.
MERGE_BYTES = (BIG["phases"]["merge"]["peak_memory_mb"] * 1e6) / BIG["distinct_pretokens"]
MERGE_SECONDS = BIG["phases"]["merge"]["seconds"] / BIG["distinct_pretokens"]


@dataclass(frozen=True)
class Build:
    """A vocabulary and a dataset made from `size` bytes of a kind of text."""

    kind: str
    size: int

    @property
    def measured(self) -> dict[str, float]:
        """What the tasks take on one core."""
        return MEASURED[self.kind]

    def distinct(self, size: float) -> float:
        """Return the expected number of distinct pretokens in `size` bytes."""
        return self.measured["distinct"] * (size / self.measured["bytes"]) ** EXPONENTS[self.kind]

    def kept(self, least_count: int) -> float:
        """Return how many distinct pretokens occur at least `least_count` times.

        In a Pitman-Yor process with discount d, types grow as the power d of the tokens, and the share of types that
        occur c times or more is G(c - d) / (G(c) G(1 - d)), with the gamma function G (Pitman, Combinatorial Stochastic
        Processes, 2006, chapter 3).
        """
        d = EXPONENTS[self.kind]
        return self.distinct(self.size) * exp(lgamma(least_count - d) - lgamma(least_count) - lgamma(1 - d))

    @property
    def least_count(self) -> int:
        """The smallest power of two as --min-count with which merging fits in LARGE_MEMORY; 1 keeps all."""
        count = 1
        while self.kept(count) * MERGE_BYTES > LARGE_MEMORY:
            count *= 2
        return count

    @property
    def ranges(self) -> int:
        return ceil(self.size / range_bytes(self.size))

    @property
    def ids(self) -> float:
        """Bytes of the token ids: 2 for each, up to 65,536 entries."""
        return 2 * self.size / self.measured["bytes_per_token"]

    def on_ranges(self, speed: float) -> float:
        """Return the seconds of one task for each range. speed: bytes/s of one core."""
        return max(_waves(self.ranges) * range_bytes(self.size) / speed, self.size / STORAGE_SPEED)

    @property
    def writing(self) -> float:
        """Seconds of copying the ids into shards."""
        seconds = _waves(ceil(self.ids / SHARD_BYTES)) * SHARD_BYTES / self.measured["write_speed"]
        return max(seconds, 2 * self.ids / STORAGE_SPEED)

    def rounds(self) -> Iterator[tuple[int, float]]:
        """Yield the number of count files before each round of sums, and the bytes of text that one of them counts."""
        files, size = self.ranges, float(range_bytes(self.size))
        while files > FAN_IN:
            yield files, size
            files, size = ceil(files / FAN_IN), size * FAN_IN
        yield files, self.size / files

    @property
    def adding(self) -> float:
        """Seconds of all rounds of sums; the last one is on one core of the machine that trains."""
        *rounds, (last, size) = self.rounds()
        rows = last * self.distinct(size)
        for files, size in rounds:
            rows += _waves(ceil(files / FAN_IN)) * FAN_IN * self.distinct(size)
        return rows / self.measured["add_rows_per_s"]

    @property
    def count_files(self) -> float:
        """Bytes of the count files of all rounds."""
        return sum(files * self.distinct(size) for files, size in self.rounds()) * self.measured["count_file_bytes"]


def _waves(tasks: int) -> int:
    return ceil(tasks / CORES)


def table() -> str:
    """Return the table as Markdown."""
    builds = [Build(kind, size) for kind in EXPONENTS for size in SIZES]
    kept = [each.kept(each.least_count) for each in builds]
    rows = [
        ("ranges", *(f"{each.ranges:,} of {_bytes(range_bytes(each.size))}" for each in builds)),
        ("count", *(_time(each.on_ranges(each.measured["count_speed"])) for each in builds)),
        ("distinct pretokens", *(_number(each.distinct(each.size)) for each in builds)),
        ("count files", *(_bytes(each.count_files) for each in builds)),
        ("add up", *(_time(each.adding) for each in builds)),
        ("`--min-count` for 1 TB of memory", *(str(each.least_count) for each in builds)),
        ("pretokens kept", *map(_number, kept)),
        ("memory to merge", *(_bytes(number * MERGE_BYTES) for number in kept)),
        ("merge, one machine", *(_time(number * MERGE_SECONDS) for number in kept)),
        ("encode", *(_time(each.on_ranges(each.measured["encode_speed"])) for each in builds)),
        ("write shards", *(_time(each.writing) for each in builds)),
        ("token ids", *(_bytes(each.ids) for each in builds)),
        ("storage while building", *(_bytes(2 * each.ids) for each in builds)),
    ]
    heads = ("", *(f"{each.kind}, {_bytes(each.size)}" for each in builds))
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ("---",) * len(heads), *rows))


def _number(value: float) -> str:
    return f"{value / 1e9:,.3g} billion" if value >= 1e9 else f"{value / 1e6:,.3g} million"


def _bytes(value: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value / 1e6:.3g} MB"


def _time(seconds: float) -> str:
    for unit, factor in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.0f} {unit}"
    return f"{seconds:.0f} s"


def page(text: str) -> str:
    """Return the page `text` with its table replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(table())

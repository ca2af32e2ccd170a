"""A case of the tokenizer benchmark: one workload on one text, its contestants, comparisons and verdicts.

A time counts only after its result has been checked.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness import Worker, turns
from benchmarks.peers import OURS, environment

REFERENCE, EQUAL, OWN_RULES = "reference", "equal", "own rules"
NOTHING = "no result of ours to compare with"
NO_TIME = "no valid time of ours"


@dataclass(kw_only=True, eq=False)
class Row:
    """One contestant: its job, what each run measured, and how its result compares with ours.

    result: reference, equal, own rules, or an error. Only times of the first two count.
    """

    peer: str
    way: str = ""
    threads: int = 1
    job: dict = field(default_factory=dict, repr=False)
    runs: list[dict] = field(default_factory=list)
    result: str = ""

    @property
    def name(self) -> str:
        return f"{self.peer}, {self.way}" if self.way else self.peer

    @property
    def counts(self) -> bool:
        return bool(self.runs) and self.result in (REFERENCE, EQUAL)

    def take(self, verdict: str, run: dict) -> None:
        """Record a run and its verdict. Later runs of the reference stay the reference."""
        self.runs.append(run)
        if self.result == REFERENCE and verdict == EQUAL:
            return
        self.result = verdict if self.result in ("", verdict) else f"{self.result}, then {verdict}"

    def fail(self, error: str) -> None:
        """Record an error and drop all times of this contestant."""
        self.runs, self.result = [], error

    def minimum(self, key: str = "seconds") -> float:
        return min(run[key] for run in self.runs)

    def median(self, key: str = "seconds") -> float:
        return statistics.median(run[key] for run in self.runs)

    def has(self, key: str) -> bool:
        return bool(self.runs) and all(run.get(key) is not None for run in self.runs)

    def as_dict(self) -> dict:
        return {"peer": self.peer, "way": self.way, "threads": self.threads, "result": self.result, "runs": self.runs}


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Limits of a race.

    rounds: turns of each contestant. timeout: seconds for one turn. total: seconds after which a contestant gets no
    further turn.
    """

    rounds: int
    timeout: float = 600
    total: float = 20


def race(rows: list[Row], patience: Patience, compare: Callable[[Row, Path], str], folder: Path) -> Iterator[Row]:
    """Run each row's job in turn, `rounds` times. Yields each row before its turn so that callers can show progress.

    compare(row, result file) returns the verdict. A row that fails loses its times and gets no more turns.
    """
    result = folder / "result.npy"
    spent = dict.fromkeys(rows, 0.0)
    for number, row in turns(rows, patience.rounds):
        if (number and not row.runs) or spent[row] > patience.total:
            continue
        yield row
        started = time.perf_counter()
        answer = run_job(row.job | {"result": str(result)}, row.threads, patience.timeout)
        spent[row] += time.perf_counter() - started
        if "error" in answer:
            row.fail(answer["error"])
            continue
        row.take(compare(row, result), answer)
        result.unlink(missing_ok=True)


def run_job(job: dict, threads: int, timeout: float = 600, extra_environment: dict[str, str] | None = None) -> dict:
    """Run one job in a fresh process and return its answer, or an `error`."""
    with Worker("benchmarks.worker", job, environment=environment(threads) | (extra_environment or {})) as worker:
        return worker.answer(timeout)


def best(
    rows: list[Row], peers: set[str] | None = None, threads: int | None = None, key: str = "seconds"
) -> Row | None:
    """Return the valid row of `peers` (default: all but us) with at most `threads` threads and the least `key`.

    Rows without `key` are left out: later passes of slow contestants are not measured.
    """
    found = [
        row
        for row in rows
        if row.counts
        and row.has(key)
        and (row.peer in peers if peers else row.peer != OURS)
        and (threads is None or row.threads <= threads)
    ]
    return min(found, key=lambda row: row.minimum(key), default=None)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A target, the measured result in words, and whether the target is met."""

    target: str
    found: str
    met: bool


@dataclass(kw_only=True)
class Case:
    """One workload on one text of `size` bytes. Contestants are compared by their minimum times.

    limit: the least seconds that any program needs on this machine. limit_says: how the limit is composed.
    by_processor: whether CPU seconds on one thread are compared instead; they depend less on other load.
    """

    work: str
    name: str
    size: int | None = None
    by_processor: bool = False
    limit: float | None = None
    limit_says: str = ""
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ours(self, threads: int) -> Row | None:
        return best([row for row in self.rows if row.threads == threads], {OURS})

    def judge(self, target: str, found: str, met: bool) -> None:
        self.verdicts.append(Verdict(target=target, found=found, met=bool(met)))

    def judge_time(self, ours: Row | None, theirs: Row | None, factor: float, target: str) -> None:
        """Judge whether our time is at most `factor` of theirs. Without a valid time of theirs there is no verdict."""
        if theirs and not (ours and ours.counts):
            self.judge(target, NO_TIME, False)
        elif theirs:
            ratio = ours.minimum() / theirs.minimum()
            threads = f" ({threads_name(theirs.threads)})" if any(row.threads > 1 for row in self.rows) else ""
            self.judge(target, f"{ratio:.2f} of the time of {theirs.name}{threads}", ratio <= factor)

    def judge_speed(self, peers: tuple[str, ...], factor: float, key: str, target: str) -> None:
        """Judge whether we are `factor` times as fast as the fastest of `peers` on one thread, by CPU seconds."""
        ours, theirs = (best(self.rows, names, 1, key) for names in ({OURS}, {*peers}))
        if theirs and not ours:
            self.judge(target, NO_TIME, False)
        elif theirs:
            ratio = theirs.minimum(key) / ours.minimum(key)
            self.judge(target, f"{ratio:.2f} times {theirs.name}", ratio >= factor)

    def judge_memory(self, ours: Row | None, peers: tuple[str, ...]) -> None:
        """Judge the growth of memory during the call. Memory held before belongs to the interpreter and libraries."""
        rows = [row for row in self.rows if row.peer in peers and row.counts and row.has("peak")]
        target = f"memory beyond the interpreter's own at most that of the leanest of {' and '.join(peers)}"
        if rows and ours is None:
            self.judge(target, NO_TIME, False)
        elif rows and ours.has("peak"):
            grown = {row: row.median("peak") - row.median("before") for row in (ours, *rows)}
            leanest = min(rows, key=grown.__getitem__)
            found = f"{grown[ours] / 1e6:.0f} MB, {leanest.name} {grown[leanest] / 1e6:.0f} MB"
            self.judge(target, found, grown[ours] <= grown[leanest])

    def judge_beside(self, ours: Row | None, factor: float, peer: str) -> None:
        """Judge whether we are `factor` times as fast as a peer that takes turns with us in the same processes."""
        target = f"at least {factor} times {peer}'s speed"
        if ours is None:
            self.judge(target, NO_TIME, False)
        else:
            ratio = statistics.median(run["beside"] / run["seconds"] for run in ours.runs)
            self.judge(target, f"{ratio:.1f} times", ratio >= factor)

    def as_dict(self) -> dict:
        return vars(self) | {"rows": [row.as_dict() for row in self.rows], "verdicts": [*map(vars, self.verdicts)]}


def threads_name(number: int) -> str:
    return "one thread" if number == 1 else f"{number} threads"


def comparing_merges(orders: dict[str, list[str]]) -> Callable[[Row, Path], str]:
    """Return a function that compares merges with ours for the same byte order: from `orders`, else our first row."""

    def compare(row: Row, result: Path) -> str:
        order = row.job["byte_order"]
        if order is None:
            return OWN_RULES
        merges = result.read_text().splitlines()
        if order not in orders and row.peer == OURS:
            orders[order] = merges
            return REFERENCE
        return compare_merges(merges, orders[order]) if order in orders else NOTHING

    return compare


def comparing_ids() -> Callable[[Row, Path], str]:
    """Return a function that compares ids with the ids of our first row."""
    expected = None

    def compare(row: Row, result: Path) -> str:
        nonlocal expected
        ids = np.load(result)
        if expected is None and row.peer == OURS:
            expected = ids
            return REFERENCE
        return NOTHING if expected is None else compare_ids(ids, expected)

    return compare


def compare_merges(merges: list[str], expected: list[str]) -> str:
    """Compare merges pair by pair, or token by token if the peer keeps no pairs."""
    if merges and " " not in merges[0]:
        expected = [merge.replace(" ", "") for merge in expected]
    if merges == expected:
        return EQUAL
    pairs = zip(merges, expected, strict=False)
    first = next((i for i, (theirs, ours) in enumerate(pairs) if theirs != ours), None)
    if first is None:
        return f"differs: {len(merges):,} merges, not {len(expected):,}"
    return f"differs from merge {first + 1:,} on"


def compare_ids(ids: np.ndarray, expected: np.ndarray) -> str:
    if np.array_equal(ids, expected):
        return EQUAL
    length = min(len(ids), len(expected))
    unequal = np.flatnonzero(ids[:length] != expected[:length])
    first = unequal[0] if len(unequal) else length
    return f"differs: {len(ids):,} ids, not {len(expected):,}, the first at {first:,}"

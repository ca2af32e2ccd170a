"""Run contestants in turns, each turn in a fresh process. A time counts only after its result has been checked."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import OURS, environment
from benchmarks.texts import ROOT

REFERENCE, EQUAL, OWN_RULES = "reference", "equal", "own rules"


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
    for number in range(patience.rounds):
        for row in rows:
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
    words = [sys.executable, "-m", "benchmarks.worker", json.dumps(job)]
    settings = os.environ | environment(threads) | (extra_environment or {})
    try:
        finished = subprocess.run(words, cwd=ROOT, env=settings, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {timeout:.0f} s"}
    if finished.returncode or not finished.stdout:
        last = finished.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        return {"error": f"ended with status {finished.returncode}: {last[0]}"[:200]}
    return json.loads(finished.stdout)


def best(rows: list[Row], peers: set[str] | None = None, threads: int | None = None) -> Row | None:
    """Return the fastest valid row of `peers` (default: all but us) with at most `threads` threads."""
    found = [
        row
        for row in rows
        if row.counts
        and (row.peer in peers if peers else row.peer != OURS)
        and (threads is None or row.threads <= threads)
    ]
    return min(found, key=Row.minimum, default=None)

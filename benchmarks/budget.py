"""Compare `bytelm train --minutes` with nanoGPT's and transformers' recipes after equal minutes of training.

    python -m benchmarks.budget --books FILE --multilingual FILE --gpt2 FOLDER [--minutes-limit 5] [--rows books:1]

Contestants train one after the other, each in its own process, on the same passages (benchmarks/budget_texts.py) with
the same number of threads. Each peer first tries its four settings (benchmarks/budget_peers.py) for 5 minutes on books.
The setting with the fewest bits per byte on the validation passages then trains all rows of the peer. Only training
steps count as minutes. Setup, vocabulary, encoding, validation and checkpoints are timed separately. A finished run
scores the test passages once, which is not timed. The schedules of peers follow the elapsed share of the minutes, as
ours do. Each result is written to budget.json at once, so the same command resumes after an interruption. A run with
less than half of the steps that other seeds took was disturbed by other work on the machine, and is trained again. On
another machine the command keeps the search and measures all rows anew, since equal minutes need equal machines. It
does not compare versions: after a change of bytelm or of a peer, choose another --out. budget.md shows all results so
far.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.budget_peers import PEERS
from benchmarks.budget_texts import Text, written
from benchmarks.harness import RESULTS, Worker, command_line, device_name, heading, record, run_command, say, table
from lm.metrics.intervals import interval

OURS = "bytelm"
# SEEDS: number of seeds by minutes of training. The only row of 20 minutes is on books.
TEXTS, SEEDS = ("books", "code", "multilingual"), {1: 3, 5: 3, 20: 1}
SEARCH_MINUTES, SEARCH_TEXT = 5, "books"
GOAL = 0.97
LEAST_STEPS = 0.5
DRAWS = 10_000

Run = dict[str, Any]
"""The recorded result of one training."""


@dataclass(frozen=True)
class Row:
    """A text and the minutes of training on it."""

    text: str
    minutes: int

    def __str__(self) -> str:
        return f"{self.text}:{self.minutes}"


ROWS = tuple(Row(text, minutes) for minutes in SEEDS for text in TEXTS if minutes < 20 or text == SEARCH_TEXT)


class Benchmark:
    """The results so far, and the methods that add more."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self._file = options.out / "budget.json"
        self._machine = device_name("cpu")
        made_with = {"threads": options.threads, "minute_seconds": options.minute_seconds}
        self.result: dict[str, Any] = {**made_with, "texts": {}, "runs": []}
        if self._file.exists():
            self.result = json.loads(self._file.read_text())
            if changed := [name for name, value in made_with.items() if self.result[name] != value]:
                raise SystemExit(f"{self._file} was measured with another {changed[0]}: choose another --out")
            again = disturbed(self.result)
            self.result["runs"] = [run for run in self.result["runs"] if run not in again]

    def text(self, name: str) -> Text:
        """Return a text. Raises SystemExit if the recorded results are for other passages."""
        corpus = {"books": self.options.books, "multilingual": self.options.multilingual}.get(name, "stdlib")
        text = written(name, [str(corpus)], self.folder / "texts")
        found = text.fingerprint() | {"corpus": Path(corpus).name}
        if self.result["texts"].setdefault(name, found) != found:
            raise SystemExit(f"{self._file} has results for other passages of {name}: choose another --out")
        return text

    def run(self, kind: str, contestant: str, setting: str, row: Row, seed: int) -> None:
        """Train and record a run, unless its result is recorded.

        `kind`: "search" scores the validation passages, "row" the test passages.
        """
        key = {"kind": kind, "contestant": contestant, "text": row.text, "minutes": row.minutes, "seed": seed}
        if contestant != OURS:
            key["setting"] = setting
        if kind == "row":
            key["machine"] = self._machine
        runs: list[Run] = self.result["runs"]
        earlier = [run for run in runs if key.items() <= run.items()]
        if any("error" not in run for run in earlier):
            return
        say(f"{kind}: {contestant} {setting}, {row}, seed {seed}")
        text, seconds = self.text(row.text), row.minutes * self.options.minute_seconds
        job = {"threads": self.options.threads, "scored": str(text.path("validation" if kind == "search" else "test"))}
        if contestant == OURS:
            found = self._ours(text, seconds, seed, job)
        else:
            gpt2 = str(self.options.gpt2 or "")
            job |= {"contestant": contestant, "setting": setting, "train": str(text.path("train")), "gpt2": gpt2}
            found = self._worker(job | {"seconds": seconds, "seed": seed})
        self.result["runs"] = [run for run in runs if run not in earlier] + [key | found | {"machine": self._machine}]
        self.write()
        if "error" in found:
            say(f"failed: {found['error']}")

    def _ours(self, text: Text, seconds: float, seed: int, job: dict[str, Any]) -> Run:
        bytelm = str(Path(sys.executable).with_name("bytelm"))
        with tempfile.TemporaryDirectory() as out:
            words = [
                "train",
                text.corpus,
                "--minutes",
                f"{seconds / 60:.6g}",
                "--seed",
                str(seed),
                "--out",
                f"{out}/my",
            ]
            done = run_command([bytelm, *words], self._threads(), Path(out))
            if done["error"]:
                return {"error": done["error"]}
            found = self._worker(job | {"run": f"{out}/my/gpt"})
        return found | {"setup_seconds": done["seconds"] - found.get("seconds", 0.0)}

    def _worker(self, job: dict[str, Any]) -> Run:
        with Worker("benchmarks.budget_worker", job, environment=self._threads()) as worker:
            return worker.answer()

    def _threads(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self.options.threads)}

    def best_setting(self, peer: str) -> str:
        """Return the setting of a peer with the fewest bits per byte on the validation passages."""
        tried = [run for run in self.result["runs"] if (run["kind"], run["contestant"]) == ("search", peer)]
        found = {run["setting"]: run["bits_per_byte"] for run in tried if "error" not in run}
        if not found:
            raise SystemExit(f"no setting of {peer} could be trained: {tried[0]['error']}")
        return min(found, key=found.__getitem__)

    def write(self) -> None:
        """Write budget.json and budget.md."""
        command = command_line("benchmarks.budget", sys.argv[1:])
        record(self.options.out, "budget", self.result, page(self.result, command))


def measure(bench: Benchmark) -> None:
    """Run the missing trainings: the search first, then the chosen rows, the shortest first."""
    rows = [row for row in ROWS if str(row) in bench.options.rows and row.minutes <= bench.options.minutes_limit]
    search = Row(SEARCH_TEXT, SEARCH_MINUTES)
    for number in range(len(PEERS[0].settings)):
        for peer in PEERS:
            bench.run("search", peer.name, peer.settings[number].name, search, 0)
    best = {peer.name: bench.best_setting(peer.name) for peer in PEERS}
    for row in rows:
        for seed in range(SEEDS[row.minutes]):
            for contestant in (OURS, *best):
                bench.run("row", contestant, best.get(contestant, ""), row, seed)


def disturbed(result: dict[str, Any]) -> list[Run]:
    """Return the runs that took less than LEAST_STEPS times the median number of steps over the seeds.

    Trials with shorter minutes have none.
    """
    seeds: dict[tuple[Any, ...], list[Run]] = {}
    for run in result["runs"] if result["minute_seconds"] == 60 else ():
        if run["kind"] == "row" and "error" not in run:
            same = (run[name] for name in ("contestant", "text", "minutes", "machine"))
            seeds.setdefault(tuple(same), []).append(run)
    return [
        run
        for group in seeds.values()
        for run in group
        if run["steps"] < LEAST_STEPS * statistics.median(each["steps"] for each in group)
    ]


def difference(ours: Sequence[Run], theirs: Sequence[Run]) -> tuple[float, float, float]:
    """Return our bits per byte minus theirs, and its 95 % interval.

    Each bootstrap sample draws passages, the same for both sides, and seeds for each side (Efron and Tibshirani 1993,
    13.3).
    """
    draw = np.random.default_rng(0)
    sizes = np.array(ours[0]["bytes"], float)
    bits = [np.array([run["bits"] for run in runs]) for runs in (ours, theirs)]  # (seeds, passages)
    found = []
    for _ in range(DRAWS):
        counts = np.bincount(draw.integers(len(sizes), size=len(sizes)), minlength=len(sizes))
        means = [each[draw.integers(len(each), size=len(each))].mean(axis=0) for each in bits]
        found.append((means[0] - means[1]) @ counts / (sizes @ counts))
    return float((bits[0].mean(axis=0) - bits[1].mean(axis=0)).sum() / sizes.sum()), *interval(np.array(found))


VERDICT = ("text", "minutes", "seeds", "ratio", "difference", "verdict", "machine")
RUN = (
    *("text", "minutes", "contestant", "setting", "seed", "bits per byte", "tokens", "parameters", "s", "other s"),
    "machine",
)


def page(result: dict[str, Any], command: str) -> str:
    """Return budget.md."""
    facts = f"the machines below, with {result['threads']} threads for each training, one at a time."
    if result["minute_seconds"] != 60:
        facts += f" A trial of the benchmark: a minute has {result['minute_seconds']:g} seconds."
    search = [run for run in result["runs"] if run["kind"] == "search"]
    lines = [
        *heading("Bits per byte after equal minutes of training", command, facts),
        "Bits per byte of the test passages, which a finished run scores once: the mean over seeds, with the range. "
        "Only training steps count as minutes. `other s` is the rest: setup, vocabulary and encoding, and for bytelm "
        "also validation, checkpoints, evaluation and report. bytelm wins a row if its `ratio` to the best peer is at "
        f"most {GOAL} and the 95 % interval of the difference, over passages and seeds, is below 0. The peers are "
        "`GPT2LMHeadModel` with the settings of benchmarks/budget_peers.py.",
        "",
        *table(
            (*VERDICT[:3], OURS, *(peer.name for peer in PEERS), *VERDICT[3:]),
            _verdicts(result["runs"]),
        ),
        "",
        *(
            f"**{run['contestant']}, {run['text']}, {run['minutes']} minutes, seed {run['seed']}**: {run['steps']:,} "
            "steps, less than half of other seeds'. The same command trains it again.\n"
            for run in disturbed(result)
        ),
        "## Runs",
        "",
        *table(RUN, (_cells(run) for run in result["runs"] if run["kind"] == "row")),
        "",
        f"## Search: {SEARCH_MINUTES} minutes on {SEARCH_TEXT}, bits per byte of the validation passages",
        "",
        *table(
            ("peer", "setting", "bits per byte", "tokens", "parameters", "dtype", "machine"),
            (
                (run["contestant"], run["setting"], *_reached(run), run.get("dtype", ""), run["machine"])
                for run in sorted(search, key=lambda run: (run["contestant"], run.get("bits_per_byte", 99.0)))
            ),
        ),
        "",
        "## Texts",
        "",
        *table(
            ("text", "corpus", "train", "validation", "test"),
            (
                (name, text["corpus"], *(f"`{text[split]}`" for split in ("train", "validation", "test")))
                for name, text in result["texts"].items()
            ),
        ),
        "",
        "First 16 hexadecimal digits of the SHA-256 of each split.",
        "",
    ]
    return "\n".join(lines)


def _verdicts(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """Yield a row of the first table for each text, time and machine that has results of every contestant."""
    for row, machine in product(ROWS, dict.fromkeys(run["machine"] for run in runs)):
        of: dict[str, list[Run]] = {}
        for run in runs:
            where = run["kind"], run["text"], run["minutes"], run["machine"]
            if where == ("row", row.text, row.minutes, machine) and "error" not in run:
                of.setdefault(run["contestant"], []).append(run)
        if len(of) <= len(PEERS):
            continue
        reached = {name: [run["bits_per_byte"] for run in found] for name, found in of.items()}
        best = min((peer.name for peer in PEERS), key=lambda name: statistics.fmean(reached[name]))
        ratio = statistics.fmean(reached[OURS]) / statistics.fmean(reached[best])
        change, low, high = difference(of[OURS], of[best])
        cells = [_mean_and_range(reached[name]) for name in (OURS, *(peer.name for peer in PEERS))]
        seeds = min(map(len, of.values()))
        whole = "" if seeds == SEEDS[row.minutes] else " so far"
        verdict = ("won" if ratio <= GOAL and high < 0 else "**lost**") + whole
        shown = f"{change:+.3f} ({low:+.3f} to {high:+.3f})"
        yield (row.text, f"{row.minutes}", f"{seeds}", *cells, f"{ratio:.3f} of {best}", shown, verdict, machine)


def _mean_and_range(bits: Sequence[float]) -> str:
    spread = f" ({min(bits):.3f} to {max(bits):.3f})" if len(bits) > 1 else ""
    return f"{statistics.fmean(bits):.3f}{spread}"


def _reached(run: Run) -> tuple[str, ...]:
    if "error" in run:
        return run["error"], "", ""
    return f"{run['bits_per_byte']:.4f}", f"{run['tokens']:,}", f"{run['parameters']:,}"


def _cells(run: Run) -> tuple[str, ...]:
    times = (f"{run[name]:.1f}" if name in run else "" for name in ("seconds", "setup_seconds"))
    names = run["text"], f"{run['minutes']}", run["contestant"], run.get("setting", ""), f"{run['seed']}"
    return *names, *_reached(run), *times, run["machine"]


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budget", description=" ".join(__doc__.split("\n\n")[0].split())
    )
    parser.add_argument("--books", type=Path, help="corpus of English books")
    parser.add_argument("--multilingual", type=Path, help="corpus in many languages")
    parser.add_argument("--gpt2", type=Path, help="folder with GPT-2's encoder.json and vocab.bpe")
    parser.add_argument("--rows", nargs="+", choices=[*map(str, ROWS)], default=[*map(str, ROWS)], help="default: all")
    parser.add_argument("--minutes-limit", type=int, default=max(SEEDS), help="leave out longer rows; default: 20")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of a training")
    parser.add_argument(
        "--minute-seconds",
        type=float,
        default=60.0,
        help="seconds that count as a minute, for a trial of the benchmark; needs another --out",
    )
    parser.add_argument("--folder", type=Path, help="folder of the passages; default: a temporary one")
    parser.add_argument("--out", type=Path, default=RESULTS, help="results folder")
    options = parser.parse_args(arguments)
    if options.minute_seconds != 60 and options.out == RESULTS:
        parser.error("--minute-seconds is only for trials: give another --out")
    for name in ("books", "multilingual", "gpt2"):
        path = getattr(options, name)
        if path is not None and not path.exists():
            parser.error(f"--{name} {path}: there is no such file or folder")
    if options.books is None:
        parser.error(f"--books is missing: the search of the peers trains on {SEARCH_TEXT}")
    if options.multilingual is None and any(row.startswith("multilingual") for row in options.rows):
        parser.error("--multilingual is missing: give it, or --rows without this text")
    return options


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    with tempfile.TemporaryDirectory() as folder:
        measure(Benchmark(options, options.folder or Path(folder)))
    print((options.out / "budget.md").read_text())


if __name__ == "__main__":
    main(sys.argv[1:])

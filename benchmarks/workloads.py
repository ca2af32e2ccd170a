"""The workloads of the tokenizer benchmark: each defines cases, contestants, comparisons, limits and targets."""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import (
    EQUAL,
    NO_TIME,
    NOTHING,
    REFERENCE,
    Case,
    Patience,
    Row,
    best,
    comparing_ids,
    comparing_merges,
    race,
    run_job,
    threads_name,
)
from benchmarks.character_bpe_encoding import character_bpe
from benchmarks.harness import ROOT, run_command, turns
from benchmarks.peers import DISTRIBUTIONS, OURS, environment, installed_version
from benchmarks.peers.encoding import ENCODERS, VocabularyFiles
from benchmarks.peers.starting import FLOORS, PROGRAMS, program
from benchmarks.peers.training import TRAINERS, tiktoken_spelling
from benchmarks.texts import Text, hard_texts, size_name
from benchmarks.unigram_encoding import unigram
from benchmarks.wordpiece import wordpiece

PATTERNS = ("gpt2", "cl100k")
READ_ONCE = "reading the bytes once"


@dataclass(kw_only=True)
class Session:
    """Settings that all workloads share. begin(case) registers a case; show(case, row) reports whose turn it is."""

    texts: list[Text]
    line_texts: list[Text]
    vocabulary: VocabularyFiles
    vocab_size: int
    folder: Path
    threads: tuple[int, ...]
    patience: Patience
    quick: bool
    wanted: Callable[[str], bool]
    bandwidth: float
    latency: float
    begin: Callable[[Case], None]
    show: Callable[[Case, Row], None]

    def race(self, case: Case, compare: Callable[[Row, Path], str], patience: Patience | None = None) -> None:
        self.begin(case)
        for row in race(case.rows, patience or self.patience, compare, self.folder):
            self.show(case, row)

    def limit(self, text: Text, pattern: str) -> dict:
        """Return the seconds to read every byte once and to access memory once per distinct pretoken."""
        from tokenizer import count_pretokens

        distinct = len(count_pretokens(text.path, pattern))
        reading, lookups = text.size / self.bandwidth, distinct * self.latency
        parts = f"{reading * 1e3:.1f} ms to read the bytes, {lookups * 1e3:.1f} ms for {distinct:,} distinct pretokens"
        return {"size": text.size, "limit": reading + lookups, "limit_says": parts}

    def rows(self, adapters: dict[tuple[str, str], Any], threads: tuple[int, ...], job: dict) -> list[Row]:
        """Return a row for each interface of the selected peers and each number of threads that it supports."""
        return [
            Row(peer=peer, way=way, threads=n, job=job | {"peer": peer, "way": way, "threads": n})
            for n in threads
            for (peer, way), adapter in adapters.items()
            if self.wanted(peer) and n <= (adapter.threads or n)
        ]

    def encoders(self, threads: tuple[int, ...], text: Text, **job) -> list[Row]:
        job |= {"vocabulary": vars(self.vocabulary), "path": str(text.path), "separated": str(text.separated)}
        return self.rows(ENCODERS, threads, job)

    def peers(self, text: Text, **job) -> list[Row]:
        """Return one single-threaded row for each encoder, without distinguishing its interfaces for files."""
        rows = {row.peer: row for row in self.encoders((1,), text, **job)}
        for row in rows.values():
            row.way = ""
        return list(rows.values())


def training(session: Session) -> None:
    """Train a vocabulary. Merges are compared with ours for the same order of the single bytes."""
    for text in session.texts:
        for pattern in PATTERNS:
            job = {"task": "train", "path": str(text.path), "vocab_size": session.vocab_size, "pattern": pattern}
            rows = session.rows(TRAINERS, session.threads, job)
            rows = [row for row in rows if pattern in TRAINERS[row.peer, row.way].patterns]
            for row in rows:
                row.job["byte_order"] = TRAINERS[row.peer, row.way].byte_order
            name = f"{text.name}, pattern {pattern}, {session.vocab_size:,} entries"
            case = Case(work="training", name=name, rows=rows, **session.limit(text, pattern))
            raw = session.folder / "raw"
            ours = job | {"peer": OURS, "way": "", "threads": 1, "byte_order": "raw", "result": str(raw)}
            orders = {} if "error" in run_job(ours, 1) else {"raw": raw.read_text().splitlines()}
            session.race(case, comparing_merges(orders))
            case.notes += _training_phases(job, session.threads)
            ours = case.ours(max(session.threads))
            case.judge_time(ours, best(case.rows), 0.5, "at most half the time of the fastest peer")
            case.judge_memory(ours, ("gigatoken", "ffbpe"))


def encoding(session: Session) -> None:
    """Encode a whole file as one document with a new encoder."""
    for text in session.texts:
        rows = session.encoders(session.threads, text, task="encode", again=True)
        case = Case(work="encoding", name=text.name, rows=rows, **session.limit(text, "cl100k"))
        session.race(case, comparing_ids())
        speed, name = (1.5, "1.5 times gigatoken's speed") if text.name == "multilingual" else (1, "gigatoken's speed")
        for threads in session.threads:
            theirs = best(case.rows, {"gigatoken"}, threads)
            case.judge_time(case.ours(threads), theirs, 1 / speed, f"at least {name}, {threads_name(threads)}")
        if (ours := case.ours(min(session.threads))) and ours.has("again"):
            saved = 1 - ours.minimum("again") / ours.minimum()
            case.notes.append(
                f"ours on {threads_name(ours.threads)}: a second pass over the text takes {saved:.0%} less time, since "
                "its tables are filled and it has seen each pretoken"
            )


def document(session: Session) -> None:
    """Encode documents of 4 kB to lists, in turn with tiktoken in the same process."""
    text, expected = session.texts[0], session.folder / "expected"
    settings = {"passes": 1 if session.quick else 10, "documents": 20 if session.quick else 200}
    case = Case(work="document", name=f"4 kB of {text.name}", size=4096, limit=4096 / session.bandwidth)
    case.limit_says = READ_ONCE
    case.rows = session.peers(text, task="document", expected=str(expected), **settings)

    def compare(row: Row, result: Path) -> str:
        return EQUAL if result.read_bytes() == expected.read_bytes() else "differs from tiktoken"

    session.race(case, compare)
    case.judge_beside(case.ours(1), 10, "tiktoken")


def decoding(session: Session) -> None:
    """Decode the ids of a whole file to bytes or text."""
    text, ids = session.texts[0], session.folder / "ids.npy"
    case = Case(work="decoding", name=text.name, size=text.size, rows=session.peers(text, task="decode", ids=str(ids)))
    (making,) = (row for row in session.encoders((1,), text, task="encode", again=False) if row.peer == OURS)
    failed = run_job(making.job | {"result": str(ids)}, 1).get("error")
    if failed:
        case.rows, case.notes = [], [f"no ids to decode: {failed}"]
        session.begin(case)
        return
    number, expected = len(np.load(ids, mmap_mode="r")), text.path.read_bytes()
    case.limit = (4 * number + text.size) / session.bandwidth
    case.limit_says = f"{number:,} ids read and {text.size:,} bytes written"

    def compare(row: Row, result: Path) -> str:
        decoded = result.read_bytes()
        return EQUAL if decoded == expected else f"differs: {len(decoded):,} bytes, not {len(expected):,}"

    session.race(case, compare)
    case.judge_time(case.ours(1), best(case.rows, {"gigatoken"}), 1, "at least gigatoken's speed")


def hard(session: Session) -> None:
    """Encode single inputs with no place to split, or too many; then measure how our time grows with the size."""
    size, long, longer = (50_000, 200_000, 800_000) if session.quick else (1_000_000, 16_000_000, 64_000_000)
    patience = Patience(rounds=session.patience.rounds, timeout=25, total=20)
    for text in hard_texts(session.folder, size):
        case = Case(work="hard input", name=text.name, size=text.size, limit=text.size / session.bandwidth)
        case.limit_says = READ_ONCE
        case.rows = session.encoders((1,), text, task="encode", again=False)
        session.race(case, comparing_ids(), patience)
        case.judge_time(case.ours(1), best(case.rows, {"gigatoken"}), 1, "at most gigatoken's time")
    case = Case(work="hard input", name=f"ours, {size_name(long)} and {size_name(longer)}")
    pairs = list(zip(hard_texts(session.folder, long), hard_texts(session.folder, longer), strict=True))
    for text in (text for pair in pairs for text in pair):
        (row,) = (row for row in session.encoders((1,), text, task="encode", again=False) if row.peer == OURS)
        row.way = text.name
        case.rows.append(row)
    session.race(case, lambda row, result: REFERENCE, Patience(rounds=2, timeout=300, total=60))
    rows = {row.way: row for row in case.rows}
    for text, longer_text in pairs:
        short, growth = rows[text.name], longer // long
        target = f"linear: {growth} times the size takes at most {1.25 * growth:g} times as long"
        if short.counts and rows[longer_text.name].counts:
            times = rows[longer_text.name].minimum() / short.minimum()
            case.judge(target, f"{text.source}: {times:.1f} times", times <= 1.25 * growth)
        else:
            case.judge(target, f"{text.source}: {NO_TIME}", False)


def start(session: Session) -> None:
    """Measure the time from the start of a process until it prints the ids of a short text."""
    ranks, json_ = session.vocabulary.ranks, session.vocabulary.json
    sources = {Row(peer=peer, way=way): source for (peer, way), source in PROGRAMS.items() if session.wanted(peer)}
    floors = {Row(peer=name, result="-"): source for name, source in FLOORS.items()}
    entries = f"{len(Path(ranks).read_bytes().splitlines()):,}"
    case = Case(work="process start", name=f"ids of a short text, {entries} entries", rows=[*sources, *floors])
    session.begin(case)
    arguments = [ranks, json_, tiktoken_spelling("cl100k") if installed_version("tiktoken") else ""]
    settings = environment(max(session.threads))
    for row in sources:
        row.result = _cannot_start(row, session.vocabulary)
    able = {row: source for row, source in (sources | floors).items() if row in floors or not row.result}
    expected, rounds = None, 1 if session.quick else 5 * session.patience.rounds
    for number, row in turns([*able], rounds, warm_up=1):  # the warm-up only loads files into the page cache
        if number > 0 and not row.runs:
            continue  # it has failed
        session.show(case, row)
        answer = timed_start(program(able[row]), arguments, settings)
        if "error" in answer:
            row.fail(answer["error"])
            continue
        ids = answer.pop("ids")
        if row.peer == OURS and expected is None:
            expected = ids
        if number >= 0:
            row.take(_compare_start(row, ids, expected), answer)
    case.limit, case.limit_says = min(row.minimum() for row in floors), "an empty Python program"
    for row in case.rows:
        if row.peer == OURS:
            case.judge_time(row, best(case.rows, {"tiktoken"}), 1, f"at most tiktoken's time, from {row.way}")


def first_use(session: Session) -> None:
    """Measure compilation in the first process after installation, and the start of later processes."""
    compiling, cached = Row(peer=OURS, way="nothing compiled"), Row(peer=OURS, way="from the cache")
    case = Case(work="first use", name="training and encoding, beyond `import numba`", rows=[compiling, cached])
    session.begin(case)
    with tempfile.TemporaryDirectory() as folder:
        for row in (compiling, *[cached] * session.patience.rounds):
            session.show(case, row)
            answer = run_job({"task": "first_use", "peer": OURS}, 1, extra_environment={"NUMBA_CACHE_DIR": folder})
            if "error" in answer:
                row.fail(answer["error"])
            else:
                row.take(REFERENCE, answer | {"seconds": answer["training"] + answer["encoding"]})
    for row, most in ((compiling, 20), (cached, 0.5)):
        target = f"{row.way}: at most {most} s"
        if not row.counts:
            case.judge(target, NO_TIME, False)
        else:
            parts = ", ".join(f"{key} {row.minimum(key):.2f} s" for key in ("training", "encoding"))
            case.notes.append(f"{row.way}: {parts}, after `import numba` {row.minimum('numba'):.2f} s")
            case.judge(target, f"{row.minimum():.2f} s", row.minimum() <= most)


WORKLOADS: dict[str, Callable[[Session], None]] = {
    "training": training,
    "encoding": encoding,
    "wordpiece": wordpiece,
    "unigram": unigram,
    "character-bpe": character_bpe,
    "document": document,
    "decoding": decoding,
    "hard": hard,
    "start": start,
    "first-use": first_use,
}


def _training_phases(job: dict, threads: tuple[int, ...]) -> list[str]:
    """Return notes on the time that our training spends counting and merging."""
    notes = []
    for n in threads:
        phases = run_job(job | {"task": "phases", "peer": OURS, "threads": n}, n)
        if "error" not in phases:
            counting, merging = phases["counting"], phases["merging"]
            notes.append(f"ours on {threads_name(n)}: counting {counting:.2f} s, merging {merging:.2f} s")
    return notes


def _cannot_start(row: Row, vocabulary: VocabularyFiles) -> str:
    if installed_version(row.peer) is None:
        return f"not installed: pip install {DISTRIBUTIONS[row.peer]}"
    return "" if vocabulary.published or row.way != "built in" else "has only published vocabularies"


def _compare_start(row: Row, ids: list[int] | None, expected: list[int] | None) -> str:
    if row.peer in FLOORS:
        return row.result
    if expected is None:
        return NOTHING
    return (REFERENCE if row.peer == OURS else EQUAL) if ids == expected else f"differs: {ids}"[:200]


def timed_start(source: str, arguments: list[str], settings: dict[str, str]) -> dict:
    """Return the seconds until a program prints its first line and the ids in it, or an `error`."""
    ran = run_command([sys.executable, "-c", source, *arguments], settings, ROOT)
    if ran["error"]:
        return {"error": ran["error"]}
    line = ran["output"].partition("\n")[0]
    try:
        return {"seconds": ran["first_line"] or ran["seconds"], "ids": json.loads(line or "null")}
    except ValueError:
        return {"error": f"answered {line!r}, which is not a list of ids"[:200]}

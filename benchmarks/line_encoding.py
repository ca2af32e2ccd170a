"""Encode lines with WordPiece, Unigram or BPE over characters on one thread. Targets are judged by CPU seconds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.cases import EQUAL, NOTHING, REFERENCE, Case, Row, best, compare_ids
from benchmarks.peers import OURS
from benchmarks.peers.lines import LINE_ENCODERS, PieceFiles
from benchmarks.texts import LINE_END, Text

if TYPE_CHECKING:
    from benchmarks.workloads import Session

CONDITIONS = (
    "the first pass has a new encoder with empty caches. Compilation and the building of tables are part of loading, "
    "for the peers as for us. encode_file and encode_files read the file; other interfaces get its lines as a list"
)


def race_line_encoders(session: Session, kind: str, text: Text, files: PieceFiles) -> Case:
    """Encode the lines of a text with every peer that reads this kind of vocabulary, and compare the ids.

    Peers that sum in float32 are compared with our float32 ids, other peers with our ids of tokenizer.json.
    """
    job = {"task": "encode_lines", "vocabulary": vars(files), "path": str(text.path)}
    rows = [
        Row(peer=peer, way=way, job=job | {"peer": peer, "way": way})
        for (peer, way), encoder in LINE_ENCODERS.items()
        if kind in encoder.kinds and session.wanted(peer)
    ]
    case = Case(work=f"{kind} encoding", name=text.name, size=text.size, by_processor=True, rows=rows)
    ours: dict[bool, np.ndarray] = {}  # by whether sums are float32
    encoded: dict[str, np.ndarray] = {}

    def compare(row: Row, result: Path) -> str:
        marked = np.load(result)
        float32 = LINE_ENCODERS[row.peer, row.way].float32
        has_lines = LINE_END in marked
        if has_lines:
            encoded.setdefault(row.name, marked)
        if row.peer == OURS and has_lines and float32 not in ours:
            ours[float32] = marked
            return REFERENCE
        return _comparison(marked, ours[float32], has_lines) if float32 in ours else NOTHING

    session.race(case, compare)
    case.notes += [CONDITIONS, *_lines_that_differ(encoded)]
    return case


def judge_memory(case: Case, *peers: str) -> None:
    """Judge the memory of our fastest interface."""
    case.judge_memory(best(case.rows, {OURS}, 1, "processor"), peers)


def _comparison(marked: np.ndarray, expected: np.ndarray, has_lines: bool) -> str:
    if not has_lines:
        return compare_ids(marked, expected[expected != LINE_END])
    different = _number_of_differences(_lines(marked), _lines(expected))
    return f"differs in {different:,} lines" if different else EQUAL


def _lines_that_differ(encoded: dict[str, np.ndarray]) -> list[str]:
    """Return a note on the number of ids and lines, and on the lines of each peer that differ from `tokenizers`."""
    if "tokenizers" not in encoded:
        return []
    lines = {name: _lines(marked) for name, marked in encoded.items()}
    expected = lines.pop("tokenizers")
    number = len(encoded["tokenizers"]) - len(expected) + 1
    differ = (f"{name} {_number_of_differences(theirs, expected):,}" for name, theirs in lines.items())
    return [f"{number:,} ids in {len(expected) - 1:,} lines; lines that differ from tokenizers: {'; '.join(differ)}"]


def _lines(marked: np.ndarray) -> list[bytes]:
    return [part.tobytes() for part in np.split(marked, np.flatnonzero(marked == LINE_END))]


def _number_of_differences(lines: list[bytes], expected: list[bytes]) -> int:
    return sum(a != b for a, b in zip(lines, expected, strict=True))

"""The WordPiece workload of the tokenizer benchmark: encoding with bert-base-uncased's vocabulary, and training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.cases import EQUAL, NOTHING, REFERENCE, Case, Patience, Row, best, compare_ids
from benchmarks.peers import OURS
from benchmarks.peers.wordpiece import LINE_ENCODERS, WordPieceFiles, alphabet_order, train_bytelm
from benchmarks.texts import LINE_END, SHARED, Text

if TYPE_CHECKING:
    from benchmarks.workloads import Session

CONDITIONS = (
    "the first pass has a new encoder with empty caches. Compilation and the building of tables are part of loading, "
    "for the peers as for us. encode_file and encode_files read the file; other interfaces get its lines as a list"
)
QUICK_ENTRIES = 8000  # multilingual text has 5,000 characters


def wordpiece(session: Session) -> None:
    """Encode lines and train a vocabulary, on one thread. CPU seconds decide."""
    files = wordpiece_files(session)
    for text in session.wordpiece_texts:
        _encoding(session, text, files)
    for text in session.wordpiece_texts:
        _training(session, text, 3 if text.name.startswith("multilingual") else 5)


def wordpiece_files(session: Session) -> WordPieceFiles:
    """Return the published vocabulary of bert-base-uncased, else one trained on the first text."""
    from tokenizer import Tokenizer

    vocab = SHARED / "vectors" / "bert-uncased" / "vocab.txt"
    folder = session.folder / "wordpiece"
    folder.mkdir()
    if not vocab.is_file():
        vocab = folder / "vocab.txt"
        tokens = train_bytelm(session.wordpiece_texts[0].path, session.vocab_size, 1)
        vocab.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    Tokenizer.load(vocab, pattern="bert-uncased").save(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["post_processor"] = None  # splintr cannot leave out [CLS] and [SEP]
    path.write_text(json.dumps(content), encoding="utf-8")
    return WordPieceFiles(vocab=str(vocab), json=str(path))


def _encoding(session: Session, text: Text, files: WordPieceFiles) -> None:
    """Encode the lines of a text, and count the lines whose ids differ from those of `tokenizers`."""
    job = {"task": "encode_lines", "vocabulary": vars(files), "path": str(text.path)}
    rows = [
        Row(peer=peer, way=way, job=job | {"peer": peer, "way": way})
        for peer, way in LINE_ENCODERS
        if session.wanted(peer)
    ]
    case = Case(work="WordPiece encoding", name=text.name, size=text.size, by_processor=True, rows=rows)
    encoded: dict[str, np.ndarray] = {}

    def compare(row: Row, result: Path) -> str:
        marked = np.load(result)
        if not row.way:
            encoded.setdefault(row.peer, marked)
        ids = marked[marked != LINE_END]
        if row.peer == OURS and row.way == "":
            return REFERENCE
        if OURS not in encoded:
            return NOTHING
        return compare_ids(ids, encoded[OURS][encoded[OURS] != LINE_END])

    session.race(case, compare)
    case.judge_speed("nanotoken", 1.3, "processor", "first pass at least 1.3 times nanotoken's speed")
    case.judge_speed("nanotoken", 1, "again_processor", "later passes at least nanotoken's speed")
    case.judge_memory(best(case.rows, {OURS}, 1, "processor"), ("tokenizers",))
    case.notes += [CONDITIONS, *_lines_that_differ(encoded)]


def _lines_that_differ(encoded: dict[str, np.ndarray]) -> list[str]:
    """Return a note on the number of ids and lines, and on the lines of each peer that differ from `tokenizers`."""
    if "tokenizers" not in encoded:
        return []
    lines = {
        peer: [part.tobytes() for part in np.split(marked, np.flatnonzero(marked == LINE_END))]
        for peer, marked in encoded.items()
    }
    expected = lines.pop("tokenizers")
    number = len(encoded["tokenizers"]) - len(expected) + 1
    differ = (
        f"{peer} {sum(a != b for a, b in zip(theirs, expected, strict=True)):,}" for peer, theirs in lines.items()
    )
    return [f"{number:,} ids in {len(expected) - 1:,} lines; lines that differ from tokenizers: {', '.join(differ)}"]


def _training(session: Session, text: Text, factor: float) -> None:
    """Train a vocabulary. Given the same order of the alphabet, ours must have the entries of `tokenizers`."""
    vocab_size = QUICK_ENTRIES if session.quick else session.vocab_size
    job = {"task": "train_pieces", "path": str(text.path), "vocab_size": vocab_size}
    rows = [
        Row(peer=peer, threads=threads, job=job | {"peer": peer, "threads": threads})
        for threads in session.threads
        for peer in (OURS, "tokenizers")
        if session.wanted(peer)
    ]
    name = f"{text.name}, {vocab_size:,} entries"
    case = Case(work="WordPiece training", name=name, size=text.size, by_processor=True, rows=rows)
    ours: list[str] = []

    def compare(row: Row, result: Path) -> str:
        tokens = json.loads(result.read_text())
        if row.peer == OURS:
            ours[:] = ours or tokens
            return REFERENCE if tokens == ours else "differs from our first run"
        if not ours:
            return NOTHING
        expected = train_bytelm(text.path, vocab_size, 1, alphabet_order(tokens))
        different = sum(map(str.__ne__, tokens, expected)) + abs(len(tokens) - len(expected))
        return f"differs in {different:,} entries" if different else EQUAL

    session.race(case, compare, Patience(rounds=session.patience.rounds, total=60))
    case.judge_speed("tokenizers", factor, "processor", f"at least {factor} times tokenizers' speed")
    case.judge_memory(best(case.rows, {OURS}, 1), ("tokenizers",))
    case.notes.append(
        "equal: the same entries with the same ids, given the order of the characters within words, which is random in "
        "tokenizers"
    )

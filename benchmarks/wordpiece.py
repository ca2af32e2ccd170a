"""The WordPiece workload of the tokenizer benchmark: encoding with bert-base-uncased's vocabulary, and training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases import EQUAL, NOTHING, REFERENCE, Case, Patience, Row, best
from benchmarks.line_encoding import judge_memory, race_line_encoders
from benchmarks.peers import OURS
from benchmarks.peers.lines import WORDPIECE, PieceFiles
from benchmarks.peers.wordpiece import alphabet_order, train_bytelm
from benchmarks.texts import SHARED, Text

if TYPE_CHECKING:
    from benchmarks.workloads import Session

QUICK_ENTRIES = 8000  # multilingual text has 5,000 characters


def wordpiece(session: Session) -> None:
    """Encode lines and train a vocabulary, on one thread. Targets are judged by CPU seconds."""
    files = wordpiece_files(session)
    for text in session.line_texts:
        case = race_line_encoders(session, WORDPIECE, text, files)
        case.judge_speed(("nanotoken",), 1.3, "processor", "first pass at least 1.3 times nanotoken's speed")
        case.judge_speed(("nanotoken",), 1, "again_processor", "later passes at least nanotoken's speed")
        judge_memory(case, "tokenizers")
    for text in session.line_texts:
        _training(session, text, 3 if text.name.startswith("multilingual") else 5)


def wordpiece_files(session: Session) -> PieceFiles:
    """Return the published vocabulary of bert-base-uncased, else one trained on the first text."""
    from tokenizer import Tokenizer

    vocab = SHARED / "vectors" / "bert-uncased" / "vocab.txt"
    folder = session.folder / "wordpiece"
    folder.mkdir()
    if not vocab.is_file():
        vocab = folder / "vocab.txt"
        tokens = train_bytelm(session.line_texts[0].path, session.vocab_size, 1)
        vocab.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    Tokenizer.load(vocab, pattern="bert-uncased").save(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["post_processor"] = None  # splintr cannot leave out [CLS] and [SEP]
    path.write_text(json.dumps(content), encoding="utf-8")
    return PieceFiles(json=str(path))


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
    case.judge_speed(("tokenizers",), factor, "processor", f"at least {factor} times tokenizers' speed")
    case.judge_memory(best(case.rows, {OURS}, 1), ("tokenizers",))
    case.notes.append(
        "equal: the same entries with the same ids, given the order of the characters within words, which is random in "
        "tokenizers"
    )

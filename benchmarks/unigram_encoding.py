"""The Unigram workload of the tokenizer benchmark: encoding with T5's vocabulary. `benchmarks.unigram` trains."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from benchmarks.line_encoding import judge_memory, race_line_encoders
from benchmarks.peers import installed_version
from benchmarks.peers.lines import UNIGRAM, PieceFiles
from benchmarks.texts import SHARED

if TYPE_CHECKING:
    from benchmarks.workloads import Session

FASTEST_PEERS = ("sentencepiece", "splintr")


def unigram(session: Session) -> None:
    """Encode lines on one thread. Targets are judged by CPU seconds."""
    files = unigram_files(session)
    for text in session.line_texts:
        case = race_line_encoders(session, UNIGRAM, text, files)
        names = " and ".join(FASTEST_PEERS)
        for key, name in (("processor", "first pass"), ("again_processor", "later passes")):
            case.judge_speed(FASTEST_PEERS, 3, key, f"{name} at least 3 times the speed of the faster of {names}")
        judge_memory(case, *FASTEST_PEERS)
        case.notes.append(
            "the rows sentencepiece and bytelm, .model read a SentencePiece model and sum in float32, which breaks "
            "some ties differently. They are compared with each other"
        )


def unigram_files(session: Session) -> PieceFiles:
    """Return the published vocabulary of T5, else one trained on the first text."""
    from tokenizer import Tokenizer

    published = SHARED / "vectors" / "t5-small" / "tokenizer.json"
    if published.is_file():
        tokenizer = Tokenizer.load(published)
    else:
        options = {"kind": "unigram", "pattern": "nmt_nfkc", "special_tokens": ()}
        tokenizer = Tokenizer.train(session.line_texts[0].path, session.vocab_size, threads=1, **options)
    folder = session.folder / "unigram"
    tokenizer.save(folder)
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["post_processor"] = None  # splintr cannot leave out </s>
    path.write_text(json.dumps(content), encoding="utf-8")
    model = ""
    if installed_version("sentencepiece"):
        tokenizer.as_sentencepiece().save(folder / "sentencepiece")
        model = str(folder / "sentencepiece" / "tokenizer.model")
    return PieceFiles(json=str(path), model=model)

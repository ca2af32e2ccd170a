"""The workload of BPE over characters in the tokenizer benchmark: encoding with a vocabulary like Llama 2's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.line_encoding import judge_memory, race_line_encoders
from benchmarks.peers import installed_version
from benchmarks.peers.lines import CHARACTER_BPE, PieceFiles

if TYPE_CHECKING:
    from benchmarks.workloads import Session

FASTEST_PEERS = ("sentencepiece", "tokenizers")


def character_bpe(session: Session) -> None:
    """Encode lines on one thread. Targets are judged by CPU seconds."""
    files = trained_files(session)
    for text in session.line_texts:
        case = race_line_encoders(session, CHARACTER_BPE, text, files)
        names = " and ".join(FASTEST_PEERS)
        for key, name in (("processor", "first pass"), ("again_processor", "later passes")):
            case.judge_speed(FASTEST_PEERS, 3, key, f"{name} at least 3 times the speed of the faster of {names}")
        judge_memory(case, *FASTEST_PEERS)


def trained_files(session: Session) -> PieceFiles:
    """Return a vocabulary trained on the first text, with byte fallback."""
    from tokenizer import Tokenizer

    options = {"kind": "character-bpe", "special_tokens": (), "limit_alphabet": session.vocab_size // 8}
    tokenizer = Tokenizer.train(session.line_texts[0].path, session.vocab_size, threads=1, **options)
    folder = session.folder / "character-bpe"
    tokenizer.save(folder)
    model = ""
    if installed_version("sentencepiece"):
        tokenizer.as_sentencepiece().save(folder / "sentencepiece")
        model = str(folder / "sentencepiece" / "tokenizer.model")
    return PieceFiles(json=str(folder / "tokenizer.json"), model=model)

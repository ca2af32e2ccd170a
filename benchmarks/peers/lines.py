"""Adapters that encode lines with WordPiece, Unigram or BPE over characters. Each uses the peer's fastest interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.peers import OURS

WORDPIECE, UNIGRAM, CHARACTER_BPE = "WordPiece", "Unigram", "BPE over characters"
# Ids, uint32, of all lines, and the number of ids of each line; None if the interface encodes the file as one text.
Encoded = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True, kw_only=True)
class PieceFiles:
    """A vocabulary as tokenizer.json; Unigram and BPE over characters also as a SentencePiece model."""

    json: str
    model: str = ""


class LineEncoder(Protocol):
    """The interface of an adapter.

    `encode` gets the lines of a file, or reads the file itself. `arrays` converts its result and is not timed.
    kinds: the kinds of vocabulary that the peer reads. float32: whether it sums Unigram scores as sentencepiece does.
    """

    kinds: tuple[str, ...] = (WORDPIECE, UNIGRAM, CHARACTER_BPE)
    float32: bool = False

    def __init__(self, files: PieceFiles): ...

    def encode(self, lines: Sequence[str], path: Path) -> Any: ...

    def arrays(self, encoded: Any) -> Encoded:
        return encoded


class Bytelm(LineEncoder):
    def __init__(self, files):
        self.load(files.json)

    def load(self, path):
        from tokenizer import Tokenizer

        self.tokenizer = Tokenizer.load(path)
        self.tokenizer.warm_up(1)  # the peers build their tables while loading

    def encode(self, lines, path):
        import pyarrow as pa

        return self.tokenizer.encode_arrow(pa.array(lines), threads=1)

    def arrays(self, encoded):
        return encoded.values.to_numpy(), np.diff(encoded.offsets.to_numpy())


class BytelmFile(Bytelm):
    kinds = (WORDPIECE, UNIGRAM)  # BPE over characters keeps line ends, so a file has other ids than its lines

    def encode(self, lines, path):
        return self.tokenizer.encode_file(path, threads=1)

    def arrays(self, encoded):
        return encoded, None


class BytelmModel(Bytelm):
    kinds = (UNIGRAM, CHARACTER_BPE)
    float32 = True

    def __init__(self, files):
        self.load(files.model)


class SentencePiece(LineEncoder):
    kinds = (UNIGRAM, CHARACTER_BPE)
    float32 = True

    def __init__(self, files):
        from sentencepiece import SentencePieceProcessor

        self.tokenizer = SentencePieceProcessor(model_file=files.model)

    def encode(self, lines, path):
        return self.tokenizer.encode(lines, num_threads=1)  # lists are faster than its arrays

    def arrays(self, encoded):
        return _joined(encoded)


class HuggingFace(LineEncoder):
    def __init__(self, files):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(files.json)

    def encode(self, lines, path):
        return [line.ids for line in self.tokenizer.encode_batch_fast(lines, add_special_tokens=False)]

    def arrays(self, encoded):
        return _joined(encoded)


class Nanotoken(LineEncoder):
    kinds = (WORDPIECE,)

    def __init__(self, files):
        import nanotoken

        self.tokenizer = nanotoken.Tokenizer(files.json)

    def encode(self, lines, path):
        return self.tokenizer.encode_batch(lines, add_special_tokens=False, parallel=False)

    def arrays(self, encoded):
        return encoded.ids, encoded.lengths


class NanotokenFile(Nanotoken):
    def encode(self, lines, path):
        return self.tokenizer.encode_files(path, add_special_tokens=False, parallel=False)

    def arrays(self, encoded):
        return encoded.ids, None


class Splintr(LineEncoder):
    kinds = (WORDPIECE, UNIGRAM)

    def __init__(self, files):
        import splintr

        self.tokenizer = splintr.from_json(files.json)

    def encode(self, lines, path):
        return self.tokenizer.encode_batch_flat(lines)

    def arrays(self, encoded):
        ids, offsets = encoded
        return np.frombuffer(ids, dtype=np.uint32), np.diff(np.frombuffer(offsets, dtype=np.int64))


class Tokie(LineEncoder):
    kinds = (WORDPIECE, UNIGRAM)

    def __init__(self, files):
        import tokie

        self.tokenizer = tokie.Tokenizer.from_json(files.json)

    def encode(self, lines, path):
        return self.tokenizer.encode_batch_flat(lines, add_special_tokens=False)


# By peer and, if it has several, by interface.
LINE_ENCODERS: dict[tuple[str, str], type[LineEncoder]] = {
    (OURS, ""): Bytelm,
    (OURS, "encode_file"): BytelmFile,
    (OURS, ".model"): BytelmModel,
    ("tokenizers", ""): HuggingFace,
    ("sentencepiece", ""): SentencePiece,
    ("nanotoken", ""): Nanotoken,
    ("nanotoken", "encode_files"): NanotokenFile,
    ("splintr", ""): Splintr,
    ("tokie", ""): Tokie,
}


def _joined(lists: list[list[int]]) -> Encoded:
    return np.array([i for ids in lists for i in ids], dtype=np.uint32), np.array([*map(len, lists)])

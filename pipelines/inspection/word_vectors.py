"""Word vectors in the text formats of GloVe and word2vec: a word and its numbers on each line."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from corpora.formats.text_files import text_pieces, whole_lines
from corpora.read_options import ReadOptions

MAX_LINE = 2**20  # bytes


@dataclass(frozen=True)
class WordVectors:
    """N words, each once, and their vectors (N, D) float32."""

    words: list[str]
    vectors: np.ndarray


def read_word_vectors(path: Path) -> WordVectors:
    """Return the vectors of a text file, plain or compressed; if a word occurs twice, the first counts.

    The first line may hold the numbers of words and dimensions, as in word2vec. Words may contain spaces.
    Raises ValueError that names the line of a file in another format.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}: give word vectors in the text format of GloVe or word2vec")
    found: dict[str, np.ndarray] = {}
    size, read, promised = 0, 0, None
    too_long = ValueError(f"{path} has a line of more than {MAX_LINE:,} bytes: it is not a file of word vectors")
    for number, line in enumerate(whole_lines(text_pieces(path, ReadOptions()), MAX_LINE, too_long), 1):
        fields = line.decode("utf-8", errors="replace").rstrip().split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            promised, size = int(fields[0]), int(fields[1])
            continue
        size = size or len(fields) - 1
        if fields == [""]:
            continue
        try:
            vector = np.array(fields[-size:], np.float32)
        except ValueError:
            vector = np.empty(0, np.float32)
        if len(fields) <= size or size < 1 or len(vector) != size or not np.isfinite(vector).all():
            wanted = f"a word and {max(1, size)} numbers"
            raise ValueError(f"line {number} of {path} is not {wanted}: it begins with {line[:30]!r}")
        read += 1
        found.setdefault(" ".join(fields[:-size]), vector)
    if not found:
        raise ValueError(f"{path} has no word vectors")
    if promised is not None and promised != read:
        raise ValueError(f"{path} announces {promised:,} words, but has {read:,}: give a complete file")
    return WordVectors(list(found), np.stack(list(found.values())))

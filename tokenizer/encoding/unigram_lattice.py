"""The lattice of a pretoken: its paths are the segmentations into Unigram pieces. Plain Python finds the best path."""

from __future__ import annotations

import struct
from collections import namedtuple
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.unigram_vocabulary import UnigramVocabulary

LARGEST_SUM = 100_000.0  # sentencepiece subtracts larger sums, so that float32 stays exact enough


class Edge(namedtuple("_Edge", ["end", "id", "score"])):
    """A piece at a position of a pretoken. end: in code points; score: in nats."""

    end: int
    id: int
    score: float


class Lattices:
    """The lattices of all pretokens over one vocabulary."""

    def __init__(self, vocabulary: UnigramVocabulary):
        self._vocabulary = vocabulary
        self._ids = vocabulary.matches
        self._scores = vocabulary.edge_scores
        self._longest: dict[str, int] = {}  # characters of the longest piece, by its first character
        for piece in self._ids:
            self._longest[piece[0]] = max(len(piece), self._longest.get(piece[0], 0))

    def edges(self, pretoken: str, start: int) -> Iterator[Edge]:
        """Yield the pieces that begin at `start`, shortest first.

        If no piece is the single character at `start`, the last edge is the unknown character.
        """
        ids, scores = self._ids, self._scores
        has_single = False
        last = min(len(pretoken), start + self._longest.get(pretoken[start], 0))
        for end in range(start + 1, last + 1):
            i = ids.get(pretoken[start:end])
            if i is not None:
                has_single = has_single or end == start + 1
                yield Edge(end, i, scores[i])
        if not has_single:
            yield Edge(start + 1, self._vocabulary.unknown, self._vocabulary.unknown_score)

    def best_path(self, pretoken: str) -> list[tuple[str, int]]:
        """Return the texts and ids of the best segmentation (Viterbi).

        Sums go from left to right, in float64 or, for SentencePiece models, in float32. Among equal sums the path whose
        last piece starts first is the best.
        """
        rounded = nearest_float32 if self._vocabulary.sums_are_float32 else float
        sums: list[float] = [0.0] * (len(pretoken) + 1)
        starts = [-1] * (len(pretoken) + 1)
        ids = [-1] * (len(pretoken) + 1)
        furthest = 0
        for start in range(len(pretoken)):
            before = sums[start]
            if self._vocabulary.sums_are_float32 and abs(before) > LARGEST_SUM:
                for end in range(start + 1, furthest + 1):
                    sums[end] = rounded(sums[end] - before)
                before = 0.0
            for end, i, score in self.edges(pretoken, start):
                candidate = rounded(before + score)
                if starts[end] < 0 or candidate > sums[end]:
                    sums[end], starts[end], ids[end] = candidate, start, i
                furthest = max(furthest, end)
        path = []
        end = len(pretoken)
        while end:
            path.append((pretoken[starts[end] : end], ids[end]))
            end = starts[end]
        return path[::-1]

    def encode(self, pretoken: bytes) -> list[int]:
        """Return the ids of a pretoken."""
        return self.ids_of(self.best_path(pretoken.decode()))

    def ids_of(self, path: list[tuple[str, int]]) -> list[int]:
        """Return the ids of a segmentation. Neighbouring unknown pieces are joined."""
        encoded: list[int] = []
        unknown = ""
        for text, i in path:
            if i == self._vocabulary.unknown:
                unknown += text
                continue
            if unknown:
                encoded += self._vocabulary.unknown_ids(unknown)
                unknown = ""
            encoded.append(i)
        return encoded + self._vocabulary.unknown_ids(unknown) if unknown else encoded


def nearest_float32(value: float) -> float:
    """Return a number rounded to float32."""
    return float(struct.unpack("f", struct.pack("f", value))[0])

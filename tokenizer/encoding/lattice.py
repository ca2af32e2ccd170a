"""The lattice of a pretoken: its paths are the segmentations into Unigram pieces. Plain Python finds the best path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tokenizer.splitting.metaspace import MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.unigram import UnigramVocabulary


class Edge(NamedTuple):
    """A piece at a place of a pretoken. end: in code points."""

    end: int
    id: int
    score: float


class Lattices:
    """The lattices of all pretokens over one vocabulary. In pretokens a space stands for `▁`."""

    def __init__(self, vocabulary: UnigramVocabulary):
        self._vocabulary = vocabulary
        # A piece with a space matches nothing, because pretokens have `▁` in place of spaces.
        self._ids = {piece.replace(MARK, " "): i for piece, i in vocabulary.ids.items() if " " not in piece}
        self._longest: dict[str, int] = {}  # characters of the longest piece, by its first character
        for piece in self._ids:
            self._longest[piece[0]] = max(len(piece), self._longest.get(piece[0], 0))

    def edges(self, pretoken: str, start: int) -> Iterator[Edge]:
        """Yield the pieces that begin at `start`, the shorter first.

        If no piece is the single character at `start`, the last edge is the unknown character.
        """
        ids, scores = self._ids, self._vocabulary.scores
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

        Sums are float64, from left to right. Among equal sums the path whose last piece starts first is the best.
        """
        sums: list[float] = [0.0] * (len(pretoken) + 1)
        starts = [-1] * (len(pretoken) + 1)
        ids = [-1] * (len(pretoken) + 1)
        for start in range(len(pretoken)):
            before = sums[start]
            for end, i, score in self.edges(pretoken, start):
                if starts[end] < 0 or before + score > sums[end]:
                    sums[end], starts[end], ids[end] = before + score, start, i
        path = []
        end = len(pretoken)
        while end:
            path.append((pretoken[starts[end] : end], ids[end]))
            end = starts[end]
        return path[::-1]

    def encode(self, pretoken: bytes) -> list[int]:
        """Return the ids of a pretoken. Neighbouring unknown pieces become one: see `_unknown`."""
        encoded: list[int] = []
        unknown = ""
        for text, i in self.best_path(pretoken.decode()):
            if i == self._vocabulary.unknown:
                unknown += text
                continue
            if unknown:
                encoded += self._unknown(unknown)
                unknown = ""
            encoded.append(i)
        return encoded + self._unknown(unknown) if unknown else encoded

    def _unknown(self, text: str) -> list[int]:
        """Return the ids of joined unknown pieces: the piece that they spell, else their bytes, else unknown."""
        if (i := self._ids.get(text)) is not None:
            return [i]
        byte_ids = self._vocabulary.byte_ids
        if byte_ids is not None:
            found = [byte_ids[byte] for byte in text.replace(" ", MARK).encode()]
            if min(found) >= 0:
                return found
        return [self._vocabulary.unknown]

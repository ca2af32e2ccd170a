"""The segmentations of a text into Unigram pieces: the best ones, random ones, and their probability.

Plain Python, except for the random segmentations of long texts.

A segmentation has the probability exp(sum of the scores of its pieces), up to a constant: Kudo 2018, "Subword
Regularization", sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nsmallest
from math import exp, fsum, log

from tokenizer.encoding.dropout import PLAIN_BYTES
from tokenizer.encoding.unigram_lattice import Lattices

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

    from tokenizer.encoding.kernel_encoder import KernelTables
    from tokenizer.unigram_vocabulary import UnigramVocabulary

LARGEST_WEIGHT = 1e9  # alpha times a score; sums of larger ones would lose whole nats

Path = list[tuple[str, int]]  # texts and ids


class Segmentations:
    """The segmentations of all texts over one vocabulary. Sums of scores are float64, from left to right.

    `sample` encodes the first `plain_bytes` bytes of text in plain Python, and later texts by
    `encoding.segmentation_sampling`.
    tables: returns the tables of the kernels.
    """

    def __init__(
        self, vocabulary: UnigramVocabulary, tables: Callable[[], KernelTables], plain_bytes: int = PLAIN_BYTES
    ):
        self._lattices = Lattices(vocabulary)
        self._pattern = vocabulary.pattern
        self._tables = tables
        self._plain_bytes = plain_bytes
        largest_score = max(map(abs, [*vocabulary.edge_scores, vocabulary.unknown_score]))
        self._largest_alpha = LARGEST_WEIGHT / max(largest_score, 1.0)

    def best(self, text: bytes, n: int) -> list[tuple[list[int], float]]:
        """Return the n best segmentations as ids with their scores in nats, best first; fewer if there are no more."""
        sums = [0.0]
        # Per pretoken: its paths, and for each kept segmentation the index of the one it extends and of its path.
        pretokens: list[tuple[list[Path], list[tuple[int, int]]]] = []
        for pretoken in self._pretokens(text):
            ranked = self._best_paths(pretoken, n)
            pairs = ((before, k) for before in range(len(sums)) for k in range(min(len(ranked), n // (before + 1))))
            chosen = nsmallest(n, pairs, key=lambda pair: -sums[pair[0]] - ranked[pair[1]][1])
            sums = [sums[before] + ranked[k][1] for before, k in chosen]
            pretokens.append(([path for path, _ in ranked], chosen))
        found = []
        for rank, score in enumerate(sums):
            parts = []
            for paths, chosen in reversed(pretokens):
                rank, k = chosen[rank]
                parts.append(self._lattices.ids_of(paths[k]))
            found.append(([i for part in reversed(parts) for i in part], score))
        return found

    def sample(self, text: bytes, alpha: float, random: Random) -> list[int]:
        """Return the ids of a random segmentation, drawn with probability proportional to exp(alpha * score).

        Raises ValueError for an alpha too large to add its products with the scores in float64.
        """
        if alpha > self._largest_alpha:
            raise ValueError(
                f"alpha is {alpha}, but the scores of this vocabulary allow at most {self._largest_alpha:.3g}"
            )
        self._plain_bytes -= len(text)
        if self._plain_bytes < 0:
            from tokenizer.encoding.segmentation_sampling import draw_pieces

            return draw_pieces(text, self._tables(), alpha, random)
        ids: list[int] = []
        for pretoken in self._pretokens(text):
            ids += self._lattices.ids_of(self._draw(pretoken, alpha, random))
        return ids

    def likelihood(self, text: bytes) -> float:
        """Return the log of the summed probabilities of all segmentations, in nats."""
        return fsum(self._sums(pretoken, 1.0)[0] for pretoken in self._pretokens(text))

    def _pretokens(self, text: bytes) -> Iterator[str]:
        return (pretoken.decode() for pretoken in self._pattern.pretokens(text))

    def _best_paths(self, pretoken: str, n: int) -> list[tuple[Path, float]]:
        """Return the n best paths. Each node keeps its n best: no other path to it can begin one of the n best."""
        # Per node: the negative sum, the start of the last piece, the rank there, and the id. The tuples' order breaks
        # ties as `Lattices.best_path` does.
        kept: list[list[tuple[float, int, int, int]]] = [[] for _ in range(len(pretoken) + 1)]
        kept[0] = [(0.0, 0, 0, 0)]
        for start in range(len(pretoken)):
            kept[start] = nsmallest(n, kept[start])
            for end, i, score in self._lattices.edges(pretoken, start):
                kept[end] += [(cost - score, start, rank, i) for rank, (cost, *_) in enumerate(kept[start])]
        kept[-1] = nsmallest(n, kept[-1])
        paths = []
        for place in kept[-1]:
            path, end, cost = [], len(pretoken), place[0]
            while end:
                _, start, rank, i = place
                path.append((pretoken[start:end], i))
                place, end = kept[start][rank], start
            paths.append((path[::-1], -cost))
        return paths

    def _sums(self, pretoken: str, alpha: float) -> list[float]:
        """Return the log of the summed weights of all paths from each node to the end."""
        sums = [0.0] * (len(pretoken) + 1)
        for start in reversed(range(len(pretoken))):
            edges = self._lattices.edges(pretoken, start)
            sums[start] = _log_sum([alpha * score + sums[end] for end, _, score in edges])
        return sums

    def _draw(self, pretoken: str, alpha: float, random: Random) -> Path:
        """Return a random path. An edge is drawn by its share of the weight of all paths from its node to the end."""
        sums = self._sums(pretoken, alpha)
        path: Path = []
        start = 0
        while start < len(pretoken):
            edges = list(self._lattices.edges(pretoken, start))
            shares = [exp(alpha * score + sums[end] - sums[start]) for end, _, score in edges]
            ((end, i, _),) = random.choices(edges, shares)
            path.append((pretoken[start:end], i))
            start = end
        return path


def _log_sum(logarithms: list[float]) -> float:
    """Return the logarithm of a sum, given the logarithms of its terms."""
    largest = max(logarithms)
    total = 0.0
    for each in logarithms:  # one by one, as in the kernel
        total += exp(each - largest)
    return largest + log(total)

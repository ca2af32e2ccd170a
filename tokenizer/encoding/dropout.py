"""BPE dropout: random segmentations of a text (Provilkov et al., "BPE-Dropout", ACL 2020)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

    from tokenizer.bpe_vocabulary import BytePairVocabulary
    from tokenizer.encoding.kernel_encoder import KernelTables

PLAIN_BYTES = 1 << 15  # of text, which plain Python encodes in less time than the kernels take to import


class DropoutEncoder:
    """Encodes texts by merges, some of which are dropped at random.

    The first `plain_bytes` bytes of text are encoded in plain Python, later texts by `encoding.segmentation_sampling`.
    tables: returns the tables of the kernels.
    """

    def __init__(
        self, vocabulary: BytePairVocabulary, tables: Callable[[], KernelTables], plain_bytes: int = PLAIN_BYTES
    ):
        self._vocabulary = vocabulary
        self._tables = tables
        self._plain_bytes = plain_bytes

    @cached_property
    def _merges(self) -> dict[tuple[int, int], tuple[int, int]]:
        """From two neighbouring ids to the rank of their merge and the merged id, whatever the file format."""
        listed = self._vocabulary.merges.tolist()
        return {(left, right): (rank, merged) for rank, (left, right, merged) in enumerate(listed)}

    @cached_property
    def _byte_ids(self) -> list[int]:
        ids: list[int] = self._vocabulary.byte_ids.tolist()
        return ids

    def encode(self, text: bytes, dropout: float, random: Random) -> list[int]:
        """Return the ids of a text. dropout: the probability that a possible merge is dropped in a step."""
        self._plain_bytes -= len(text)
        if self._plain_bytes < 0:
            from tokenizer.encoding.segmentation_sampling import draw_with_dropout

            return draw_with_dropout(text, self._tables(), dropout, random)
        ids: list[int] = []
        for pretoken in self._vocabulary.pattern.pretokens(text):
            ids += self._merged([self._byte_ids[byte] for byte in pretoken], dropout, random)
        return ids

    def _merged(self, ids: list[int], dropout: float, random: Random) -> list[int]:
        """Return the ids of a pretoken after merging the ids of its bytes (algorithm 1 of the paper).

        In each step, every possible merge at every position is dropped with probability `dropout`, independently of the
        others and of earlier steps. Of those that remain, the one of lowest rank is applied, on ties the leftmost. The
        loop ends with the first step in which none remains.

        Merges are drawn from lowest to highest rank until one is kept. Further draws would change nothing.
        """
        merges, end = self._merges, len(ids)
        following, preceding = list(range(1, end + 1)), list(range(-1, end - 1))
        heap = [(*merges[pair], at, *pair) for at, pair in enumerate(pairwise(ids)) if pair in merges]
        heapify(heap)
        dropped: list[tuple[int, int, int, int, int]] = []
        while heap:
            candidate = heappop(heap)
            _, merged, at, left, right = candidate
            gone = following[at]
            if ids[at] != left or gone == end or ids[gone] != right:
                continue  # one of the two was merged with another neighbour
            if random.random() < dropout:
                dropped.append(candidate)
                continue
            ids[at], ids[gone] = merged, -1
            after, before = following[gone], preceding[at]
            following[at] = after
            if after < end:
                preceding[after] = at
            for first, second in ((before, at), (at, after)):
                if first >= 0 and second < end and (ids[first], ids[second]) in merges:
                    pair = ids[first], ids[second]
                    heappush(heap, (*merges[pair], first, *pair))
            for candidate in dropped:
                heappush(heap, candidate)
            dropped.clear()
        return [i for i in ids if i >= 0]

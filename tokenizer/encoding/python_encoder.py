"""Encoding of short texts in plain Python, for programs that encode little: no import of numba or numpy.

The ids are those of the kernels. The speed is about a hundredth of theirs, but there is no loading time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise

from tokenizer.byte_level import BY_MERGES, BY_RANKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random
    from typing import Any, AnyStr

    from tokenizer.bpe_vocabulary import BytePairVocabulary
    from tokenizer.encoding.kernel_encoder import KernelTables
    from tokenizer.splitting.splitter import Splitter
    from tokenizer.wordpiece_vocabulary import WordPieceVocabulary

LONGEST_TEXT = 2000  # bytes
# Total bytes encoded here; they take about as long as loading the kernels. This also bounds the cache.
BUDGET = 100_000

# Plain Python counts or encodes this many bytes in about two seconds. Compiling the kernels takes several times longer.
FIRST_BYTES = 2_000_000
PLAIN_BYTES = 1 << 15  # drawn at random in less time than the kernels take to import


class ShortEncoder:
    """Encoder of texts for which `takes` returns true."""

    def __init__(
        self,
        pattern: Splitter,
        encode_pretoken: Callable[[bytes], list[int]],
    ):
        self._pattern, self._encode_pretoken = pattern, encode_pretoken
        self._longest, self._left = LONGEST_TEXT, BUDGET
        self._encoded: dict[bytes, list[int]] = {}

    def takes(self, size: int) -> bool:
        """Return whether this encoder takes a text of `size` bytes."""
        return size <= self._longest and size <= self._left

    def extend(self, budget: int) -> None:
        """Accept texts of any length, up to `budget` bytes in total."""
        self._longest = self._left = budget

    def encode(self, text: bytes) -> list[int]:
        """Return the ids of a text."""
        self._left -= len(text)
        ids: list[int] = []
        for pretoken in self._pattern.pretokens(text):
            encoded = self._encoded.get(pretoken)
            if encoded is None:
                encoded = self._encoded[pretoken] = self._encode_pretoken(pretoken)
            ids += encoded
        return ids


class MergingEncoder:
    """Encoder of pretokens by merges or ranks."""

    def __init__(self, vocabulary: BytePairVocabulary):
        self._vocabulary = vocabulary

    def encode(self, pretoken: bytes) -> list[int]:
        """Return the ids of a pretoken."""
        vocabulary = self._vocabulary
        word = vocabulary.written(pretoken)
        if vocabulary.rule != BY_MERGES and (whole := vocabulary.ids.get(word)) is not None:
            return [whole]
        parts = merge(word, self._rank)
        if vocabulary.missing_bytes:
            return [self._missing[part] if part in self._missing else vocabulary.ids[part] for part in parts]
        return [vocabulary.ids[part] for part in parts]

    @cached_property
    def _missing(self) -> dict[bytes | str, int]:
        """Return the placeholder ids of bytes without a token, by the byte as written in the vocabulary."""
        vocabulary = self._vocabulary
        written = (vocabulary.written(bytes([byte])) for byte in vocabulary.missing_bytes)
        return {byte: vocabulary.size + k for k, byte in enumerate(written)}

    @cached_property
    def _rank(self) -> Callable[[Any, Any], int | None]:
        """The function from two neighbours to the rank of their merge, or to None if they do not merge.

        Both neighbours are written as the vocabulary writes its tokens: as bytes or as str.
        """
        ids, pairs, first = self._vocabulary.ids, self._vocabulary.pairs, self._vocabulary.first_merged
        if self._vocabulary.rule == BY_RANKS:
            return lambda left, right: ids.get(left + right)
        assert pairs is not None, "a vocabulary whose rule is not BY_RANKS lists its merges"
        if first is None:
            ranks = {(left, right): number for number, (left, right) in enumerate(pairs)}
            return lambda left, right: ranks.get((left, right))

        def rank(left: Any, right: Any) -> int | None:
            # At most one merge makes each token, and the id of the token gives its number.
            number = ids.get(left + right, -1) - first
            return number if 0 <= number < len(pairs) and tuple(pairs[number]) == (left, right) else None

        return rank


class PieceEncoder:
    """Cuts words into the longest tokens of a WordPiece vocabulary, from left to right."""

    def __init__(self, vocabulary: WordPieceVocabulary):
        self._vocabulary = vocabulary
        self._longest_token = max(map(len, vocabulary.ids))

    def encode(self, pretoken: bytes) -> list[int]:
        """Return the ids of a word, only the unknown id if it is too long or has a part that no token spells."""
        vocabulary, word = self._vocabulary, pretoken.decode()
        ids, unknown = vocabulary.ids, [vocabulary.ids[vocabulary.unknown]]
        if len(word) > vocabulary.longest_word:
            return unknown
        pieces: list[int] = []
        start, prefix = 0, ""
        while start < len(word):
            end = min(len(word), start + self._longest_token)
            while end > start and prefix + word[start:end] not in ids:
                end -= 1
            if end == start:
                return unknown
            pieces.append(ids[prefix + word[start:end]])
            start, prefix = end, vocabulary.prefix
        return pieces


def merge(word: AnyStr, rank: Callable[[AnyStr, AnyStr], int | None]) -> list[AnyStr]:
    """Merge the characters or bytes of a word: the pair of lowest rank first, the leftmost among equals.

    The parts form a linked list; a heap holds their pairs, stale ones included. O(n log n) for n parts.
    """
    n = len(word)
    parts = [word[i : i + 1] for i in range(n)]
    following, preceding = list(range(1, n + 1)), list(range(-1, n - 1))
    heap = [
        (pair_rank, i, left, right)
        for i, (left, right) in enumerate(pairwise(parts))
        if (pair_rank := rank(left, right)) is not None
    ]
    heapify(heap)
    while heap:
        _, at, left, right = heappop(heap)
        gone = following[at]
        if parts[at] != left or gone == n or parts[gone] != right:
            continue
        parts[at] = left + right
        parts[gone] = word[:0]
        after, before = following[gone], preceding[at]
        following[at] = after
        if after < n:
            preceding[after] = at
            if (pair_rank := rank(parts[at], parts[after])) is not None:
                heappush(heap, (pair_rank, at, parts[at], parts[after]))
        if before >= 0 and (pair_rank := rank(parts[before], parts[at])) is not None:
            heappush(heap, (pair_rank, before, parts[before], parts[at]))
    return [part for part in parts if part]


class DropoutEncoder:
    """Encodes texts by merges, some of which are dropped at random (Provilkov et al., "BPE-Dropout", ACL 2020).

    The first `plain_bytes` bytes of text are encoded in plain Python, later texts by `encoding.segmentation_sampling`.
    tables: returns the tables of the kernels.
    """

    def __init__(self, vocabulary: Any, tables: Callable[[], KernelTables], plain_bytes: int = PLAIN_BYTES):
        self._vocabulary = vocabulary  # a BytePairVocabulary; subclasses have others
        self._tables = tables
        self._plain_bytes = plain_bytes

    @cached_property
    def _merge_of(self) -> Callable[[int, int], tuple[int, int] | None]:
        """The function for `merge_ids`, whatever the file format."""
        listed = self._vocabulary.merges.tolist()
        merges = {(left, right): (rank, merged) for rank, (left, right, merged) in enumerate(listed)}
        return lambda left, right: merges.get((left, right))

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
            symbols = [self._byte_ids[byte] for byte in pretoken]
            ids += merge_ids(symbols, self._merge_of, lambda: random.random() < dropout)
        return ids


def merge_ids(
    ids: list[int],
    merge_of: Callable[[int, int], tuple[int, int] | None],
    drops: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Return ids after merging neighbours: the pair of lowest rank first, the leftmost among equals.

    merge_of: from two neighbours to the rank of their merge and the merged id; None if they do not merge.
    drops: whether to drop a possible merge in this step (algorithm 1 of "BPE-Dropout"). In each step, every possible
    merge at every position is dropped with some probability, independently of the others and of earlier steps. The
    remaining merge of lowest rank is applied, on ties the leftmost. The loop ends with the first step in which none
    remains. Merges are drawn from lowest to highest rank until one is kept. Further draws would change nothing.
    """
    ids, end = [*ids], len(ids)
    following, preceding = list(range(1, end + 1)), list(range(-1, end - 1))
    heap: list[tuple[int, int, int, int, int]] = []
    for at, (left, right) in enumerate(pairwise(ids)):
        if (merge := merge_of(left, right)) is not None:
            heap.append((merge[0], at, merge[1], left, right))
    heapify(heap)
    dropped: list[tuple[int, int, int, int, int]] = []
    while heap:
        candidate = heappop(heap)
        _, at, merged, left, right = candidate
        gone = following[at]
        if ids[at] != left or gone == end or ids[gone] != right:
            continue  # one of the two was merged with another neighbour
        if drops():
            dropped.append(candidate)
            continue
        ids[at], ids[gone] = merged, -1
        after, before = following[gone], preceding[at]
        following[at] = after
        if after < end:
            preceding[after] = at
        for first, second in ((before, at), (at, after)):
            if first >= 0 and second < end and (merge := merge_of(ids[first], ids[second])) is not None:
                heappush(heap, (merge[0], first, merge[1], ids[first], ids[second]))
        for candidate in dropped:
            heappush(heap, candidate)
        dropped.clear()
    return [i for i in ids if i >= 0]

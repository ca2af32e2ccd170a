"""The first merges of training, replayed on the pretoken counts: what each merge counted and changed.

`exact_merges` counts the first merges that training without rare pretokens shares with training on the whole corpus.
Leaving out pretokens lowers the counts of their pairs, so another pair may come first. As long as each
merged pair has a larger count among all pretokens than any other pair, training on all of them makes the same merges.

Every batch of pretokens goes through all merges in turn, so memory does not grow with the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tokenizer.splitting.unicode_classes import CODE_POINTS
from tokenizer.training.count_table import Counted
from tokenizer.training.counting import PretokenCounts
from tokenizer.training.spilling import batches
from tokenizer.vocabulary import Vocabulary

LONGEST_SAMPLE = 32  # tokens of a sample word that are shown


@dataclass(kw_only=True)
class Replayed:
    """A merge, and the text just before it.

    count, left_count, right_count: occurrences of the pair, which may overlap, and of its tokens. word_count:
    occurrences of the sample word, the most frequent one that the merge changes; among equals the shortest, then the
    first by bytes. before, after: its tokens. Words of more than 32 tokens are cut to 32 from the pair on.
    """

    left: bytes
    right: bytes
    token: bytes
    count: int = 0
    left_count: int = 0
    right_count: int = 0
    word: bytes = b""
    word_count: int = 0
    before: list[bytes] = field(default_factory=list)
    after: list[bytes] = field(default_factory=list)

    @property
    def likelihood(self) -> float:
        """count(ab) / (count(a) count(b)), the score of training by likelihood."""
        return self.count / (self.left_count * self.right_count)


def replay(counts: PretokenCounts, vocabulary: Vocabulary, most: int) -> list[Replayed]:
    """Return the first `most` merges with which `vocabulary` was trained on `counts`.

    A WordPiece vocabulary must come from training, because its files do not keep the merges. When training by frequency
    merges a pair again, its count includes the occurrences merged earlier; here it does not.
    """
    symbols = _Symbols(vocabulary)
    merges = [
        Replayed(left=left, right=right, token=left + right.removeprefix(symbols.prefix))
        for left, right in symbols.merges[:most]
    ]
    for data, offsets, occurrences in batches(Counted(counts.data, counts.offsets, counts.counts)):
        batch = _Batch(symbols, data[offsets[0] : offsets[-1]], offsets - offsets[0], occurrences)
        for merge in merges:
            batch.apply(merge)
    return merges


class _Symbols:
    """The merges of a vocabulary, and a number for each token.

    The number of a byte is its value. That of a character is its code point, plus CODE_POINTS within WordPiece's words.
    Merged tokens have larger numbers.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.merges, self.prefix = vocabulary.learned_pairs, vocabulary.prefix.encode()
        self._over_characters = vocabulary.merges_characters
        if self._over_characters:
            first = len(vocabulary.prefix)
            known = [vocabulary.in_pretokens(token) for token in vocabulary.ids if len(token) == 1]
            continuing = [token for token in vocabulary.ids if first and token[:first] == vocabulary.prefix]
            self.kept = np.array(sorted(map(ord, known)), dtype=np.int32)
            self._tokens = {ord(token): token.encode() for token in known}
            self._tokens |= {
                CODE_POINTS + ord(token[first:]): token.encode() for token in continuing if len(token) == first + 1
            }
        else:
            self._tokens = {byte: bytes([byte]) for byte in range(256)}
        self._numbers = {token: number for number, token in self._tokens.items()}

    def number(self, token: bytes) -> int:
        """Return the number of a token, a new one for a new token."""
        if token not in self._numbers:
            self._numbers[token] = 2 * CODE_POINTS + len(self._numbers)
            self._tokens[self._numbers[token]] = token
        return self._numbers[token]

    def spelled(self, numbers: np.ndarray) -> list[bytes]:
        return [self._tokens[number] for number in numbers.tolist()]

    def lay_out(self, data: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first symbol of each position, and the index of its pretoken, int32 and int64."""
        words = np.repeat(np.arange(len(lengths)), lengths)
        if not self._over_characters:
            return data.astype(np.int32), words
        code_points = np.frombuffer(data.tobytes().decode().encode("utf-32-le"), dtype="<i4")
        kept = np.isin(code_points, self.kept)
        words = words[(data & 0xC0) != 0x80]
        within = (np.diff(words, prepend=-1) == 0) & (self.prefix != b"")
        return (code_points + CODE_POINTS * within)[kept].astype(np.int32), words[kept]


class _Batch:
    """Some pretokens as symbols, to which merges are applied in order."""

    def __init__(self, symbols: _Symbols, data: np.ndarray, offsets: np.ndarray, occurrences: np.ndarray) -> None:
        self._symbols, self._data, self._offsets, self._occurrences = symbols, data, offsets, occurrences
        self._at, self._words = symbols.lay_out(data, np.diff(offsets))

    def apply(self, merge: Replayed) -> None:
        """Add the counts of this batch to a merge, keep a better sample, and replace the pair."""
        left, right, new = map(self._symbols.number, (merge.left, merge.right, merge.token))
        merge.left_count += self._weight(np.flatnonzero(self._at == left))
        merge.right_count += self._weight(np.flatnonzero(self._at == right))
        pairs = pairs_at(self._at, self._words, left, right)
        merge.count += self._weight(pairs)
        if not len(pairs):
            return
        self._sample(merge, pairs, left, right, new)
        self._at, self._words = replace(self._at, self._words, left, right, new)

    def _weight(self, positions: np.ndarray) -> int:
        return int(self._occurrences[self._words[positions]].sum())

    def _sample(self, merge: Replayed, pairs: np.ndarray, left: int, right: int, new: int) -> None:
        words = self._words[pairs]
        weights = self._occurrences[words]
        if (most := int(weights.max())) < merge.word_count:
            return
        words = np.unique(words[weights == most])
        lengths = self._offsets[words + 1] - self._offsets[words]
        spelled, word = min((self._word(word), word) for word in words[lengths == lengths.min()].tolist())
        if (-most, len(spelled), spelled) >= (-merge.word_count, len(merge.word), merge.word):
            return
        first, end = np.searchsorted(self._words, [word, word + 1]).tolist()
        if end - first > LONGEST_SAMPLE:
            first = int(pairs[np.searchsorted(pairs, first)])
            end = min(end, first + LONGEST_SAMPLE)
        part, same = self._at[first:end], self._words[first:end]
        merge.word, merge.word_count = spelled, most
        merge.before = self._symbols.spelled(part)
        merge.after = self._symbols.spelled(replace(part, same, left, right, new)[0])

    def _word(self, word: int) -> bytes:
        return self._data[self._offsets[word] : self._offsets[word + 1]].tobytes()


def pairs_at(symbols: np.ndarray, words: np.ndarray, left: int, right: int) -> np.ndarray:
    """Return the positions where the pair starts within a pretoken, overlapping ones included."""
    at = np.flatnonzero(symbols[:-1] == left)
    found: np.ndarray = at[(symbols[at + 1] == right) & (words[at + 1] == words[at])]
    return found


def replace(symbols: np.ndarray, words: np.ndarray, left: int, right: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Return symbols and words with the pair replaced from left to right, without overlap."""
    pairs = pairs_at(symbols, words, left, right)
    if left == right:  # take every other one of those that overlap
        starts = np.diff(pairs, prepend=-2) != 1
        pairs = pairs[(np.arange(len(pairs)) - np.flatnonzero(starts)[np.cumsum(starts) - 1]) % 2 == 0]
    symbols = symbols.copy()
    symbols[pairs] = new
    return np.delete(symbols, pairs + 1), np.delete(words, pairs + 1)


def exact_merges(
    counts: PretokenCounts, vocabulary: Vocabulary, most: int, *, max_token_length: int | None = None
) -> int:
    """Return how many of the first `most` merges training on `counts` certainly makes too, in the same order.

    A merge is certain if its pair has a larger count than any other pair. A tie is uncertain, and so is every later
    merge. max_token_length: the limit used in training, in bytes.
    """
    spelled = vocabulary.merge_pairs[:most]
    symbols = [bytes([byte]) for byte in range(256)] + [left + right for left, right in spelled]
    numbers = {token: number for number, token in enumerate(symbols)}
    merges = [(numbers[left], numbers[right]) for left, right in spelled]
    changes = _Changes(len(symbols), merges)
    for data, offsets, occurrences in batches(Counted(counts.data, counts.offsets, counts.counts)):
        changes.add(data[offsets[0] : offsets[-1]], np.diff(offsets), occurrences)
    lengths = np.array([len(token) for token in symbols])
    too_long = lengths[:, None] + lengths > (max_token_length or lengths.max() * 2)
    pairs = np.zeros((len(symbols), len(symbols)), np.int64)
    changes.apply(0, pairs)
    for made, pair in enumerate(merges):
        others = np.where(too_long, 0, pairs)
        others[pair] = 0
        if pairs[pair] <= others.max():
            return made
        changes.apply(made + 1, pairs)
    return len(merges)


class _Changes:
    """The counts of pairs before the first merge, and what each merge adds to them."""

    def __init__(self, symbols: int, merges: list[tuple[int, int]]) -> None:
        self._symbols, self._merges = symbols, merges
        self._changes: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(len(merges) + 1)]

    def add(self, data: np.ndarray, lengths: np.ndarray, occurrences: np.ndarray) -> None:
        """Pass a batch of pretokens through all merges."""
        ids, words = data.astype(np.int32), np.repeat(np.arange(len(lengths)), lengths)
        self._count(0, ids, words, occurrences)
        for number, (left, right) in enumerate(self._merges, 1):
            pairs = pairs_at(ids, words, left, right)
            if not len(pairs):
                continue
            changed = np.zeros(len(lengths), bool)
            changed[words[pairs]] = True
            self._count(number, *_inside(ids, words, changed), -occurrences)
            ids, words = replace(ids, words, left, right, 255 + number)
            self._count(number, *_inside(ids, words, changed), occurrences)

    def _count(self, number: int, ids: np.ndarray, words: np.ndarray, occurrences: np.ndarray) -> None:
        """Add the pairs of some pretokens to a change. words: the number of the pretoken of each id."""
        first = np.flatnonzero(words[1:] == words[:-1])
        pairs, places = np.unique(ids[first] * np.int64(self._symbols) + ids[first + 1], return_inverse=True)
        sums = np.zeros(len(pairs), np.int64)
        np.add.at(sums, places, occurrences[words[first]])
        self._changes[number].append((pairs, sums))

    def apply(self, number: int, pairs: np.ndarray) -> None:
        """Add a change to the counts of pairs, int64 (symbols, symbols)."""
        for changed, sums in self._changes[number]:
            pairs.ravel()[changed] += sums


def _inside(ids: np.ndarray, words: np.ndarray, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids and the pretoken numbers within the changed pretokens."""
    inside = changed[words]
    return ids[inside], words[inside]

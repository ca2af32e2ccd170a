"""WordPiece training: from counts of words to the list of tokens.

The words are cut into characters, of which all but the first continue the word ("##"). Then the pair with the largest
score is merged again and again, as in byte-pair encoding. By frequency, the score is the count of the pair, as in
`tokenizers.trainers.WordPieceTrainer`. Its ids and ties depend on the order in which a randomly seeded hash map gives
the continuations; here the order is by code point, or `alphabet_order`. By likelihood, the score is count(ab) /
(count(a) count(b)), see `kernels.likelihood`.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from tokenizer import first_use
from tokenizer.kernels import likelihood
from tokenizer.kernels import piece_merges as kernel
from tokenizer.splitting.unicode_classes import CODE_POINTS
from tokenizer.training.counting import PretokenCounts, Progress
from tokenizer.training.forecast import POSITION_BYTES, begins_character
from tokenizer.training.merging import check_spare
from tokenizer.vocabulary import LONGEST_TOKEN
from tokenizer.wordpiece_vocabulary import CONTINUATION

PROGRESS_STEP = 256  # merges
RANKED_BYTES = 48  # of the arrays by record that training by likelihood adds
LEAST_SEARCHED = 2  # the smallest min_count that the search tries


class Learned(NamedTuple):
    """The merged tokens, and all merges in order as pairs of tokens. Several merges can make the same token."""

    tokens: list[str]
    merges: list[tuple[str, str]]


def alphabet_of(counts: PretokenCounts, limit: int | None, order: str | None) -> tuple[str, str]:
    """Return the characters of all words by code point, and those that continue a word, by code point or in `order`.

    limit: number of characters to keep, the most frequent; ties by code point. ValueError if `order` lacks one.
    """
    occurrences = np.zeros(CODE_POINTS, dtype=np.int64)
    continuing = np.zeros(CODE_POINTS, dtype=np.bool_)
    kernel.count_characters(counts.data, counts.offsets, counts.counts, occurrences, continuing)
    used = np.flatnonzero(occurrences)
    if limit is not None and limit < len(used):
        used = np.sort(used[np.argsort(-occurrences[used], kind="stable")[:limit]])
    alphabet = "".join(map(chr, used.tolist()))
    later = "".join(character for character in alphabet if continuing[ord(character)])
    if order is None:
        return alphabet, later
    if sorted(order) != sorted(later):
        wrong = set(order) ^ set(later) or {"a repeated one"}
        raise ValueError(
            f"alphabet_order must have each of the {len(later)} characters that continue a word once; it differs in "
            f"{', '.join(sorted(wrong))[:80]}"
        )
    return alphabet, order


def learn_pieces(
    counts: PretokenCounts,
    known: dict[str, int],
    alphabet: str,
    later: str,
    wanted: int,
    score: str,
    min_count: int | None,
    memory: int | None,
    progress: Progress | None,
    continuation: str = CONTINUATION,
) -> Learned:
    """Return up to `wanted` merged tokens in the order of their merges.

    continuation: the prefix of tokens within words. If it is empty, a character has one token everywhere in a word.
    known: existing tokens. A merge that makes a known or an earlier token adds none. min_count: least count of a pair,
    None for the largest one with which the corpus gives `wanted` tokens. memory: limit in bytes for the counts and the
    arrays of merging. Raises ValueError before they exceed it.
    """
    spare = None if memory is None else memory - counts.data.nbytes - counts.offsets.nbytes
    learn = partial(_learn, counts, known, alphabet, later, wanted, score, spare, continuation)
    if min_count is not None:
        return learn(min_count, progress)
    # Every merge takes at least `min_count` pairs from a corpus that has fewer pairs than bytes.
    low, high = LEAST_SEARCHED, max(LEAST_SEARCHED, counts.total_bytes // max(1, wanted))
    done, trainings, fullest = 0, (high - low).bit_length(), None
    while low < high:
        middle = (low + high + 1) // 2
        learned = learn(middle, None)
        if len(learned.tokens) == wanted:
            low, fullest = middle, learned
        else:
            high = middle - 1
        done += 1
        if progress is not None:
            progress("search", done, trainings)
    return fullest or learn(low, progress)


def _learn(
    counts: PretokenCounts,
    known: dict[str, int],
    alphabet: str,
    later: str,
    wanted: int,
    score: str,
    spare: int | None,
    continuation: str,
    min_count: int,
    progress: Progress | None,
) -> Learned:
    merging = _lay_out(counts, alphabet, later if continuation else None, spare)
    texts = [*alphabet, *(continuation + character for character in later if continuation)]
    loop = MergeLoop(merging, min_count, spare)
    if score == "likelihood":
        loop.ranking = _ranking(merging, len(texts) + wanted + len(known), spare)
    symbol_of = {text: symbol for symbol, text in enumerate(texts)}
    made: list[str] = []
    merges: list[tuple[str, str]] = []
    new = 0
    while len(made) < wanted and (pair := loop.find(new)):
        left, right = pair
        text = texts[left] + texts[right].removeprefix(continuation)
        if len(text) > LONGEST_TOKEN:
            loop.refuse()
            continue
        merges.append((texts[left], texts[right]))
        symbol = symbol_of.get(text)
        if symbol is None:
            symbol = symbol_of[text] = len(texts)
            texts.append(text)
            if text not in known:
                made.append(text)
                loop.made += 1
        new = symbol
        if progress is not None and (len(made) % PROGRESS_STEP == 0 or len(made) == wanted):
            progress("merge", len(made), wanted)
    return Learned(made, merges)


class MergeLoop:
    """Finds the pair to merge next, and replaces it.

    spare: bytes that the arrays may take, None for no limit. Raises ValueError before they exceed it.
    """

    def __init__(self, merging: kernel.Merging, min_count: int, spare: int | None) -> None:
        self.merging, self.min_count, self.spare = merging, min_count, spare
        self.ranking: likelihood.Ranking | None = None
        """Of training by likelihood"""
        self.made = 0
        """Tokens made so far, for messages"""

    def find(self, new: int) -> tuple[int, int] | None:
        """Replace the pair found last, if any, by the symbol `new`. Return the symbols of the next pair, if any."""
        while True:
            if self.ranking is None:
                outcome = kernel.merge_and_find(self.merging, new, self.min_count)
            else:
                outcome = likelihood.merge_and_find(self.merging, self.ranking, new, self.min_count)
            if outcome == kernel.FINISHED:
                return None
            if outcome == kernel.GROW:
                self.merging = _grown(self.merging, self.spare, self.made)
                self.ranking = self.ranking and _with_places(self.ranking, self.merging, self.spare, self.made)
                continue
            left, right = divmod(int(self.merging.keys[self.merging.state[kernel.CURRENT]]), 1 << 32)
            if left == right:
                _sort_positions(self.merging)
            return left, right

    def refuse(self) -> None:
        """Leave out the pair found last. It is found again if it occurs anew."""
        record = self.merging.state[kernel.CURRENT]
        self.merging.heads[record], self.merging.sizes[record], self.merging.counts[record] = kernel.NONE, 0, 0
        self.merging.state[kernel.CURRENT] = kernel.NONE


def compile_merging(counts: PretokenCounts, alphabet: str, later: str) -> None:
    """Compile all kernels of training by making one merge."""
    merging = _with_records(_lay_out(counts, alphabet, later, None), None)
    kernel.merge_and_find(merging, 0, 1)
    ranking = _ranking(merging, len(alphabet) + len(later), None)
    likelihood.merge_and_find(merging, ranking, 0, 1)
    merging.sizes[0] = 1
    _sort_positions(merging._replace(state=np.array([1, 1, kernel.NONE, 0, 0, 0], dtype=np.int64)))


def _lay_out(counts: PretokenCounts, alphabet: str, later: str | None, spare: int | None) -> kernel.Merging:
    """Return the data of the merge loop, with all pairs of characters. later: None if these are those of `alphabet`."""
    first_symbols = np.full(CODE_POINTS, kernel.NONE, dtype=np.int32)
    later_symbols = np.full(CODE_POINTS, kernel.NONE, dtype=np.int32)
    first_symbols[list(map(ord, alphabet))] = np.arange(len(alphabet))
    if later is None:
        later_symbols = first_symbols
    else:
        later_symbols[list(map(ord, later))] = len(alphabet) + np.arange(len(later))
    positions = int(np.count_nonzero(begins_character(counts.data)))
    merging = _empty_merging(positions, counts.counts, spare)
    used = kernel.lay_out(counts.data, counts.offsets, first_symbols, later_symbols, merging)
    return _with_pairs(merging._replace(symbols=merging.symbols[:used]), spare)


def lay_out_symbols(
    symbols: np.ndarray, offsets: np.ndarray, word_counts: np.ndarray, spare: int | None
) -> kernel.Merging:
    """Return the data of the merge loop for words of any symbols.

    symbols: int32 (n,), the joined symbols of the words. offsets: int64 (words + 1,). word_counts: int64 (words,).
    """
    merging = _empty_merging(len(symbols), word_counts, spare)
    merging.symbols[:] = symbols
    kernel.lay_out_symbols(offsets, merging)
    return _with_pairs(merging, spare)


def _empty_merging(positions: int, word_counts: np.ndarray, spare: int | None) -> kernel.Merging:
    if positions >= 2**31:
        raise ValueError(f"the words have {positions:,} symbols, more than 2**31: leave out rare words")
    check_spare(POSITION_BYTES * positions, spare, 0)
    first_use.wait("word pieces")
    records = 1 << 14
    symbols, words, following, preceding, pair_at = np.empty((5, positions), dtype=np.int32)
    return kernel.Merging(
        symbols=symbols,
        words=words,
        following=following,
        preceding=preceding,
        pair_at=pair_at,
        word_counts=word_counts,
        places=np.empty(positions + 1024, dtype=np.int32),
        nexts=np.empty(positions + 1024, dtype=np.int32),
        keys=np.empty(records, dtype=np.int64),
        counts=np.empty(records, dtype=np.int64),
        heads=np.empty(records, dtype=np.int32),
        tails=np.empty(records, dtype=np.int32),
        sizes=np.empty(records, dtype=np.int32),
        marks=np.empty(records, dtype=np.uint8),
        slots=np.zeros(2 * records, dtype=np.int32),
        heap=np.empty((records, 2), dtype=np.int64),
        touched=np.empty(records, dtype=np.int32),
        state=np.array([0, 0, kernel.NONE, 0, 0, kernel.NONE], dtype=np.int64),
    )


def _with_pairs(merging: kernel.Merging, spare: int | None) -> kernel.Merging:
    """Return the data with the records of all pairs."""
    first, used = 0, len(merging.symbols)
    while (first := kernel.list_pairs(merging, first, used)) < used:
        merging = _with_records(merging, spare)
    return merging


def _ranking(merging: kernel.Merging, most_symbols: int, spare: int | None) -> likelihood.Ranking:
    """Return the data that training by likelihood adds."""
    ranking = likelihood.Ranking(
        symbol_counts=np.zeros(most_symbols, dtype=np.int64),
        firsts=np.full((most_symbols, 2), kernel.NONE, dtype=np.int32),
        nexts=np.empty((0, 2), dtype=np.int32),
        ranked_by=np.empty((0, 3), dtype=np.int64),
        places=np.empty(0, dtype=np.int32),
        heap_scores=np.empty(0, dtype=np.float64),
        heap=np.empty(0, dtype=np.int32),
        size=np.zeros(1, dtype=np.int64),
    )
    likelihood.count_symbols(merging.symbols, merging.words, merging.word_counts, ranking.symbol_counts)
    return _with_places(ranking, merging, spare, 0)


def _with_places(
    ranking: likelihood.Ranking, merging: kernel.Merging, spare: int | None, merges: int
) -> likelihood.Ranking:
    """Return the data with room for all records of `merging`."""
    records = len(merging.keys)
    check_spare(_bytes(merging) + records * RANKED_BYTES, spare, merges)
    if records == len(ranking.places):
        return ranking
    names = ("nexts", "ranked_by", "heap_scores", "heap")
    places = np.full(records, kernel.NONE, dtype=np.int32)
    places[: len(ranking.places)] = ranking.places
    return ranking._replace(places=places, **{name: _larger(getattr(ranking, name), records) for name in names})


def _sort_positions(merging: kernel.Merging) -> None:
    """Sort the positions of the current pair, which repeats one symbol.

    Its occurrences overlap, so they must be replaced from left to right, but several merges have appended to its list.
    """
    record = int(merging.state[kernel.CURRENT])
    nodes = np.empty(merging.sizes[record], dtype=np.int32)
    kernel.list_nodes(merging, record, nodes)
    merging.places[nodes] = np.sort(merging.places[nodes])


def _larger(array: np.ndarray, length: int) -> np.ndarray:
    """Return a longer array with the same first rows; the new rows take no memory until they are written."""
    larger = np.empty((length, *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _with_records(merging: kernel.Merging, spare: int | None, least: int = 0, merges: int = 0) -> kernel.Merging:
    """Return the data with room for at least twice the records, and for `least` more."""
    length = 2 * len(merging.keys)
    while length < merging.state[kernel.RECORDS] + least:
        length *= 2
    names = ("keys", "counts", "heads", "tails", "sizes", "marks", "touched")
    added = length * sum(getattr(merging, name).itemsize for name in (*names, "slots", "slots"))
    check_spare(_bytes(merging) + added, spare, merges)
    slots = np.zeros(2 * length, dtype=np.int32)
    merging = merging._replace(slots=slots, **{name: _larger(getattr(merging, name), length) for name in names})
    kernel.fill_slots(merging.keys, int(merging.state[kernel.RECORDS]), slots)
    return merging


def _bytes(merging: kernel.Merging) -> int:
    """Return the size of all arrays."""
    return sum(array.nbytes for array in merging)


def _grown(merging: kernel.Merging, spare: int | None, merges: int) -> kernel.Merging:
    """Return the data with room to merge the current pair; each of its positions makes at most two new pairs."""
    state, more = merging.state, int(merging.state[kernel.TOUCHED])
    if (current := int(state[kernel.CURRENT])) != kernel.NONE:
        more = 2 * int(merging.sizes[current])
        if state[kernel.RECORDS] + more > len(merging.keys):
            merging = _with_records(merging, spare, more, merges)
        if (needed := int(state[kernel.NODES]) + more) > len(merging.places):
            length = max(needed, len(merging.places) * 5 // 4)
            check_spare(_bytes(merging) + 2 * length * merging.places.itemsize, spare, merges)
            merging = merging._replace(places=_larger(merging.places, length), nexts=_larger(merging.nexts, length))
    if (needed := int(state[kernel.HEAP]) + more) > len(merging.heap):
        length = max(needed, 2 * len(merging.heap))
        check_spare(_bytes(merging) + length * merging.heap[0].nbytes, spare, merges)
        merging = merging._replace(heap=_larger(merging.heap, length))
    return merging

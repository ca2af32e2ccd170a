"""Parity-aware byte-pair encoding: each merge serves the language that is compressed worst.

Foroutan et al., "Parity-Aware Byte-Pair Encoding: Improving Cross-lingual Fairness in Tokenization" (2025,
arXiv:2508.04796). Plain BPE takes the pair that is most frequent in all the text, so languages with much text get short
sequences. Here a step first chooses a language, then takes the most frequent pair of its training text, and applies the
merge to the text of every language. The merges equal those of `tokenizers.trainers.ParityBpeTrainer`; with a window,
as long as no language runs out of pairs. From then on, that trainer may not end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise

from tokenizer.argument_checks import whole_number
from tokenizer.byte_level import GPT2_BYTE_ORDER, spell
from tokenizer.kinds.registry import resolve_splitter
from tokenizer.special import DEFAULT_SPECIAL_TOKENS, check_special_tokens
from tokenizer.splitting.patterns import Pattern
from tokenizer.splitting.splitter import Splitter
from tokenizer.tokenizer import Tokenizer
from tokenizer.training.counting import PretokenCounts, Progress, count_pretokens
from tokenizer.training.train import DEFAULT_MIN_FREQUENCY, LARGEST_VOCABULARY
from tokenizer.warn import warn

WINDOW_SHARE = 2.0  # the alpha of `tokenizers`
Pair = tuple[str, str]  # two symbols, spelled in ByteLevel's alphabet


@dataclass(frozen=True, kw_only=True)
class ParityRules:
    """How a step chooses its language.

    ratios: the intended compression of each language, in bytes per token; only their proportions matter. None if
        lengths decide.
    global_merges: number of first merges that are chosen as in plain BPE, by the counts in all languages.
    window: number of last merges of which a language may have at most about `WINDOW_SHARE` times its equal share. Other
        languages are then next, so that a language that merges hardly shorten does not take them all. 0: no limit. Two
        languages need no window.
    """

    ratios: Sequence[float] | None = None
    global_merges: int = 0
    window: int = 0

    def __post_init__(self) -> None:
        for name in ("global_merges", "window"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 0))


def train_with_parity(
    corpora: Mapping[str, object],
    vocab_size: int,
    pattern: str | Pattern = "cl100k",
    *,
    parallel: Mapping[str, object] | None = None,
    ratios: Mapping[str, float] | None = None,
    global_merges: int = 0,
    window: int = 0,
    special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS,
    min_frequency: int = DEFAULT_MIN_FREQUENCY,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Tokenizer:
    """Return a byte-level BPE tokenizer that compresses several languages about equally well.

    corpora: the training text of each language, as in `Tokenizer.train`. parallel: the same sentences in each language;
    a merge serves the language with most tokens in them. ratios: instead of `parallel`, the intended bytes per token of
    each language; only their proportions matter. Scripts differ in bytes for the same content, so make them
    proportional to the bytes of parallel sentences. Without both, the lengths of the training texts decide.
    global_merges, window: see `ParityRules`. All other arguments: as in `Tokenizer.train`.

    Counts and symbols are Python objects, so this takes much longer than `Tokenizer.train`: seconds per MB. Raises
    ValueError for languages that differ, for a `pattern` that normalizes text, for a `vocab_size` below the bytes and
    the special tokens, and for numbers that are not whole.
    """
    if not corpora:
        raise ValueError("corpora has no language: give the text of each language by its name")
    for name, given in (("parallel", parallel), ("ratios", ratios)):
        if given is not None and given.keys() != corpora.keys():
            different = ", ".join(sorted(given.keys() ^ corpora.keys()))
            raise ValueError(f"{name} and corpora differ in the languages {different}: give the same ones")
    if parallel is not None and ratios is not None:
        raise ValueError("give either parallel or ratios")
    for language, ratio in (ratios or {}).items():
        try:
            fits = 0 < ratio < math.inf
        except TypeError:
            fits = False
        if not fits:
            raise ValueError(f"ratios[{language!r}] must be a number above 0, not {ratio!r}")
    splitter = checked_pattern(pattern)

    def counted(texts: Mapping[str, object]) -> list[PretokenCounts]:
        return [count_pretokens(texts[language], splitter, threads, progress) for language in corpora]

    rules = ParityRules(
        ratios=None if ratios is None else [ratios[language] for language in corpora],
        global_merges=global_merges,
        window=window,
    )
    merges_left(vocab_size, special_tokens)  # refuses before counting
    min_frequency = whole_number("min_frequency", min_frequency, 0)
    training, held_out = counted(corpora), None if parallel is None else counted(parallel)
    return train_with_parity_from_counts(
        training, held_out, vocab_size, rules, special_tokens, min_frequency=min_frequency, progress=progress
    )


def checked_pattern(spelling: str | Splitter) -> Pattern:
    """Return the pattern with this spelling; ValueError if it normalizes text, or belongs to another kind than BPE."""
    splitter = resolve_splitter(spelling)
    if not isinstance(splitter, Pattern):
        raise ValueError(
            f"pattern is {splitter}, but parity-aware training needs one without normalization, such as cl100k"
        )
    return splitter


def merges_left(vocab_size: int, special_tokens: Sequence[str]) -> int:
    """Return the number of merges in a vocabulary of this size; ValueError if there is no room for them."""
    vocab_size = whole_number("vocab_size", vocab_size, 1, LARGEST_VOCABULARY)
    least = 256 + len(check_special_tokens(special_tokens))
    if vocab_size < least:
        raise ValueError(f"vocab_size is {vocab_size}: give at least {least}, for bytes and special tokens")
    return vocab_size - least


def train_with_parity_from_counts(
    training: Sequence[PretokenCounts],
    held_out: Sequence[PretokenCounts] | None,
    vocab_size: int,
    rules: ParityRules,
    special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS,
    *,
    min_frequency: int = DEFAULT_MIN_FREQUENCY,
    progress: Progress | None = None,
) -> Tokenizer:
    """Return the tokenizer of `train_with_parity` from the pretoken counts of each language, in one order."""
    special, wanted = check_special_tokens(special_tokens), merges_left(vocab_size, special_tokens)
    pattern = checked_pattern(training[0].pattern)
    merges = learn_parity_merges(training, held_out, wanted, rules, min_count=max(1, min_frequency), progress=progress)
    tokens = dict.fromkeys([*(spell(bytes([byte])) for byte in GPT2_BYTE_ORDER), *(a + b for a, b in merges)])
    if len(tokens) < wanted + 256:
        warn(f"the vocabulary has {len(tokens) + len(special)} entries, not {vocab_size}: no other pair is so frequent")
    ids = {token: len(special) + k for k, token in enumerate(tokens)}
    return Tokenizer.from_merges(ids, merges, pattern, {spelling: i for i, spelling in enumerate(special)})


def learn_parity_merges(
    training: Sequence[PretokenCounts],
    held_out: Sequence[PretokenCounts] | None,
    wanted: int,
    rules: ParityRules,
    *,
    min_count: int = 1,
    progress: Progress | None = None,
) -> list[Pair]:
    """Return up to `wanted` merges in order, as pairs of tokens spelled in ByteLevel's alphabet.

    training, held_out: counts of each language's text, in the same order of languages. The texts held out are
        translations of each other, and the language with most symbols in them is next. Without them the lengths of the
        training texts decide, or the ratios: the language with the smallest compression / ratio is next.

    Among pairs of equal count the one with the greatest spellings (left, right) is merged. Languages without a pair
    that occurs `min_count` times are passed over; fewer merges are returned if that holds for all.
    """
    text = _Text(training, held_out, rules.global_merges > 0)
    merges: list[Pair] = []
    served: deque[int] = deque(maxlen=rules.window)
    while len(merges) < wanted:
        by_all = len(merges) < rules.global_merges
        columns = [len(training)] if by_all else _in_order(text.lengths, text.first_lengths, rules, served)
        found = ((column, text.best(column, min_count)) for column in columns)
        column, pair = next((each for each in found if each[1] is not None), (None, None))
        if column is None or pair is None:
            break
        if not by_all:
            served.append(column)
        merges.append(pair)
        text.merge(pair)
        if progress is not None and len(merges) % 100 == 0:
            progress("merge", len(merges), wanted)
    return merges


def _in_order(lengths: list[int], first_lengths: list[int], rules: ParityRules, served: deque[int]) -> list[int]:
    """Return the languages that the next merge may serve, the first choice first. served: those of the last merges."""
    languages = range(len(lengths))
    if rules.ratios is None:
        order = sorted(languages, key=lambda language: -lengths[language])
    else:
        ratios = rules.ratios
        compression = [first / max(1, length) for first, length in zip(first_lengths, lengths, strict=True)]
        order = sorted(languages, key=lambda language: compression[language] / ratios[language])
    if not rules.window:
        return order
    most = WINDOW_SHARE / len(languages)
    within = {language: served.count(language) / rules.window <= most for language in languages}
    if not any(within.values()):
        return order[::-1]
    return sorted(order, key=lambda language: not within[language])


class _Text:
    """The distinct pretokens of all languages as symbols, with the counts of pairs in each language's training text.

    There is one segmentation for all languages; a column of counts per language, and one more for their sum if
    `with_sum`.
    """

    def __init__(self, training: Sequence[PretokenCounts], held_out: Sequence[PretokenCounts] | None, with_sum: bool):
        numbers: dict[bytes, int] = {}
        self._words: list[list[str]] = []
        self._counts: list[dict[int, int]] = []  # of each word, by column
        self._measured: list[dict[int, int]] = []  # of each word, by language whose length it adds to
        for texts, table in ((training, self._counts), (held_out or (), self._measured)):
            for language, counts in enumerate(texts):
                for word, count in counts.items():
                    number = numbers.setdefault(word, len(numbers))
                    if number == len(self._words):
                        self._words.append(list(spell(word)))
                        self._counts.append({})
                        self._measured.append({})
                    table[number][language] = count
        if held_out is None:
            self._measured = [dict(counts) for counts in self._counts]
        if with_sum:
            for by_column in self._counts:
                by_column[len(training)] = sum(by_column.values())
        self.lengths = [0] * len(training)
        self._pairs: list[dict[Pair, int]] = [{} for _ in range(len(training) + with_sum)]
        self._places: dict[Pair, set[int]] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}
        for number in range(len(self._words)):
            self._add(number, 1)
        self.first_lengths = list(self.lengths)
        self._heaps = [[self._entry(pair, count) for pair, count in pairs.items()] for pairs in self._pairs]
        for heap in self._heaps:
            heapify(heap)

    def _add(self, number: int, sign: int) -> set[Pair]:
        """Add the counts of a word's symbols and pairs, or take them away with sign -1; return the pairs."""
        word, pairs = self._words[number], list(pairwise(self._words[number]))
        for language, count in self._measured[number].items():
            self.lengths[language] += sign * count * len(word)
        for column, count in self._counts[number].items():
            sums = self._pairs[column]
            for pair in pairs:
                sums[pair] = sums.get(pair, 0) + sign * count
        if sign > 0:
            for pair in pairs:
                self._places.setdefault(pair, set()).add(number)
        return set(pairs)

    def _entry(self, pair: Pair, count: int) -> tuple[int, tuple[int, ...], tuple[int, ...], Pair]:
        """Return a heap's entry: the smallest one has the largest count, then the greatest spellings."""
        return -count, self._rank(pair[0]), self._rank(pair[1]), pair

    def _rank(self, symbol: str) -> tuple[int, ...]:
        """Return a key that sorts symbols from the greatest spelling to the smallest."""
        if symbol not in self._ranks:
            self._ranks[symbol] = (*(-ord(character) for character in symbol), 0)
        return self._ranks[symbol]

    def best(self, column: int, min_count: int) -> Pair | None:
        """Return the pair that a merge for this column joins; None if all are rarer than `min_count`."""
        heap, counts = self._heaps[column], self._pairs[column]
        while heap:
            negative, _, _, pair = heap[0]
            count = counts.get(pair, 0)
            if count == -negative:
                return pair if count >= max(1, min_count) else None
            if count > 0:
                heapreplace(heap, self._entry(pair, count))
            else:
                heappop(heap)
        return None

    def merge(self, pair: Pair) -> None:
        """Join the pair everywhere, from left to right."""
        raised: set[Pair] = set()
        for number in self._places.pop(pair):
            before = self._add(number, -1)
            self._words[number] = _joined(self._words[number], pair)
            after = self._add(number, 1)
            raised |= after - before
            for gone in before - after:
                if gone != pair:
                    self._places[gone].discard(number)
        for column, sums in enumerate(self._pairs):
            del_pair = sums.pop(pair, None)
            assert not del_pair, "a merged pair occurs no more"
            for new in raised:
                if sums.get(new, 0) > 0:
                    heappush(self._heaps[column], self._entry(new, sums[new]))


def _joined(word: list[str], pair: Pair) -> list[str]:
    joined: list[str] = []
    place = 0
    while place < len(word):
        both = tuple(word[place : place + 2]) == pair
        joined.append(pair[0] + pair[1] if both else word[place])
        place += 1 + both
    return joined

"""WordPiece training by likelihood merges the pairs that a slow reference with exact fractions merges."""

import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokenizer.test_bert_words import hard_strings
from tokenizer import PretokenCounts, Tokenizer, count_pretokens
from tokenizer.splitting.bert_splitter import NAMED_WORDS

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out")
EVERYTHING = 10_000  # more entries than these corpora give


def reference(counts, size, min_frequency):
    """Recount all symbols and pairs before every merge. counts: {word: occurrences}. Return the tokens in order."""
    first, later = sorted({c for word in counts for c in word}), sorted({c for word in counts for c in word[1:]})
    ids = {token: i for i, token in enumerate(["[UNK]", *first, *("##" + c for c in later)])}
    words = {word: [word[0], *("##" + c for c in word[1:])] for word in counts}
    while len(ids) < size:
        symbols, pairs = Counter(), Counter()
        for word, parts in words.items():
            for part in parts:
                symbols[part] += counts[word]
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        scores = {
            (a, b): (Fraction(count, symbols[a] * symbols[b]), count, -ids[a], -ids[b])
            for (a, b), count in pairs.items()
            if count >= min_frequency
        }
        if not scores:
            break
        best = max(scores, key=scores.__getitem__)
        token = best[0] + best[1].removeprefix("##")
        ids.setdefault(token, len(ids))
        for parts in words.values():
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = [token]
                i += 1
    return list(ids)


def trained(counts, size, min_frequency, **options):
    """Return the tokens that we learn from {word: occurrences}."""
    words = sorted(counts)
    offsets = np.cumsum([0, *(len(word.encode()) for word in words)])
    data = np.frombuffer("".join(words).encode(), dtype=np.uint8)
    occurrences = np.array([counts[word] for word in words], dtype=np.int64)
    counted = PretokenCounts(NAMED_WORDS["bert-cased"], data, offsets, occurrences)
    options = {"special_tokens": (), "kind": "wordpiece", "merge_by": "likelihood"} | options
    return list(Tokenizer.train_from_counts(counted, size, min_frequency=min_frequency, **options).vocabulary.ids)


WORDS = st.dictionaries(st.text("ab", min_size=1, max_size=9), st.integers(1, 6), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None)
@given(WORDS, st.integers(1, 4), st.integers(0, 12))
def test_words_of_two_letters_train_as_in_the_reference(counts, min_frequency, merges):
    everything = reference(counts, EVERYTHING, min_frequency)
    size = min(len(everything), len({token for token in everything if len(token) in (1, 3)}) + 1 + merges)
    assert trained(counts, EVERYTHING, min_frequency) == everything
    assert trained(counts, size, min_frequency) == everything[:size]


@pytest.mark.parametrize("factor", [1, 7, 2**31 + 1, 2**40 + 3, 2**53 - 111])
def test_words_of_many_letters_and_huge_counts_train_as_in_the_reference(factor):
    rng = random.Random(factor)
    for letters in ("abc", "abcdefgh"):
        counts = Counter("".join(rng.choices(letters, k=rng.randrange(1, 12))) for _ in range(60))
        counts = {word: count * factor + rng.randrange(2) for word, count in counts.items()}
        for min_frequency in (1, 3 * factor):
            assert trained(counts, EVERYTHING, min_frequency) == reference(counts, EVERYTHING, min_frequency)


def test_scores_that_are_equal_as_floats_are_compared_exactly():
    """The scores are 1 / (2**60 + 1) and 1 / 2**60; the larger count and the smaller ids would prefer the wrong one."""
    counts = {"ab": 2**60 + 1, "cd": 2**60}
    assert trained(counts, 8, 1)[-1:] == ["cd"] == reference(counts, 8, 1)[-1:]


def test_equal_scores_prefer_the_larger_count_and_then_the_smaller_ids():
    counts = {"ab": 2, "a": 6, "xy": 4, "x": 4}  # 2 / (8 * 2) and 4 / (8 * 4)
    assert trained(counts, EVERYTHING, 1)[-2:] == ["xy", "ab"] == reference(counts, EVERYTHING, 1)[-2:]
    counts = {"ab": 2, "ac": 2, "db": 2, "dc": 2}
    assert trained(counts, EVERYTHING, 1)[-4:] == reference(counts, EVERYTHING, 1)[-4:] == ["ab", "ac", "db", "dc"]


def test_hard_strings_train_as_in_the_reference():
    counted = count_pretokens(list(hard_strings(60, 3, NAMED_WORDS["bert-cased"])), "bert-cased", threads=1)
    counts = {word.decode(): count for word, count in counted.items()}
    counts |= {"aaaaa": 3, "aaaa": 2, "abababab": 2}
    assert trained(counts, EVERYTHING, 2) == reference(counts, EVERYTHING, 2)


def test_dropped_characters_leave_their_neighbours_adjacent():
    counts = {"aéb": 2, "ba": 1, "b": 3, "a": 2}
    without = {"ab": 2, "ba": 1, "b": 3, "a": 2}
    assert trained(counts, EVERYTHING, 1, limit_alphabet=2) == reference(without, EVERYTHING, 1)


def test_min_frequency_is_by_default_the_largest_that_fills_the_vocabulary():
    rng = random.Random(8)
    counts = Counter("".join(rng.choices("abc", [5, 2, 1], k=rng.randrange(1, 5))) for _ in range(300))
    for size in (12, 25):
        filling = [n for n in range(2, 40) if len(reference(counts, size, n)) == size]
        assert filling == [*range(2, max(filling) + 1)]
        assert trained(counts, size, None) == reference(counts, size, max(filling))
    assert trained(counts, EVERYTHING, None) == reference(counts, EVERYTHING, 2)


def test_the_search_for_min_frequency_reports_its_progress():
    calls = []
    counts = count_pretokens(["some words and some more words in a line"] * 9, "bert-uncased", threads=1)
    options = {"kind": "wordpiece", "merge_by": "likelihood", "progress": lambda *call: calls.append(call)}
    Tokenizer.train_from_counts(counts, 40, special_tokens=(), **options)
    searched = [done for phase, done, _ in calls if phase == "search"]
    assert searched == [*range(1, len(searched) + 1)]
    assert all(done <= total for _, done, total in calls)


def test_another_score_is_refused():
    with pytest.raises(ValueError, match="merge_by must be frequency or likelihood, not 'pmi'"):
        Tokenizer.train(["a"], 300, kind="wordpiece", merge_by="pmi")
    with pytest.raises(ValueError, match="`merge_by` is not an option of bpe"):
        Tokenizer.train(["a"], 300, merge_by="likelihood")

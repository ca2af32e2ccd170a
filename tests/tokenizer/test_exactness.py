"""Without rare pretokens, training makes the merges of the whole corpus up to the first uncertain one."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenizer.test_replay import counts_of, joined
from tokenizer import Tokenizer
from tokenizer.splitting.patterns import resolve_pattern
from tokenizer.training.replay import exact_merges

pytestmark = pytest.mark.filterwarnings("ignore:the corpus ran out")
MOST = 60
WORDS = st.dictionaries(
    st.text("abc", min_size=1, max_size=9).map(str.encode) | st.binary(min_size=1, max_size=6),
    st.integers(1, 5) | st.integers(1, 10_000),
    min_size=1,
    max_size=60,
)


def merges_by_the_book(words, merges, longest):
    """Return how many first merges join the only pair with the largest count, recounting all words before each."""
    parts = {word: [bytes([byte]) for byte in word] for word in words}
    for made, pair in enumerate(merges):
        counted = Counter()
        for word, present in parts.items():
            for each in pairwise(present):
                if longest is None or len(b"".join(each)) <= longest:
                    counted[each] += words[word]
        if any(count >= counted[pair] for each, count in counted.items() if each != pair):
            return made
        parts = {word: joined(present, pair, b"".join(pair)) for word, present in parts.items()}
    return len(merges)


@given(WORDS, st.integers(1, 50), st.none() | st.integers(2, 5), st.sampled_from(["ids", "bytes"]))
def test_merges_before_the_first_uncertain_one_are_those_of_the_whole_corpus(words, least, longest, tie_break):
    counts = counts_of(words, resolve_pattern("gpt2"))
    whole, frequent = (
        Tokenizer.train_from_counts(
            each,
            256 + MOST,
            special_tokens=(),
            min_frequency=1,
            max_token_length=longest,
            tie_break=tie_break,
        )
        for each in (counts, counts.at_least(least))
    )
    certain = exact_merges(counts, frequent.vocabulary, MOST, max_token_length=longest)
    assert frequent.merges[:certain] == whole.merges[:certain]
    assert certain == merges_by_the_book(words, frequent.merges, longest)
    assert exact_merges(counts, frequent.vocabulary, 3, max_token_length=longest) == min(certain, 3)


def test_merges_are_certain_up_to_the_one_that_rare_pretokens_change():
    rare = {b"xgd%d" % number: 1 for number in range(3)}
    counts = counts_of({b"abab": 10, b"cd": 15, b"gd": 14, **rare}, resolve_pattern("gpt2"))
    whole, frequent = (
        Tokenizer.train_from_counts(each, 260, special_tokens=(), min_frequency=1)
        for each in (counts, counts.at_least(2))
    )
    assert whole.merges[:2] == [(b"a", b"b"), (b"g", b"d")]
    assert frequent.merges[:2] == [(b"a", b"b"), (b"c", b"d")]
    assert exact_merges(counts, frequent.vocabulary, 10) == 1

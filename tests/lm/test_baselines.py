"""Unigram and bigram baselines: computed by hand, as distributions, and independent of chunks."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.metrics import baselines
from lm.metrics.baselines import Bigram, Unigram

STREAM = np.array([0, 1, 0, 2, 0, 1], dtype=np.uint16)
FEW = settings(max_examples=50, deadline=None)


def test_add_one_unigram_by_hand():
    unigram = Unigram.fit([STREAM], vocab_size=4)
    assert unigram.probabilities.tolist() == [4 / 10, 3 / 10, 2 / 10, 1 / 10]
    assert unigram.nll(np.array([3, 0])).tolist() == pytest.approx([math.log(10), math.log(2.5)])


def test_witten_bell_bigram_by_hand():
    """0 is followed 3 times by 2 kinds of token, and q = (4, 3, 2) / 9; 2 once by one kind."""
    bigram = Bigram.fit([STREAM], Unigram.fit([STREAM], vocab_size=3))
    previous, following = np.array([0, 0, 0, 2, 2]), np.array([0, 1, 2, 0, 1])
    expected = [
        (0 + 2 * 4 / 9) / 5,
        (2 + 2 * 3 / 9) / 5,
        (1 + 2 * 2 / 9) / 5,
        (1 + 4 / 9) / 2,
        (0 + 3 / 9) / 2,
    ]
    assert np.exp(-bigram.nll(previous, following)).tolist() == pytest.approx(expected)


def test_after_a_token_without_followers_the_bigram_is_the_unigram():
    unigram = Unigram.fit([STREAM], vocab_size=4)
    bigram = Bigram.fit([STREAM], unigram)
    assert bigram.nll(np.array([3]), np.array([1])) == unigram.nll(np.array([1]))


streams = st.lists(st.integers(0, 6), max_size=80).map(lambda ids: np.array(ids, dtype=np.uint16))


@FEW
@given(streams)
def test_every_context_gives_a_distribution(stream):
    bigram = Bigram.fit([stream], Unigram.fit([stream], vocab_size=7))
    for previous in range(7):
        p = np.exp(-bigram.nll(np.full(7, previous), np.arange(7)))
        assert p.sum() == pytest.approx(1.0)
        assert (p > 0).all()


@FEW
@given(streams, st.lists(st.integers(0, 80), max_size=6), st.integers(1, 20))
def test_chunks_and_merge_sizes_do_not_change_the_fit(stream, cuts, pending):
    whole_unigram = Unigram.fit([stream], vocab_size=7)
    whole = Bigram.fit([stream], whole_unigram)
    chunks = np.split(stream, sorted(cut for cut in cuts if cut <= len(stream)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "PENDING_PAIRS", pending)
        cut = Bigram.fit(iter(chunks), Unigram.fit(iter(chunks), vocab_size=7))
    assert cut.keys.tolist() == whole.keys.tolist()
    assert cut.counts.tolist() == whole.counts.tolist()
    assert (cut.unigram.counts == whole_unigram.counts).all()
    pairs = {}
    for pair in zip(stream[:-1].tolist(), stream[1:].tolist(), strict=True):
        pairs[pair] = pairs.get(pair, 0) + 1
    assert {divmod(key, 7): count for key, count in zip(cut.keys, cut.counts, strict=True)} == pairs


def test_baselines_approach_the_entropy_of_an_independent_source():
    generator = np.random.default_rng(0)
    p = np.array([0.5, 0.25, 0.125, 0.125])
    train, test = generator.choice(4, size=200_000, p=p), generator.choice(4, size=100_000, p=p)
    unigram = Unigram.fit([train], vocab_size=4)
    bigram = Bigram.fit([train], unigram)
    assert unigram.nll(test).mean() / math.log(2) == pytest.approx(1.75, abs=0.01)
    assert bigram.nll(test[:-1], test[1:]).mean() / math.log(2) == pytest.approx(1.75, abs=0.01)


def test_an_id_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="id 9 lies outside a vocabulary of 4"):
        Unigram.fit([np.array([1, 9])], vocab_size=4)

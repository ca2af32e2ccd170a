"""BART's denoising: text infilling and permuted sentences, held against closed forms."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lm.objectives import length_of_infilled, permuted_sentences, text_infilling

MASK, STOP, SEPARATOR = 9999, 7, 0


def seeded(rows, seed=0):
    return [np.random.default_rng((seed, row)) for row in range(rows)]


def infilled(length, rows=1, seed=0, **options):
    """Return the present source tokens of each row; all rows are the block 0, 1, ..., length - 1."""
    blocks = np.tile(np.arange(length), (rows, 1))
    source, present = text_infilling(blocks, seeded(rows, seed), mask_id=MASK, **options)
    return [row[here] for row, here in zip(source, present, strict=True)]


def spans_of(source, length):
    """Return the number of tokens that each mask replaces; the kept tokens are their own places in the block."""
    edged = np.concatenate([[-1], source, [length]])
    masks = np.flatnonzero(edged == MASK)
    return edged[masks + 1] - edged[masks - 1] - 1


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 120), st.integers(0, 2**32), st.floats(0.01, 0.95), st.floats(1, 10))
def test_one_mask_replaces_each_span_and_the_other_tokens_stay_in_order(length, seed, noise, mean_span):
    (source,) = infilled(length, seed=seed, noise=noise, mean_span=mean_span)
    kept = source[source != MASK]
    assert (np.diff(kept) > 0).all()
    assert length - len(kept) == min(max(round(length * noise), 1), length - 1)
    assert not ((source[1:] == MASK) & (source[:-1] == MASK)).any()
    spans = spans_of(source, length)
    assert spans.sum() == length - len(kept)  # no token is removed without a mask
    assert len(source) <= length_of_infilled(length, noise=noise, mean_span=mean_span) <= length


def test_spans_are_as_many_as_renewal_theory_says_and_their_lengths_are_poisson():
    """Lengths are drawn until they reach R, so N spans have E N = sum over n >= 0 of P(Poisson(3 n) < R)."""
    length, rows = 1024, 400
    removed = round(length * 0.3)
    spans = [spans_of(source, length) for source in infilled(length, rows)]
    counts = np.array([len(row) for row in spans])
    n = np.arange(removed + 1)
    below = np.where(n == 0, 1.0, stats.poisson.cdf(removed - 1, 3.0 * n))
    expected = below.sum()
    variance = ((2 * n + 1) * below).sum() - expected**2
    assert abs(counts.mean() - expected) < 4 * math.sqrt(variance / rows)
    assert 0.8 < counts.var() / variance < 1.25
    together = np.concatenate(spans)
    empty = expected * rows * math.exp(-3.0)  # by Wald's identity
    assert abs((together == 0).sum() - empty) < 4 * math.sqrt(empty)
    observed = np.bincount(np.minimum(together, 9), minlength=10)
    shares = [*stats.poisson.pmf(np.arange(9), 3.0), stats.poisson.sf(8, 3.0)]
    assert stats.chisquare(observed, np.array(shares) * len(together)).pvalue > 1e-3


def test_spans_are_equally_likely_in_every_gap():
    length, rows = 20, 4000
    gaps = np.zeros(15, np.int64)  # 14 kept tokens
    spans = 0
    for source in infilled(length, rows):
        masks = np.flatnonzero(source == MASK)
        gaps[masks - np.arange(len(masks))] += 1  # the number of kept tokens before each mask
        spans += len(masks)
    # Without replacement, the counts vary less than those of independent draws.
    assert stats.chisquare(gaps).pvalue > 1e-3
    assert spans / rows == pytest.approx(1 + stats.poisson.cdf(5, 3.0 * np.arange(1, 7)).sum(), abs=0.05)


@pytest.mark.parametrize("make", ["infilled", "permuted"])
def test_rows_do_not_depend_on_their_batch_and_a_seed_gives_the_same(make):
    blocks = np.random.default_rng(1).integers(0, 12, (5, 60)).astype(np.uint16)
    before = blocks.copy()

    def made(rows, generators):
        if make == "infilled":
            return text_infilling(rows, generators, mask_id=MASK)[0]
        return permuted_sentences(rows, generators, stop_ids=[STOP], separator_id=SEPARATOR)

    together = made(blocks, seeded(5))
    alone = [made(blocks[row : row + 1], [generator])[0] for row, generator in enumerate(seeded(5))]
    assert together.tolist() == [row.tolist() for row in alone]
    assert together.tolist() == made(blocks, seeded(5)).tolist() != made(blocks, seeded(5, seed=1)).tolist()
    assert (blocks == before).all() and together.dtype == np.int64


def sentences_of(block):
    """Return the documents of a block, each a list of sentences: a loop over its tokens."""
    documents, sentence = [[]], []
    for place, token in enumerate(block):
        if token == SEPARATOR:
            documents[-1] += [tuple(sentence)] if sentence else []
            documents, sentence = [*documents, []], []
            continue
        sentence.append(token)
        following = block[place + 1] if place + 1 < len(block) else None
        if token == STOP and following != STOP:
            documents[-1].append(tuple(sentence))
            sentence = []
    documents[-1] += [tuple(sentence)] if sentence else []
    return documents


def readings(tokens, sentences):
    """Return whether `tokens` are these sentences in some order."""
    return (
        not tokens
        if not sentences
        else any(
            tokens[: len(one)] == list(one) and readings(tokens[len(one) :], [*sentences[:n], *sentences[n + 1 :]])
            for n, one in enumerate(sentences)
        )
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, STOP, SEPARATOR]), min_size=1, max_size=16), st.integers(0, 2**32))
def test_whole_sentences_move_within_their_document(block, seed):
    (made,) = permuted_sentences(np.array([block]), seeded(1, seed), stop_ids=[STOP], separator_id=SEPARATOR)
    made, place = made.tolist(), 0
    for number, sentences in enumerate(sentences_of(block)):
        assert number == 0 or made[place] == SEPARATOR
        place += number > 0
        length = sum(map(len, sentences))
        assert readings(made[place : place + length], sentences)
        place += length
    assert place == len(block)


def test_all_orders_of_the_sentences_are_equally_likely():
    sentences = [(1, STOP), (2, 2, STOP, STOP), (3,)]
    block = np.array(sum(sentences, ()))
    orders = [list(sum(order, ())) for order in permutations(sentences)]
    made = permuted_sentences(np.tile(block, (1200, 1)), seeded(1200), stop_ids=[STOP]).tolist()
    assert stats.chisquare([made.count(order) for order in orders]).pvalue > 1e-3
    assert sum(made.count(order) for order in orders) == 1200


def test_impossible_noise_is_refused():
    with pytest.raises(ValueError, match=r"noise is 1\.5"):
        infilled(10, noise=1.5)
    with pytest.raises(ValueError, match="mean_span is 0"):
        infilled(10, mean_span=0)
    with pytest.raises(ValueError, match="give at least 2"):
        infilled(1)

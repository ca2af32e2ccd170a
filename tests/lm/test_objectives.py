"""Objectives: inputs, targets and weights, and the published rates of masks and spans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lm.objectives import (
    lengths_of_span_corruption,
    masked_token,
    next_token,
    sequence_pairs,
    span_corruption,
    span_starts,
)
from tests.lm.rows_of_objectives import corrupted_row, masked_row

SPECIALS = {"special_ids": [0, 1, 2, 3, 4, 30], "mask_id": 2, "cls_id": 3, "sep_id": 4, "vocab_size": 40}


def test_next_token_makes_every_token_but_the_first_a_target_once():
    stream = np.arange(100, 117, dtype=np.uint16)
    blocks = np.lib.stride_tricks.sliding_window_view(stream, 5)[::4]  # T = 4: T + 1 tokens at offset kT
    inputs, targets, weights = next_token(blocks)
    assert inputs.ravel().tolist() == stream[:-1].tolist()
    assert targets.ravel().tolist() == stream[1:].tolist()
    assert inputs.dtype == targets.dtype == np.int64
    assert weights.dtype == np.float32
    assert (weights == 1).all()


def test_next_token_refuses_a_block_without_a_target():
    with pytest.raises(ValueError, match=r"\(B, T \+ 1\)"):
        next_token(np.zeros((3, 1), dtype=np.uint16))


def masked_block(block, generator, **options):
    """Return inputs, targets and weights (T + 2,) of one block (T,)."""
    return [part[0] for part in masked_token(block[None], [generator], **{**SPECIALS, **options})]


@settings(max_examples=50, deadline=None)
@given(block=st.lists(st.integers(0, 39), max_size=60), seed=st.integers(0, 2**32))
def test_only_selected_ordinary_tokens_change_and_targets_are_the_sequence(block, seed):
    block = np.array(block, dtype=np.uint16)
    inputs, targets, weights = masked_block(block, np.random.default_rng(seed))
    assert targets.tolist() == [3, *block.tolist(), 4]
    special = np.isin(targets, SPECIALS["special_ids"])
    assert (weights[special] == 0).all()
    assert (inputs[weights == 0] == targets[weights == 0]).all()
    allowed = (inputs == 2) | ~np.isin(inputs, SPECIALS["special_ids"])
    assert allowed[weights == 1].all()
    assert set(np.unique(weights)) <= {0.0, 1.0}


def test_the_same_seed_gives_the_same_masks_and_does_not_change_the_block():
    block = np.arange(5, 30, dtype=np.uint16)
    before = block.copy()
    first, second = (masked_block(block, np.random.default_rng(7)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert (block == before).all()


def test_selection_and_replacement_have_the_published_shares():
    generator = np.random.default_rng(0)
    ordinary = np.setdiff1d(np.arange(40), SPECIALS["special_ids"])
    selected = masked = unchanged = total = 0
    replacements = np.zeros(40, dtype=np.int64)
    for _ in range(400):
        block = generator.choice(ordinary, size=510)
        inputs, targets, weights = masked_block(block, generator)
        chosen = weights == 1
        total += len(block)
        selected += chosen.sum()
        masked += (inputs[chosen] == 2).sum()
        unchanged += (inputs[chosen] == targets[chosen]).sum()
        other = chosen & (inputs != 2) & (inputs != targets)
        replacements += np.bincount(inputs[other], minlength=40)
    assert stats.binomtest(int(selected), total, 0.15).pvalue > 1e-3
    # of the tenth that is replaced, one in 34 draws its own id again
    redrawn = 0.1 / len(ordinary)
    observed = [masked, replacements.sum(), unchanged]
    expected = selected * np.array([0.8, 0.1 - redrawn, 0.1 + redrawn])
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert replacements[SPECIALS["special_ids"]].sum() == 0
    assert stats.chisquare(replacements[ordinary]).pvalue > 1e-3


def test_weights_are_zero_if_no_token_is_selected():
    inputs, targets, weights = masked_block(np.array([0, 1, 0]), np.random.default_rng(0))
    assert weights.sum() == 0
    assert (inputs == targets).all()


def test_a_vocabulary_of_specials_alone_is_refused():
    with pytest.raises(ValueError, match="all 6 ids are special"):
        masked_block(np.array([1]), np.random.default_rng(0), vocab_size=6)


@given(
    blocks=st.tuples(st.integers(0, 6), st.integers(0, 40)),
    seed=st.integers(0, 2**32),
    special_ids=st.sets(st.integers(0, 49), min_size=1, max_size=49),
    vocab_size=st.sampled_from([50, 51, 30_000]),
)
def test_masks_of_a_batch_are_those_of_its_rows(blocks, seed, special_ids, vocab_size):
    blocks = np.random.default_rng(seed).integers(0, vocab_size, blocks)
    options = {**SPECIALS, "special_ids": sorted(special_ids), "vocab_size": vocab_size}
    together = masked_token(blocks, [np.random.default_rng((seed, row)) for row in range(len(blocks))], **options)
    for row, block in enumerate(blocks):
        alone = masked_row(block, np.random.default_rng((seed, row)), **options)
        for part, expected in zip(together, alone, strict=True):
            assert part.dtype == expected.dtype
            np.testing.assert_array_equal(part[row], expected)


SENTINELS = list(range(1000, 1100))
START, END, PAD = 500, 501, 502


def corrupt(block, seed=0, **options):
    """Return source, inputs, targets and weights of one block (T,)."""
    options = {"sentinel_ids": SENTINELS, "start_id": START, "end_id": END, **options}
    return [part[0] for part in span_corruption(block[None], [np.random.default_rng(seed)], **options)]


def put_back(source, target):
    """Return the block: the source with each sentinel replaced by the tokens that follow it in the target."""
    spans, current = {}, None
    for token in target:
        if token in SENTINELS:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [token for one in source for token in (spans[one] if one in SENTINELS else [one])]


@settings(max_examples=100, deadline=None)
@given(
    block=st.lists(st.integers(0, 400), min_size=2, max_size=200),
    seed=st.integers(0, 2**32),
    noise=st.floats(0.01, 0.6),
    mean_span=st.floats(1, 10),
)
def test_span_corruption_loses_no_token(block, seed, noise, mean_span):
    source, inputs, target, weights = corrupt(np.array(block), seed, noise=noise, mean_span=mean_span)
    assert source[-1] == target[-1] == END
    assert put_back(source[:-1].tolist(), target[:-1].tolist()) == block
    assert inputs.tolist() == [START, *target[:-1]]
    assert (weights == 1).all() and len(weights) == len(target)
    lengths = lengths_of_span_corruption(len(block), end=True, noise=noise, mean_span=mean_span)
    assert lengths == (len(source), len(target))


@given(
    blocks=st.tuples(st.integers(1, 6), st.integers(2, 200)),
    seed=st.integers(0, 2**32),
    end_id=st.sampled_from([END, None]),
    noise=st.floats(0.01, 0.6),
    mean_span=st.floats(2, 10),
)
def test_spans_of_a_batch_are_those_of_its_rows(blocks, seed, end_id, noise, mean_span):
    blocks = np.random.default_rng(seed).integers(0, 400, blocks)
    options = {"sentinel_ids": SENTINELS, "start_id": START, "end_id": end_id, "noise": noise, "mean_span": mean_span}
    together = span_corruption(blocks, [np.random.default_rng((seed, row)) for row in range(len(blocks))], **options)
    for row, block in enumerate(blocks):
        alone = corrupted_row(block, np.random.default_rng((seed, row)), **options)
        for part, expected in zip(together, alone, strict=True):
            assert part.dtype == expected.dtype
            np.testing.assert_array_equal(part[row], expected)


def test_without_an_end_the_targets_end_in_the_next_sentinel():
    source, _, target, _ = corrupt(np.arange(100), end_id=None)
    assert put_back(source.tolist(), target.tolist()) == list(range(100))
    assert [token for token in target if token in SENTINELS] == SENTINELS[:6]  # 15 tokens in 5 spans, and the end
    assert target[-1] == SENTINELS[5]
    assert lengths_of_span_corruption(100) == (len(source), len(target))


def test_spans_have_the_published_share_and_mean_and_any_position():
    length, rounds = 512, 400
    generator = np.random.default_rng(0)
    taken_at = np.zeros(length, dtype=np.int64)
    for _ in range(rounds):
        (source,), _, (target,), _ = span_corruption(
            np.arange(length)[None], [generator], sentinel_ids=SENTINELS, start_id=START, end_id=None
        )
        taken = target[target < length]
        spans = (source >= 1000).sum()
        assert len(taken) == round(length * 0.15)
        assert len(taken) / spans == pytest.approx(3.0, abs=0.1)
        taken_at[taken] += 1
    # The first token is never in a span and the last always is. Every position between can be either.
    inner = taken_at[40:-40] / rounds
    assert abs(inner.mean() - 0.15) < 0.01
    assert inner.min() > 0.05 and inner.max() < 0.28


def test_all_ways_to_cut_spans_are_equally_likely():
    # 8 tokens, 4 of them in 2 spans: 3 ways to cut the kept tokens times 3 to cut the removed ones
    seen = {}
    for seed in range(1800):
        source, _, target, _ = corrupt(np.arange(8), seed, noise=0.5, mean_span=2)
        seen[(*source, *target)] = seen.get((*source, *target), 0) + 1
    assert len(seen) == 9
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: corrupt(np.array([1])), "give at least 2"),
        (lambda: corrupt(np.arange(100), sentinel_ids=[7]), "100 tokens need 5 sentinels, but sentinel_ids has 1"),
        (lambda: corrupt(np.arange(100), noise=1.0), "noise is 1.0"),
        (lambda: corrupt(np.arange(100), mean_span=0.5), "mean_span is 0.5"),
        (lambda: corrupt(np.zeros((2, 2))), r"shape \(1, 2, 2\)"),
        (lambda: masked_token(np.zeros((2, 2)), [None], **SPECIALS), "1 generators"),
        (lambda: pairs([[1]], []), "1 sources and 0 targets"),
        (lambda: pairs([[1]], [[2]], target_length=0), "target_length is 0"),
    ],
)
def test_invalid_blocks_and_pairs_are_refused(attempt, words):
    with pytest.raises(ValueError, match=words):
        attempt()


def pairs(sources, targets, source_length=4, target_length=5):
    return sequence_pairs(
        sources,
        targets,
        start_id=START,
        end_id=END,
        pad_id=PAD,
        source_length=source_length,
        target_length=target_length,
    )


def test_pairs_are_padded_and_padding_has_weight_zero():
    batch = pairs([[1, 2], []], [[3, 4, 5], [6]])
    assert batch.source.tolist() == [[1, 2, END, PAD], [END, PAD, PAD, PAD]]
    assert batch.source_present.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert batch.inputs.tolist() == [[START, 3, 4, 5, PAD], [START, 6, PAD, PAD, PAD]]
    assert batch.targets.tolist() == [[3, 4, 5, END, PAD], [6, END, PAD, PAD, PAD]]
    assert batch.weights.tolist() == [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert (batch.source.dtype, batch.weights.dtype) == (np.int64, np.float32)


def test_a_pair_that_is_too_long_is_cut_and_only_its_source_keeps_an_end():
    batch = pairs([[1, 2, 3, 4, 5]], [[6, 7, 8, 9, 10]])
    assert batch.source.tolist() == [[1, 2, 3, END]]
    assert batch.inputs.tolist() == [[START, 6, 7, 8, 9]]
    assert batch.targets.tolist() == [[6, 7, 8, 9, 10]]


@given(
    block=st.lists(st.integers(0, 39), min_size=1, max_size=60),
    begins=st.lists(st.booleans(), min_size=60, max_size=60),
    seed=st.integers(0, 2**32),
    share=st.floats(0.05, 1.0),
)
def test_tokens_of_a_unit_are_selected_together_and_special_tokens_never(block, begins, seed, share):
    """A unit ends before the next start, at a special token, and after 10 tokens."""
    block, starts = np.array(block), np.array(begins[: len(block)])
    inputs, targets, weights = masked_block(block, np.random.default_rng(seed), share=share, starts=starts[None])
    special = np.isin(block, SPECIALS["special_ids"])
    assert (inputs[weights == 0] == targets[weights == 0]).all() and not weights[1:-1][special].any()
    place = 0
    while place < len(block):
        end = place + 1
        while end < len(block) and not (starts[end] or special[end] or special[end - 1]) and end - place < 10:
            end += 1
        unit = slice(place + 1, end + 1)
        assert len(set(weights[unit])) == 1
        assert (inputs[unit] == SPECIALS["mask_id"]).all() or not (inputs[unit] == SPECIALS["mask_id"]).any()
        place = end


def test_every_token_is_selected_with_the_share_whatever_the_units():
    ordinary = np.setdiff1d(np.arange(40), SPECIALS["special_ids"])
    generator = np.random.default_rng(0)
    blocks = generator.choice(ordinary, size=(2000, 64))
    generators = [np.random.default_rng(row) for row in range(len(blocks))]
    words = generator.random(blocks.shape) < 0.6
    for share, starts in ((0.4, None), (0.3, words), (0.15, span_starts(words, generators))):
        _, _, weights = masked_token(blocks, generators, **SPECIALS, share=share, starts=starts)
        selected = weights[:, 1:-1].mean(axis=0)
        assert abs(selected - share).max() < 5 * np.sqrt(share * (1 - share) / len(blocks))


def test_spans_have_the_published_lengths_in_words():
    starts = np.ones((300, 400), bool)
    chosen = span_starts(starts, [np.random.default_rng(row) for row in range(len(starts))])
    lengths = np.concatenate([np.diff(np.flatnonzero(row)) for row in chosen])  # the last span is cut by the row
    observed = np.bincount(lengths, minlength=11)[1:]
    expected = 0.2 * 0.8 ** np.arange(10)
    expected *= len(lengths) / expected.sum()
    assert len(observed) == 10
    assert stats.chisquare(observed, expected).pvalue > 1e-3
    assert lengths.mean() == pytest.approx(3.8, abs=0.05)


@given(words=st.lists(st.lists(st.booleans(), min_size=30, max_size=30), max_size=4), seed=st.integers(0, 2**32))
def test_spans_begin_with_words(words, seed):
    starts = np.array(words, bool).reshape(-1, 30)
    chosen = span_starts(starts, [np.random.default_rng((seed, row)) for row in range(len(starts))])
    assert not (chosen & ~starts).any()
    assert (chosen.any(axis=1) == starts.any(axis=1)).all()

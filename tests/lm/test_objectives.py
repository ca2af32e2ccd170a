"""Who predicts what, and that masks fall as BERT's paper says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lm.objectives import masked_token, next_token

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


@settings(max_examples=50, deadline=None)
@given(block=st.lists(st.integers(0, 39), max_size=60), seed=st.integers(0, 2**32))
def test_only_selected_ordinary_tokens_change_and_targets_are_the_sequence(block, seed):
    block = np.array(block, dtype=np.uint16)
    inputs, targets, weights = masked_token(block, np.random.default_rng(seed), **SPECIALS)
    assert targets.tolist() == [3, *block.tolist(), 4]
    special = np.isin(targets, SPECIALS["special_ids"])
    assert (weights[special] == 0).all()
    assert (inputs[weights == 0] == targets[weights == 0]).all()
    allowed = (inputs == 2) | ~np.isin(inputs, SPECIALS["special_ids"])
    assert allowed[weights == 1].all()
    assert set(np.unique(weights)) <= {0.0, 1.0}


def test_the_same_generator_masks_alike_and_leaves_the_block_alone():
    block = np.arange(5, 30, dtype=np.uint16)
    before = block.copy()
    first, second = (masked_token(block, np.random.default_rng(7), **SPECIALS) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert (block == before).all()


def test_selection_and_replacement_have_the_published_shares():
    generator = np.random.default_rng(0)
    ordinary = np.setdiff1d(np.arange(40), SPECIALS["special_ids"])
    selected = masked = unchanged = total = 0
    replacements = np.zeros(40, dtype=np.int64)
    for _ in range(400):
        block = generator.choice(ordinary, size=510)
        inputs, targets, weights = masked_token(block, generator, **SPECIALS)
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


def test_nothing_selected_means_weights_of_zero():
    inputs, targets, weights = masked_token(np.array([0, 1, 0]), np.random.default_rng(0), **SPECIALS)
    assert weights.sum() == 0
    assert (inputs == targets).all()


def test_a_vocabulary_of_specials_alone_is_refused():
    with pytest.raises(ValueError, match="all 6 ids are special"):
        masked_token(np.array([1]), np.random.default_rng(0), **{**SPECIALS, "vocab_size": 6})

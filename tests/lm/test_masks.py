"""A part of a mask equals a slice of the whole mask."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lm.masks import Mask
from tests.lm.attention_cases import cases, sees

FEW = settings(max_examples=60, deadline=None)
CPU = torch.device("cpu")


def table(case):
    """Return the mask (B, 1, T, S), computed entry by entry."""
    queries, keys = case.q.shape[2], case.k.shape[2]
    past = keys - queries
    rows = [
        [[sees(case.mask, b, past + t, s) for s in range(keys)] for t in range(queries)] for b in range(len(case.q))
    ]
    return torch.tensor(rows).unsqueeze(1)


def seen(mask, case, **part):
    queries, keys = case.q.shape[2], case.k.shape[2]
    visible = mask.visible(queries, keys, CPU, **part)
    rows, columns = (range(n)[part.get(name, slice(None))] for name, n in (("rows", queries), ("columns", keys)))
    shape = (len(case.q), 1, len(rows), len(columns))
    return torch.ones(shape, dtype=torch.bool) if visible is None else visible.expand(shape)


@FEW
@given(case=cases(longest=12, most_past=6))
def test_visible_follows_the_fields_of_the_mask(case):
    assert torch.equal(seen(case.mask, case), table(case))


@FEW
@given(case=cases(longest=12, most_past=6), data=st.data())
def test_a_part_of_the_mask_equals_a_slice_of_the_whole_mask(case, data):
    queries, keys = case.q.shape[2], case.k.shape[2]
    rows, columns = (
        slice(start, data.draw(st.integers(start + 1, n)))
        for n in (queries, keys)
        for start in (data.draw(st.integers(0, n - 1)),)
    )
    assert torch.equal(seen(case.mask, case, rows=rows, columns=columns), table(case)[:, :, rows, columns])


@FEW
@given(case=cases(longest=12, most_past=6), data=st.data())
def test_outside_its_span_a_query_sees_nothing(case, data):
    start = data.draw(st.integers(0, case.q.shape[2] - 1))
    rows = slice(start, data.draw(st.integers(start + 1, case.q.shape[2])))
    span = case.mask.span(case.q.shape[2], case.k.shape[2], rows)
    outside = table(case)[:, :, rows].clone()
    outside[..., span] = False
    assert not outside.any()


@FEW
@given(case=cases(longest=12, most_past=6))
def test_cropping_drops_only_keys_that_no_query_sees(case):
    queries, keys = case.q.shape[2], case.k.shape[2]
    cropped, span = case.mask.crop(queries, keys)
    whole = table(case)
    visible = cropped.visible(queries, span.stop - span.start, CPU)
    kept = whole[..., span]
    assert whole.sum() == kept.sum()
    assert torch.equal(torch.ones_like(kept) if visible is None else visible.expand_as(kept), kept)


@FEW
@given(case=cases(longest=12, most_past=6))
def test_additive_is_the_bias_where_visible_and_minus_infinity_elsewhere(case):
    queries, keys = case.q.shape[2], case.k.shape[2]
    whole = table(case)
    added = case.mask.additive(queries, keys, torch.float64, CPU)
    bias = torch.zeros(()) if case.mask.bias is None else case.mask.bias
    expected = torch.where(whole, bias.double(), -math.inf)
    assert torch.equal(torch.zeros_like(expected) if added is None else added.expand_as(expected), expected)


def test_a_mask_that_hides_nothing_is_none():
    assert Mask().visible(5, 5, CPU) is None
    assert Mask(causal=True).visible(1, 5, CPU) is None
    assert Mask(window=9).visible(5, 5, CPU) is None
    assert Mask().additive(5, 5, torch.float32, CPU) is None


@pytest.mark.parametrize("mask", [Mask(causal=True), Mask(window=2), Mask(segments=torch.zeros(1, 3))])
def test_more_queries_than_positions_are_refused(mask):
    with pytest.raises(ValueError, match="4 queries over 3 keys"):
        mask.visible(4, 3, CPU)


def test_a_target_longer_than_its_source_may_read_it():
    """Cross-attention: queries and keys count different positions."""
    present = torch.tensor([[True, False, True]])
    assert torch.equal(Mask(present=present).visible(4, 3, CPU).expand(1, 1, 4, 3)[0, 0, 3], present[0])

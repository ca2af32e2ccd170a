"""What a model is asked to predict: pure functions of token blocks and, for masks and spans, a generator.

numpy in, numpy out: ids of any integer dtype come in, int64 ids and float32 weights go out. A weight of 0
takes a position out of the loss and of every metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SELECTED = 0.15  # of the positions without a special token (Devlin et al. 2019, 3.1)
MASKED = 0.80  # of the selected, become the mask token
REPLACED = 0.10  # of the selected, become a token drawn uniformly; the rest stay
NOISE = 0.15  # of a block, taken out in spans (Raffel et al. 2020, 3.1.4)
MEAN_SPAN = 3.0  # tokens of a span


def next_token(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Blocks (B, T + 1) to inputs, targets and weights, each (B, T): a token predicts the next."""
    blocks = np.asarray(blocks)
    if blocks.ndim != 2 or blocks.shape[1] < 2:
        raise ValueError(f"blocks have shape {blocks.shape}: give (B, T + 1) with T at least 1")
    ids = blocks.astype(np.int64)
    inputs, targets = np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:])
    return inputs, targets, np.ones(targets.shape, dtype=np.float32)


def masked_token(
    block: np.ndarray,
    generator: np.random.Generator,
    *,
    special_ids: Sequence[int] | np.ndarray,
    mask_id: int,
    cls_id: int,
    sep_id: int,
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A block (T,) to inputs, targets and weights, each (T + 2,): BERT's masking (Devlin et al. 2019, 3.1).

    The sequence is `cls`, the block, `sep`. Each position that holds no special token is selected with
    probability 15 %, independently; 80 % of the selected become `mask`, 10 % a token uniform over the
    non-special ids (perhaps itself), 10 % stay. Weights are 1 on the selected. Targets are the sequence
    itself. A short block may have nothing selected: its weights are all 0 and it adds nothing to the loss.
    """
    block = np.asarray(block)
    if block.ndim != 1:
        raise ValueError(f"block has shape {block.shape}: give one block (T,) of token ids")
    specials = np.unique(np.asarray(special_ids, dtype=np.int64))
    if len(specials) >= vocab_size:
        raise ValueError(f"all {vocab_size} ids are special: there is no token left to mask")
    targets = np.concatenate(([cls_id], block.astype(np.int64), [sep_id]))
    draw = generator.random(len(targets))
    draw[np.isin(targets, specials)] = 1.0
    draw[[0, -1]] = 1.0
    selected = draw < SELECTED
    masked = draw < SELECTED * MASKED
    replaced = (draw < SELECTED * (MASKED + REPLACED)) & ~masked
    inputs = targets.copy()
    inputs[masked] = mask_id
    inputs[replaced] = _ordinary_ids(generator, int(replaced.sum()), specials, vocab_size)
    return inputs, targets, selected.astype(np.float32)


def _ordinary_ids(generator: np.random.Generator, count: int, specials: np.ndarray, vocab_size: int) -> np.ndarray:
    """`count` ids uniform over the non-special ones: ranks among them, moved past each special id in turn."""
    ids = generator.integers(0, vocab_size - len(specials), size=count)
    for special in specials:
        ids += ids >= special
    return ids


def span_corruption(
    block: np.ndarray,
    generator: np.random.Generator,
    *,
    sentinel_ids: Sequence[int],
    start_id: int,
    end_id: int | None = None,
    noise: float = NOISE,
    mean_span: float = MEAN_SPAN,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A block (T,) to source (S,), decoder inputs, targets and weights (N,), as T5's (Raffel et al. 2020, 3.1.4).

    `noise` of the tokens are taken out, in spans of `mean_span` tokens on average; where they lie is uniform over
    all ways to cut kept and taken tokens into that many pieces each, and the block begins with a kept one. In the
    source each span leaves one sentinel, in order; the targets are every sentinel with the tokens of its span, then
    `end_id`, which also ends the source, or where it is None the next sentinel. Inputs are the targets a step later,
    after `start_id`. Weights are 1. S and N are functions of T alone: `lengths_of_span_corruption`.
    """
    block = np.asarray(block)
    if block.ndim != 1:
        raise ValueError(f"block has shape {block.shape}: give one block (T,) of token ids")
    taken, spans = _noise_counts(len(block), noise, mean_span)
    sentinels = np.asarray(sentinel_ids, dtype=np.int64)
    needed = spans + (end_id is None)
    if len(sentinels) < needed:
        raise ValueError(f"{len(block)} tokens need {needed} sentinels, but sentinel_ids has {len(sentinels)}")
    ids = block.astype(np.int64)
    kept_lengths = _random_segments(len(block) - taken, spans, generator)
    taken_lengths = _random_segments(taken, spans, generator)
    starts = np.cumsum(kept_lengths) + np.cumsum(taken_lengths) - taken_lengths
    stops = starts + taken_lengths
    source, targets = [], []
    for start, stop, kept, sentinel in zip(starts, stops, kept_lengths, sentinels, strict=False):
        source += [ids[start - kept : start], [sentinel]]
        targets += [[sentinel], ids[start:stop]]
    targets.append([sentinels[spans] if end_id is None else end_id])
    source += [] if end_id is None else [[end_id]]
    target = np.concatenate(targets)
    inputs = np.concatenate(([start_id], target[:-1]))
    return np.concatenate(source), inputs, target, np.ones(len(target), dtype=np.float32)


def lengths_of_span_corruption(
    length: int, *, end: bool = False, noise: float = NOISE, mean_span: float = MEAN_SPAN
) -> tuple[int, int]:
    """Lengths of source and targets that `span_corruption` makes of a block of `length`; `end`: with an end id."""
    taken, spans = _noise_counts(length, noise, mean_span)
    return length - taken + spans + end, taken + spans + 1


def _noise_counts(length: int, noise: float, mean_span: float) -> tuple[int, int]:
    """Tokens to take out and spans that they form: at least one of each, and one kept token before each span."""
    if length < 2:
        raise ValueError(f"a block of {length} tokens has none to take out and one to keep: give at least 2")
    if not 0.0 < noise < 1.0:
        raise ValueError(f"noise is {noise}: give a share above 0 and below 1, such as 0.15")
    if not mean_span >= 1.0:
        raise ValueError(f"mean_span is {mean_span}: give at least 1 token, such as 3")
    taken = min(max(round(length * noise), 1), length - 1)
    return taken, min(max(round(taken / mean_span), 1), length - taken)


def _random_segments(items: int, segments: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths (segments,), each at least 1, that sum to `items`: every such composition is as likely."""
    cuts = generator.choice(items - 1, size=segments - 1, replace=False) + 1
    return np.diff(np.concatenate(([0], np.sort(cuts), [items])))


class SequencePairs(NamedTuple):
    """A batch for an encoder-decoder: ids int64, `source_present` bool, weights float32."""

    source: np.ndarray
    """(B, S): the source, its end, padding."""
    source_present: np.ndarray
    """(B, S): False at padding."""
    inputs: np.ndarray
    """(B, N): the start, the target, padding."""
    targets: np.ndarray
    """(B, N): the target, its end, padding."""
    weights: np.ndarray
    """(B, N): 1, and 0 at padding."""


def sequence_pairs(
    sources: Sequence[Sequence[int] | np.ndarray],
    targets: Sequence[Sequence[int] | np.ndarray],
    *,
    start_id: int,
    end_id: int,
    pad_id: int,
    source_length: int,
    target_length: int,
    before: Sequence[int] = (),
    after: Sequence[int] | None = None,
) -> SequencePairs:
    """Pairs of sequences, padded on the right to S = `source_length` and N = `target_length`, ends included.

    The decoder reads the start and the target, and predicts the target and its end (Sutskever et al. 2014). What is
    too long is cut off on the right: a source keeps its end, a target loses it, since it does not end there. A source
    may stand between other ids than nothing and the end: `before` and `after`.
    """
    after = [end_id] if after is None else after
    room = source_length - len(before) - len(after)
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets: give one target for each source")
    least = {"source_length": (source_length, len(before) + len(after)), "target_length": (target_length, 1)}
    for name, (length, ends) in least.items():
        if length < max(1, ends):
            raise ValueError(f"{name} is {length}: give at least {max(1, ends)}, for the end of the sequence")
    source = np.full((len(sources), source_length), pad_id, dtype=np.int64)
    present = np.zeros(source.shape, dtype=bool)
    predicted = np.full((len(targets), target_length), pad_id, dtype=np.int64)
    inputs, weights = predicted.copy(), np.zeros(predicted.shape, dtype=np.float32)
    for row, (given, wanted) in enumerate(zip(sources, targets, strict=True)):
        read = [*before, *given[:room], *after]
        said = [*wanted, end_id][:target_length]
        source[row, : len(read)], present[row, : len(read)] = read, True
        predicted[row, : len(said)], weights[row, : len(said)] = said, 1.0
        inputs[row, : len(said)] = [start_id, *said[:-1]]
    return SequencePairs(source, present, inputs, predicted, weights)

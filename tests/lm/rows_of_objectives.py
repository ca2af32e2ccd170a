"""Masking and span corruption of one block at a time: what batches of them are held against."""

from collections.abc import Sequence

import numpy as np

from lm.config import SELECTED
from lm.objectives import MASKED, MEAN_SPAN, NOISE, REPLACED, lengths_of_span_corruption


def masked_row(
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

    The sequence is `cls`, the block, `sep`; it is also the targets. Each position without a special token is selected
    independently with probability 15 %. 80 % of the selected positions become `mask`, 10 % a token uniform over the
    non-special ids (perhaps the same), 10 % stay. Their weights are 1. A short block may have no selected position:
    its weights are all 0 and it adds nothing to the loss.
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
    """Return `count` ids uniform over non-special ids: ranks among them, moved past each special id in turn."""
    ids = generator.integers(0, vocab_size - len(specials), size=count)
    for special in specials:
        ids += ids >= special
    return ids


def corrupted_row(
    block: np.ndarray,
    generator: np.random.Generator,
    *,
    sentinel_ids: Sequence[int],
    start_id: int,
    end_id: int | None = None,
    noise: float = NOISE,
    mean_span: float = MEAN_SPAN,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A block (T,) to source (S,), decoder inputs, targets and weights (N,), as in T5 (Raffel et al. 2020, 3.1.4).

    Removes a share `noise` of the tokens, in spans of `mean_span` tokens on average. The spans are uniform over all
    ways to cut kept and removed tokens into that many pieces each; the block begins with a kept token. In the source,
    sentinels in order replace the spans. The targets are each sentinel followed by its span, then `end_id`, or the next
    sentinel if it is None. `end_id` also ends the source. Inputs are `start_id` and the targets but the last. Weights
    are 1. S and N depend on T only: see `lengths_of_span_corruption`.
    """
    block = np.asarray(block)
    if block.ndim != 1:
        raise ValueError(f"block has shape {block.shape}: give one block (T,) of token ids")
    source_length, target_length = lengths_of_span_corruption(len(block), noise=noise, mean_span=mean_span)
    spans = (source_length + target_length - 1 - len(block)) // 2
    removed = target_length - 1 - spans
    sentinels = np.asarray(sentinel_ids, dtype=np.int64)
    needed = spans + (end_id is None)
    if len(sentinels) < needed:
        raise ValueError(f"{len(block)} tokens need {needed} sentinels, but sentinel_ids has {len(sentinels)}")
    ids = block.astype(np.int64)
    kept_lengths = _random_segments(len(block) - removed, spans, generator)
    removed_lengths = _random_segments(removed, spans, generator)
    starts = np.cumsum(kept_lengths) + np.cumsum(removed_lengths) - removed_lengths
    stops = starts + removed_lengths
    source: list[np.ndarray | list[int]] = []
    targets: list[np.ndarray | list[int]] = []
    for start, stop, kept, sentinel in zip(starts, stops, kept_lengths, sentinels, strict=False):
        source += [ids[start - kept : start], [sentinel]]
        targets += [[sentinel], ids[start:stop]]
    targets.append([sentinels[spans] if end_id is None else end_id])
    source += [] if end_id is None else [[end_id]]
    target = np.concatenate(targets)
    inputs = np.concatenate(([start_id], target[:-1]))
    return np.concatenate(source), inputs, target, np.ones(len(target), dtype=np.float32)


def _random_segments(items: int, segments: int, generator: np.random.Generator) -> np.ndarray:
    """Return lengths (segments,), each at least 1, that sum to `items`, uniform over all such compositions."""
    cuts = generator.choice(items - 1, size=segments - 1, replace=False) + 1
    return np.diff(np.concatenate(([0], np.sort(cuts), [items])))

"""What a model is asked to predict: pure functions of token blocks and, for masks, a generator.

numpy in, numpy out: ids of any integer dtype come in, int64 ids and float32 weights go out. A weight of 0
takes a position out of the loss and of every metric.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SELECTED = 0.15  # of the positions without a special token (Devlin et al. 2019, 3.1)
MASKED = 0.80  # of the selected, become the mask token
REPLACED = 0.10  # of the selected, become a token drawn uniformly; the rest stay


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
    special_ids: Sequence[int],
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

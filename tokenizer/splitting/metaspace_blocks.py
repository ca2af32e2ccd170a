"""SentencePiece's words of whole blocks, by a kernel that supports the usual normalizers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.document_blocks import Block, as_readonly
from tokenizer.kernels import metaspace_words as kernel
from tokenizer.splitting.graphemes import (
    BOUNDARY,
    EXTEND,
    JOINED,
    LINKER,
    LV,
    LVT,
    OTHER,
    SPACING_MARK,
    code_point_classes,
    transitions,
)
from tokenizer.splitting.normalizers import MARK, Precompiled, Replace, Strip

if TYPE_CHECKING:
    from tokenizer.splitting.metaspace_splitter import MetaspaceWords

BYTES_PER_CALL = 4 << 20


def has_kernel(words: MetaspaceWords) -> bool:
    """Return whether the kernel supports the normalizers: a map, Strip at the end, and Replace of runs of spaces.

    It cuts before every mark or before none, and does not support runs of marks.
    """
    return isinstance(words.cuts, bool) and _options_of(words) is not None


def metaspace_block(block: Block, words: MetaspaceWords) -> tuple[Block, np.ndarray]:
    """Return the block of normalized words, and the end of each word, int64."""
    rules = _rules(words)
    copy, state = np.empty(16, dtype=np.uint8), np.zeros(10, dtype=np.int64)
    out = np.empty(block.size + block.size // 2 + 8 * kernel.ROOM, dtype=np.uint8)  # untouched pages take no memory
    ends = np.empty(len(out), dtype=np.int64)
    offsets = np.zeros(len(block.offsets), dtype=np.int64)
    state[kernel.POSITION] = block.offsets[0]
    state[kernel.PENDING] = rules.options[kernel.PREPENDS]
    data = as_readonly(block.data)
    while True:
        outcome = kernel.split_metaspace(data, block.offsets, BYTES_PER_CALL, *rules, copy, out, offsets, ends, state)
        if outcome == kernel.DONE:
            break
        if outcome == kernel.GROW:
            out, ends = _longer(out, int(state[kernel.AT])), _longer(ends, int(state[kernel.WORDS]))
    return Block(as_readonly(out[: state[kernel.AT]]), offsets), ends[: state[kernel.WORDS]]


def _longer(array: np.ndarray, used: int) -> np.ndarray:
    longer = np.empty(2 * len(array), dtype=array.dtype)
    longer[:used] = array[:used]
    return longer


def _options_of(words: MetaspaceWords) -> tuple[Precompiled | None, bool, bool] | None:
    """Return the map, and whether to strip and to squeeze; None if the kernel does not support the normalizers."""
    first = words.normalizers[0] if words.normalizers else None
    precompiled = first if isinstance(first, Precompiled) else None
    rest = words.normalizers[precompiled is not None :]
    strips = rest[:1] == (Strip(left=False, right=True),)
    rest = rest[strips:]
    # A mark in place of spaces is not white space, so WhitespaceSplit would keep it; the kernel would not.
    contents = [" "] if words.whitespace_split else [" ", MARK]
    squeezes = len(rest) == 1 and rest[0] in [Replace(" {2,}", True, content) for content in contents]
    return (precompiled, strips, squeezes) if len(rest) == squeezes else None


@lru_cache(maxsize=4)  # each takes 7 MB
def _rules(words: MetaspaceWords) -> kernel.Rules:
    options_of_words = _options_of(words)
    assert options_of_words is not None, "has_kernel is true"
    precompiled, strips, squeezes = options_of_words
    classes = np.frombuffer(code_point_classes(), dtype=np.uint8)
    if precompiled is None:
        units, texts = np.zeros(0, dtype=np.uint32), np.zeros(1, dtype=np.uint8)
        steps = np.full(len(transitions()), BOUNDARY, dtype=np.uint8)
    else:
        units = np.array(precompiled.characters.units, dtype=np.uint32)
        texts = np.frombuffer(precompiled.characters.texts, dtype=np.uint8)
        steps = np.frombuffer(transitions(), dtype=np.uint8)
    kinds, places = np.zeros(len(classes), dtype=np.uint8), np.zeros(len(classes), dtype=np.int32)
    kernel.fill_kinds(as_readonly(units), as_readonly(texts), kinds, places, np.empty(16, dtype=np.uint8))
    ascii_stays = (kinds[0x21:0x7F] == kernel.PLAIN).all() and kinds[0x20] == kernel.SPACE
    tabs = (kinds[0x09:0x0B] == kernel.SPACE).all() or (
        words.whitespace_split and np.isin(kinds[0x09:0x0B], (kernel.SPACE, kernel.WHITE)).all()
    )
    stays = np.zeros(len(kinds), dtype=np.uint8)
    stays[np.isin(classes, (OTHER, LV, LVT))] = kernel.STAYS
    stays[np.isin(classes, (EXTEND, JOINED, LINKER, SPACING_MARK))] = kernel.STAYS_AFTER
    stays[kinds != kernel.PLAIN] = 0
    stays[[0, 0xFFFD, *range(0xD800, 0xE000)]] = 0  # also decoded from bytes that are not UTF-8
    options = np.array(
        [words.whitespace_split, words.prepends, words.cuts, strips, squeezes, ascii_stays, tabs],
        dtype=np.bool_,
    )
    arrays: list[np.ndarray] = [kinds, stays, places, classes, steps, units, texts, options]
    return kernel.Rules(*map(as_readonly, arrays))

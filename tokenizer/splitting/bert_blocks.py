"""BERT's words of whole blocks, by the kernel in `kernels/bert_words.py`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenizer.document_blocks import Block, as_readonly
from tokenizer.kernels import bert_words as kernel
from tokenizer.splitting.bert_characters import REPLACED, WORD
from tokenizer.splitting.unicode_classes import CODE_POINTS

if TYPE_CHECKING:
    from tokenizer.splitting.bert_splitter import BertWords

BYTES_PER_CALL = 4 << 20


def words_of_block(block: Block, words: BertWords) -> tuple[Block, np.ndarray]:
    """Return the block of joined words, and the end of each word, int64."""
    table = _word_arrays(words)
    out = np.empty(3 * block.size + kernel.WINDOW, dtype=np.uint8)  # untouched pages take no memory
    ends = np.empty(block.size + kernel.WINDOW, dtype=np.int64)
    ends[0] = 0
    offsets = np.zeros(len(block.offsets), dtype=np.int64)
    copy = np.empty(kernel.WINDOW + 16, dtype=np.uint8)
    state = np.zeros(8, dtype=np.int64)
    state[kernel.POSITION] = block.offsets[0]
    data, fixed = as_readonly(block.data), (*table, copy, out, offsets, ends, state)
    while (outcome := kernel.split_words(data, block.offsets, BYTES_PER_CALL, *fixed)) != kernel.DONE:
        if outcome == kernel.SORT:
            marks = out[state[kernel.RUN_START] : state[kernel.AT]]
            ordered = words.in_order(marks.tobytes().decode())
            marks[:] = np.frombuffer(ordered.encode(), dtype=np.uint8)
            state[kernel.LAST_CLASS] = words.characters.combining_classes[ord(ordered[-1])]
            state[kernel.UNSORTED] = 0
    return Block(as_readonly(out[: state[kernel.AT]]), offsets), ends[1 : state[kernel.WORDS] + 1]


@cache
def _word_arrays(words: BertWords) -> tuple[npt.NDArray[np.generic] | bool, ...]:
    """Return the fields of the `kernels.bert_words.Table` for these options."""
    characters = words.characters
    replacements, packed = [-1], np.zeros(CODE_POINTS, dtype=np.uint64)
    places = np.zeros(CODE_POINTS, dtype=np.int32)
    for code_point, text in characters.replacements.items():
        places[code_point] = len(replacements)
        replacements += [*map(ord, text), -1]
        encoded = text.encode()
        if 0 < len(encoded) < 8 and all(characters.classes[ord(part)] == WORD for part in text):
            packed[code_point] = int.from_bytes(encoded, "little") | len(encoded) << 56
    combining_classes = np.zeros(CODE_POINTS, dtype=np.uint8)
    combining_classes[list(characters.combining_classes)] = list(characters.combining_classes.values())
    classes = np.frombuffer(characters.classes, dtype=np.uint8)
    lowercase = classes[ord("A")] == REPLACED
    return classes, places, np.array(replacements, dtype=np.int32), packed, combining_classes, bool(lowercase)

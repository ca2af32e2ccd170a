"""SentencePiece's normalization of whole blocks, by a kernel."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tokenizer.document_blocks import Block, as_readonly
from tokenizer.kernels import sentencepiece_text as kernel
from tokenizer.splitting.double_array import compile_map
from tokenizer.splitting.precompiled_map import CharacterMap

if TYPE_CHECKING:
    from tokenizer.splitting.whole_text import SentencePieceText

LONGEST_PIECE = 256  # bytes of a user-defined piece; the trie is built by recursion
MOST_PIECE_BYTES = 1 << 20


def has_kernel(text: SentencePieceText) -> bool:
    """Return whether the kernel supports the user-defined pieces: without NUL, and within both limits above."""
    sizes = [len(piece.encode()) for piece in text.user_defined]
    return (
        max(sizes, default=0) <= LONGEST_PIECE
        and sum(sizes) <= MOST_PIECE_BYTES
        and not any("\0" in piece for piece in text.user_defined)
    )


def normalized_block(block: Block, text: SentencePieceText) -> tuple[Block, np.ndarray]:
    """Return the block of normalized documents, and the ends of the non-empty ones, int64."""
    rules = _rules(text)
    data = as_readonly(block.data)
    out = np.empty(3 * block.size + 2 * kernel.ROOM, dtype=np.uint8)  # untouched pages take no memory
    offsets = np.zeros(len(block.offsets), dtype=np.int64)
    document = 0
    while (document := kernel.normalize_texts(data, block.offsets, document, *rules, out, offsets)) < len(offsets) - 1:
        longer = np.empty(2 * len(out), dtype=np.uint8)
        longer[: offsets[document]] = out[: offsets[document]]
        out = longer
    return Block(as_readonly(out[: offsets[-1]]), offsets), offsets[1:][np.diff(offsets) > 0]


@lru_cache(maxsize=4)
def _rules(text: SentencePieceText) -> kernel.Rules:
    own = CharacterMap(compile_map({piece.encode(): piece.encode() for piece in text.user_defined}))
    units, texts = (text.characters.units, text.characters.texts) if text.characters else ((), b"\0")
    options = np.array(
        [
            text.add_dummy_prefix and not text.suffix,
            text.add_dummy_prefix and text.suffix,
            text.remove_extra_whitespaces,
            text.escape_whitespaces,
            text.visible_ascii_stays,
        ],
        dtype=np.bool_,
    )
    return kernel.Rules(
        as_readonly(np.array(units, dtype=np.uint32)),
        as_readonly(np.array(own.units if text.user_defined else (), dtype=np.uint32)),
        np.frombuffer(texts + own.texts, dtype=np.uint8),
        len(texts),
        as_readonly(options),
    )

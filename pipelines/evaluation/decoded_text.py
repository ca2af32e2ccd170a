"""The decoded text of a stream of tokens, without its special tokens, and the white space in a text.

White space is that of Unicode (`str.isspace`): the characters that separate words, in every verb.
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.dataset.reader import TokenStream
from tokenizer import Tokenizer

# `pa.array` would import pandas, which takes half a second: arrays are made of buffers.

WHITE_SPACE = tuple(chr(code).encode() for code in range(0x10000) if chr(code).isspace())
_NARROW = np.isin(np.arange(256), [space[0] for space in WHITE_SPACE if len(space) == 1])
_WIDE = re.compile(b"|".join(re.escape(space) for space in WHITE_SPACE if len(space) > 1))


def decoded_tokens(tokenizer: Tokenizer) -> tuple[pa.LargeBinaryArray, np.ndarray]:
    """Return the bytes that each token adds to the decoded text, (V,), and their lengths, int64 (V,).

    Special tokens and unused ids add nothing.
    """
    ordinary = tokenizer.ordinary.tolist()
    added = [tokenizer.added_bytes(token) if text else b"" for token, text in enumerate(ordinary)]
    lengths = np.array([len(text) for text in added], np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(added))]
    return pa.Array.from_buffers(pa.large_binary(), len(added), buffers), lengths


def decode(added: pa.LargeBinaryArray, ids: np.ndarray) -> bytes:
    """Return the text of ids (T,). `added` (V,): the bytes that each token adds."""
    ids = np.ascontiguousarray(ids)
    places = pa.Array.from_buffers(pa.from_numpy_dtype(ids.dtype), len(ids), [None, pa.py_buffer(ids)])
    taken = added.take(places)
    size, data = pc.sum(pc.binary_length(taken)).as_py(), taken.buffers()[2]
    return bytes(data[:size]) if size else b""


def stream_text(stream: TokenStream, tokenizer: Tokenizer) -> bytes:
    """Return the decoded text of a stream."""
    added, _ = decoded_tokens(tokenizer)
    return b"".join(decode(added, chunk) for chunk in stream.chunks())


def white_space(text: np.ndarray) -> np.ndarray:
    """Return whether each byte of UTF-8 text, uint8 (N,), is a part of white space: (N,) bool."""
    space = np.asarray(_NARROW[text])
    for wide in _WIDE.finditer(text.data):
        space[wide.start() : wide.end()] = True
    return space

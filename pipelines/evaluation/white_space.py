"""White space of Unicode (`str.isspace`): the characters that separate words, in every verb."""

import re

import numpy as np

WHITE_SPACE = tuple(chr(code).encode() for code in range(0x10000) if chr(code).isspace())
_NARROW = np.isin(np.arange(256), [space[0] for space in WHITE_SPACE if len(space) == 1])
_WIDE = re.compile(b"|".join(re.escape(space) for space in WHITE_SPACE if len(space) > 1))


def white_space(text: np.ndarray) -> np.ndarray:
    """Return whether each byte of UTF-8 text, uint8 (N,), is a part of white space: (N,) bool."""
    space = np.asarray(_NARROW[text])
    for wide in _WIDE.finditer(text.data):
        space[wide.start() : wide.end()] = True
    return space

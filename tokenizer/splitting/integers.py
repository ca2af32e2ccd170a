"""Sequences of integers as text: the integer i is the character U+F0000 + i, in the last two planes for private use.

Every integer has 4 bytes of UTF-8. So a sequence is a text for all that reads texts, and `tokenizers` opens the files
of its vocabularies. No normalizer changes these characters.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator

from tokenizer.splitting.splitter import Splitter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tokenizer.document_blocks import Block

FIRST = 0xF0000
"""The character of 0"""
MOST = 0x110000 - FIRST
"""Number of integers that have characters: 131,072"""
WIDTH = 4
"""Bytes of UTF-8 per integer"""


def as_text(integers: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
    """Return the UTF-8 of integers (N,) from 0 to `MOST` - 1, uint8 (4 N,)."""
    import numpy as np

    points = integers.astype(np.uint32) + np.uint32(FIRST)
    spelled = np.empty((len(points), WIDTH), np.uint8)
    spelled[:, 0] = 0xF0 | points >> 18
    for place, shift in ((1, 12), (2, 6), (3, 0)):
        spelled[:, place] = 0x80 | points >> shift & 0x3F
    return spelled.reshape(-1)


def from_text(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32] | None:
    """Return the integers of UTF-8, uint32 (N,); None if it has other characters."""
    import numpy as np

    if len(text) % WIDTH:
        return None
    rows = text.reshape(-1, WIDTH).astype(np.uint32)
    points = (rows[:, 0] & 7) << 18 | (rows[:, 1] & 0x3F) << 12 | (rows[:, 2] & 0x3F) << 6 | rows[:, 3] & 0x3F
    integers = (points - np.uint32(FIRST)).astype(np.uint32)  # wraps around for smaller characters
    if (integers >= MOST).any() or (as_text(integers) != text).any():
        return None
    return integers


class Integers(namedtuple("_Integers", ["base"]), Splitter):
    """Every document is one pretoken, a sequence of integers below `base`. For training, `base` is None.

    Then training itself refuses other texts.
    """

    base: int | None
    rewrites = False
    spelling = identity = "integers"

    def __str__(self) -> str:
        return self.spelling

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the text, if it is not empty. Raises ValueError if it is no sequence of integers below `base`."""
        import numpy as np

        if text:
            if self.base is not None:
                self.check(np.frombuffer(text, np.uint8))
            yield text

    def ends_of_block(self, block: Block) -> np.ndarray:
        import numpy as np

        if self.base is not None:
            self.check(block.data[int(block.offsets[0]) : int(block.offsets[-1])])
        ends: np.ndarray = np.unique(block.offsets[1:])
        return np.asarray(ends[ends > block.offsets[0]])

    def check(self, text: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        """Return the integers of UTF-8. Raises ValueError for other text, and for an integer that is too large."""
        integers = from_text(text)
        if integers is None:
            raise ValueError(
                "the text is no sequence of integers: give integers to train_ids and encode_ids, or read them from "
                ".npy, or from lists of integers in Parquet"
            )
        if self.base is not None and (integers >= self.base).any():
            largest = int(integers.max())
            raise ValueError(
                f"the sequence has the integer {largest}, but the vocabulary has those below {self.base}: train it "
                f"with a `base` of at least {largest + 1}"
            )
        return integers

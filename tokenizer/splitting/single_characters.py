"""The splitter that makes every character a pretoken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokenizer.splitting.splitter import Splitter
from tokenizer.text import read_text

if TYPE_CHECKING:
    import numpy as np

    from tokenizer.document_blocks import Block


class SingleCharacters(Splitter):
    """A splitter into code points. Each byte of invalid UTF-8 is read as U+FFFD."""

    spelling = identity = "characters"
    keeps_characters = True
    splits_at_spaces = True

    def __str__(self) -> str:
        return self.spelling

    def __reduce__(self) -> str:
        return "SINGLE_CHARACTERS"

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the characters of one text in order."""
        return map(str.encode, read_text(text))

    def rewrite(self, block: Block) -> tuple[Block, np.ndarray]:
        """Return the block of characters, and the end of each, int64; the same block if it is valid UTF-8."""
        import numpy as np

        from tokenizer.splitting.chain_blocks import is_valid

        if not is_valid(block):
            return super().rewrite(block)
        first, last = int(block.offsets[0]), int(block.offsets[-1])
        starts = first + np.flatnonzero(block.data[first:last] & 0xC0 != 0x80)
        return block, np.append(starts[1:], [last] * (len(starts) > 0))

    def last_divider(self, data: bytes) -> int:
        """Return the end of the text: a text may be cut between any two characters."""
        return len(data)


SINGLE_CHARACTERS = SingleCharacters()

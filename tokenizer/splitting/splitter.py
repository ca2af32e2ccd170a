"""The interface of splitters of texts into pretokens, for encoding, training and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import pairwise

from tokenizer.splitting.automata import NO_ASCII_RULES

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

    from tokenizer.document_blocks import Block
    from tokenizer.splitting.automata import Automaton


class Splitter:
    """A splitter of texts into pretokens: a pattern, or words that are normalized first."""

    rewrites: bool = True
    """Whether the pretokens, joined, are not the text."""
    drops: bool = False
    """Whether pretokens leave out some of the text."""
    marks_spaces: bool = False
    """Whether the tokens of its pretokens spell a space as `▁`."""

    @property
    def inside(self) -> Splitter:
        """The splitter of text that follows a special token; itself unless the start of a text is special."""
        return self

    @property
    def keeps_characters(self) -> bool:
        """Whether the pretokens, joined, are the characters of the text, perhaps with one more before them."""
        return not self.rewrites

    @property
    def spelling(self) -> str | None:
        """The text that `resolve_splitter` reads; None if no vocabulary is trained with this splitter."""
        return None

    @property
    def ascii_rules(self) -> int:
        """The rule set of `kernels/ascii.py` that splits ASCII text in the same way, or NO_ASCII_RULES."""
        return NO_ASCII_RULES

    @property
    def automaton(self) -> Automaton | None:
        """The tables of the scanner; None if `pretokens` does the work."""
        return None

    @property
    def splits_at_spaces(self) -> bool:
        """Whether a pretoken always ends between an ASCII letter and white space."""
        return False

    @property
    @abstractmethod
    def identity(self) -> str:
        """The text that fingerprints hash: everything that decides the pretokens."""

    @abstractmethod
    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the pretokens of one text in order."""

    def rewrite(self, block: Block) -> tuple[Block, np.ndarray]:
        """Return the block of joined pretokens, and the end of each pretoken, int64. This one is plain Python."""
        import numpy as np

        from tokenizer.document_blocks import block_of

        documents: list[bytes] = []
        lengths: list[int] = []
        for start, end in pairwise(block.offsets.tolist()):
            pretokens = list(self.pretokens(bytes(block.data[start:end])))
            documents.append(b"".join(pretokens))
            lengths += map(len, pretokens)
        return block_of(documents), np.cumsum(lengths, dtype=np.int64)

    def ends_of_block(self, block: Block) -> np.ndarray | None:
        """Return the ends of the pretokens of a block, int64; None if they come from `pretokens`."""
        return None

    def last_divider(self, data: bytes) -> int | None:
        """Return the last place in a text where a pretoken ends, whatever surrounds the text; None if unknown."""
        return None

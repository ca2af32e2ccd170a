"""A splitter that normalizes text before it splits it, for training."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence

from tokenizer.splitting.normalizers import Named, Normalization
from tokenizer.splitting.patterns import NAMES, Pattern, resolve_pattern
from tokenizer.splitting.splitter import Splitter

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

    from tokenizer.document_blocks import Block

NORMALIZERS = {
    "nfc": "NFC",
    "nfd": "NFD",
    "nfkc": "NFKC",
    "nfkd": "NFKD",
    "lowercase": "Lowercase",
    "strip-accents": "StripAccents",
}
"""Names of normalizations in training, and their types in tokenizer.json"""


class NormalizedSplitter(namedtuple("_NormalizedSplitter", ["normalization", "splitter"]), Splitter):
    """A splitter of normalized text. Its spelling has the steps and the pattern: `nfkc+lowercase:cl100k`."""

    normalization: Normalization
    splitter: Splitter

    def __str__(self) -> str:
        return self.spelling or self.identity

    @property
    def spelling(self) -> str | None:
        names = {kind: name for name, kind in NORMALIZERS.items()}
        steps = [names.get(step.kind) if isinstance(step, Named) else None for step in self.normalization.steps]
        if not isinstance(self.splitter, Pattern) or None in steps:
            return None
        return spelling_after([name for name in steps if name], self.splitter.name or self.splitter.spelling)

    @property
    def splits_at_spaces(self) -> bool:
        return self.normalization.cuts_at_ascii and self.splitter.splits_at_spaces

    @property
    def identity(self) -> str:
        return f"{self.normalization.identity}\n{self.splitter.identity}"

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        return self.splitter.pretokens(self.normalization.apply(text))

    def rewrite(self, block: Block) -> tuple[Block, np.ndarray]:
        import numpy as np

        from tokenizer.document_blocks import normalized_block
        from tokenizer.splitting.pretokenize import pretokenize

        block, ends = pretokenize(normalized_block(block, self.normalization), self.splitter)
        return block, np.concatenate([np.empty(0, np.int64), *(some.copy() for some in ends)])


def spelling_after(names: Sequence[str], pattern: str) -> str:
    """Return the spelling of normalizations and a pattern: `names`, keys of `NORMALIZERS` in order, stand first."""
    return f"{'+'.join(names)}:{pattern}" if names else pattern


def normalized_splitter(spelling: str) -> NormalizedSplitter | None:
    """Return the splitter with this spelling; None if it is a regex, or a pattern without normalizations.

    Raises ValueError for unknown names before a named pattern.
    """
    names, _, pattern = spelling.partition(":")
    kinds = [NORMALIZERS.get(name) for name in names.split("+")]
    if None in kinds:
        if pattern not in NAMES:
            return None
        raise ValueError(f"{spelling!r} names an unknown normalization: use {', '.join(NORMALIZERS)}, joined by +")
    return NormalizedSplitter(Normalization(tuple(map(Named, kinds))), resolve_pattern(pattern))

"""Byte-level BPE: training, encoding and decoding, exact and fast. Importing it loads no kernel, no numba, no numpy."""

from tokenizer.formats.published import PatternNeededError
from tokenizer.special import CLS, DEFAULT_SPECIAL_TOKENS, END_OF_TEXT, MASK, PAD, SEP, sentinels
from tokenizer.splitting.patterns import NAMES as PATTERN_NAMES
from tokenizer.splitting.patterns import Pattern, resolve_pattern
from tokenizer.tokenizer import Tokenizer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.training.counting import PretokenCounts, count_pretokens

__all__ = [
    "CLS",
    "DEFAULT_SPECIAL_TOKENS",
    "END_OF_TEXT",
    "MASK",
    "PAD",
    "PATTERN_NAMES",
    "SEP",
    "Pattern",
    "PatternNeededError",
    "PretokenCounts",
    "Tokenizer",
    "count_pretokens",
    "resolve_pattern",
    "sentinels",
]


def __getattr__(name: str):
    if name in ("PretokenCounts", "count_pretokens"):  # they need numpy
        from tokenizer.training import counting

        return getattr(counting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

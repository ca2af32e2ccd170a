"""Byte-level BPE: training, encoding and decoding, exact and fast. Importing it loads no kernel and no numba."""

from tokenizer.counting import PretokenCounts, count_pretokens
from tokenizer.patterns import NAMES as PATTERN_NAMES
from tokenizer.patterns import Pattern, resolve_pattern
from tokenizer.special import CLS, DEFAULT_SPECIAL_TOKENS, END_OF_TEXT, MASK, PAD, SEP
from tokenizer.tokenizer import Tokenizer

__all__ = [
    "CLS",
    "DEFAULT_SPECIAL_TOKENS",
    "END_OF_TEXT",
    "MASK",
    "PAD",
    "PATTERN_NAMES",
    "SEP",
    "Pattern",
    "PretokenCounts",
    "Tokenizer",
    "count_pretokens",
    "resolve_pattern",
]

"""Byte-level BPE, WordPiece and Unigram: exact and fast. Importing loads no numba or numpy."""

from tokenizer.formats.model_names import encoding_name_for_model
from tokenizer.formats.published import PatternNeededError
from tokenizer.special import CLS, DEFAULT_SPECIAL_TOKENS, END_OF_TEXT, MASK, PAD, SEP, sentinels
from tokenizer.splitting.patterns import NAMES as PATTERN_NAMES
from tokenizer.splitting.patterns import Pattern, resolve_pattern
from tokenizer.tokenizer import Tokenizer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.training.counting import PretokenCounts, count_pretokens
    from tokenizer.training.piece_rules import PieceRules

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
    "PieceRules",
    "PretokenCounts",
    "Tokenizer",
    "count_pretokens",
    "encoding_name_for_model",
    "resolve_pattern",
    "sentinels",
]


if not TYPE_CHECKING:  # a type checker would take every unknown name for an object

    def __getattr__(name: str) -> object:
        if name in ("PretokenCounts", "count_pretokens"):  # need numpy
            from tokenizer.training import counting

            return getattr(counting, name)
        if name == "PieceRules":  # needs dataclasses
            from tokenizer.training.piece_rules import PieceRules

            return PieceRules
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

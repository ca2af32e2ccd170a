"""From pretoken counts to a vocabulary: validation of options, and training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypedDict

import numpy as np

from tokenizer.argument_checks import check_callable, whole_number
from tokenizer.byte_level import BYTE_ORDERS
from tokenizer.kinds.registry import KINDS, all_kinds, kind_named, resolve_splitter
from tokenizer.special import DEFAULT_SPECIAL_TOKENS, check_special_tokens
from tokenizer.splitting.splitter import Splitter
from tokenizer.training.piece_rules import PieceRules
from tokenizer.vocabulary import Vocabulary
from tokenizer.warn import warn
from tokenizer.workers import thread_count

if TYPE_CHECKING:
    from tokenizer.kinds.registry import Model
    from tokenizer.training.counting import PretokenCounts, Progress
else:
    Model = Literal[KINDS]

SCORES = ("frequency", "likelihood")
TIE_BREAKS = ("ids", "bytes")
LARGEST_VOCABULARY = 2**24
DEFAULT_MIN_FREQUENCY = 2


class TrainingOptions(TypedDict, total=False):
    """Keyword arguments of `Tokenizer.train` and `train_from_counts`, which `Options` checks."""

    kind: Model
    special_tokens: Sequence[str]
    min_frequency: int | None
    max_token_length: int | None
    byte_order: Literal["gpt2", "raw"]
    tie_break: Literal["ids", "bytes"]
    limit_alphabet: int | None
    alphabet_order: str | None
    merge_by: Literal["frequency", "likelihood"]
    pieces: PieceRules | None
    base: int | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `Tokenizer.train`. Raises ValueError for options with which no vocabulary can be trained.

    memory: limit for merging in bytes.
    """

    vocab_size: int
    kind: str = "bpe"
    special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS
    min_frequency: int | None = None
    max_token_length: int | None = None
    byte_order: str = "gpt2"
    tie_break: str = "ids"
    limit_alphabet: int | None = None
    alphabet_order: str | None = None
    merge_by: str = "frequency"
    pieces: PieceRules | None = None
    base: int | None = None
    threads: int | None = None
    progress: Progress | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        thread_count(self.threads)
        check_callable("progress", self.progress)
        if self.kind not in KINDS:
            raise ValueError(f"kind must be {' or '.join(KINDS)}, not {self.kind!r}")
        object.__setattr__(self, "special_tokens", check_special_tokens(self.special_tokens))
        for name, least in (("min_frequency", 0), ("max_token_length", 1), ("limit_alphabet", 1), ("base", 1)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value, least))
        for name, known in (("byte_order", BYTE_ORDERS), ("tie_break", TIE_BREAKS), ("merge_by", SCORES)):
            if getattr(self, name) not in [*known]:
                raise ValueError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)!r}")
        for field in fields(self):
            kinds = [kind.name for kind in all_kinds() if field.name in kind.options]  # empty for options of all kinds
            if kinds and self.kind not in kinds and getattr(self, field.name) not in (None, field.default):
                others = f"leave out `{field.name}`, or choose {' or '.join(kinds)}"
                raise ValueError(f"`{field.name}` is not an option of {self.kind}: {others}")
        kind_named(self.kind).check(self)
        self._check_size()

    def _check_size(self) -> None:
        first, entries = kind_named(self.kind).least_entries(self)
        least = entries + len({*self.special_tokens})
        if not _is_whole(self.vocab_size):
            raise ValueError(f"vocab_size must be a whole number, not {self.vocab_size!r}")
        if self.vocab_size < least:
            raise ValueError(
                f"vocab_size must be at least {least} ({first} and {len(self.special_tokens)} special tokens), "
                f"not {self.vocab_size!r}"
            )
        if self.vocab_size > LARGEST_VOCABULARY:
            raise ValueError(f"vocab_size must be at most {LARGEST_VOCABULARY}, not {self.vocab_size}")

    @property
    def min_count(self) -> int:
        """The least count of a pair that is merged."""
        return DEFAULT_MIN_FREQUENCY if self.min_frequency is None else max(1, self.min_frequency)

    def splitter(self, pattern: str | Splitter | None) -> Splitter:
        """Return the resolved pattern, by default that of the kind. Raises ValueError for one of another kind."""
        kind = kind_named(self.kind)
        resolved = resolve_splitter(kind.default_pattern if pattern is None else pattern)
        if not kind.accepts(resolved):
            raise ValueError(f"{self.kind} needs {kind.needed_splitter}, not {resolved}, which belongs to another kind")
        return resolved


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def train_vocabulary(counts: PretokenCounts, options: Options) -> Vocabulary:
    """Return a vocabulary trained as `Tokenizer.train_from_counts` describes.

    Warns if pairs or substrings run out. The warning points to the caller's caller.
    """
    options.splitter(counts.pattern)
    kind = kind_named(options.kind)
    vocabulary = kind.train(counts, options)
    if vocabulary.size < options.vocab_size:
        why = kind.shortage(vocabulary, options)
        warn(f"{why}: the vocabulary has {vocabulary.size} entries, not {options.vocab_size}")
    return vocabulary

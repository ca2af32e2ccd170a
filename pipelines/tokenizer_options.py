"""Options of training a vocabulary, and their checks before any text is read."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.cli.errors import UsageError
from tokenizer import Tokenizer
from tokenizer import sentinels as sentinel_tokens
from tokenizer.kinds.registry import all_kinds, kind_named, resolve_splitter

MOST_TRACED = 1000  # merges


def all_special_tokens(
    named: tuple[str, ...], sentinels: int, special_text: str, counts: tuple[Path, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the special tokens, and the spellings at which the corpus is cut."""
    if sentinels < 0:
        raise ValueError(f"`sentinels` is {sentinels}, but must not be negative")
    special_tokens = (*named, *sentinel_tokens(sentinels))
    if special_text == "text":
        return special_tokens, ()
    if counts:
        raise UsageError("`special_text='cut'` has no effect on saved counts: give it to the command that counts")
    return special_tokens, special_tokens


def check_options(
    kind: str,
    vocab_size: int,
    special_tokens: tuple[str, ...],
    pattern: str | None,
    min_count: int,
    trace: int,
    out: Path,
    save_counts: Path | None,
    overwrite: bool,
) -> None:
    """Raise ValueError for options that contradict each other, and for files that would be replaced."""
    if (out / "tokenizer.json").exists() and not overwrite:
        raise ValueError(
            f"{out / 'tokenizer.json'} exists already: choose another `out`, or replace it with `overwrite`"
        )
    if save_counts and save_counts.exists() and not overwrite:
        raise ValueError(f"{save_counts} exists already: choose another `save_counts`, or replace it with `overwrite`")
    if out.exists() and not out.is_dir():
        raise ValueError(f"`out` is {out}, which is a file, not a folder: choose another `out`")
    if save_counts and save_counts.is_dir():
        raise ValueError(f"`save_counts` is {save_counts}, which is a folder: name a file")
    if save_counts and not save_counts.absolute().parent.is_dir():
        raise ValueError(f"`save_counts` is {save_counts}, but there is no folder {save_counts.parent}: make it first")
    vocabulary = kind_named(kind)
    smallest = vocabulary.fixed_entries + len(special_tokens)
    if vocab_size < smallest:
        first = f"{vocabulary.fixed_entries} bytes and " if vocabulary.fixed_entries else ""
        raise ValueError(
            f"`vocab_size` is {vocab_size}, but {first}{len(special_tokens)} special tokens need {smallest}"
        )
    if (
        pattern
        and pattern not in vocabulary.patterns
        and not (vocabulary.takes_regex and re.search(r"[^\w-]", pattern))
    ):
        other = ", or a regular expression" if vocabulary.takes_regex else ""
        of = [known.name for known in all_kinds() if pattern in known.patterns]
        problem = f"a pattern of {of[0]}, not of {kind}" if of else "an unknown name"
        raise ValueError(
            f"`pattern` is {pattern}, which is {problem}: use one of {', '.join(vocabulary.patterns)}{other}"
        )
    resolve_splitter(pattern or vocabulary.default_pattern)  # refuses an invalid regular expression
    if min_count < 1:
        raise ValueError(f"`min_count` is {min_count}, but must be at least 1")
    if not 0 <= trace <= MOST_TRACED:
        raise ValueError(f"`trace` is {trace}, but must be from 0 to {MOST_TRACED:,}")
    if trace and not vocabulary.merges:
        merging = " or ".join(other.name for other in all_kinds() if other.merges)
        raise ValueError(f"`trace` shows merges, but {kind} has none: leave it out, or use {merging}")


@dataclass(frozen=True)
class Superwords:
    """Training in two stages: words first, then tokens of several words (Liu et al. 2025, arXiv 2503.13423).

    transition: share of the entries that the first stage makes. words: maximum number of words in a token.
    """

    transition: float = 0.9
    words: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.transition < 1:
            raise ValueError(f"`transition` is {self.transition}, but must be between 0 and 1")
        if self.words < 2:
            raise ValueError(f"`superword_words` is {self.words}, but must be at least 2")

    def checked(self, kind: str, given: Mapping[str, Any]) -> "Superwords":
        """Return these stages. Raises ValueError for other kinds than bpe, and for options that superwords exclude."""
        if kind != "bpe":
            raise ValueError(f"`superwords` needs `kind='bpe'`, but the kind is {kind}: leave one of them out")
        fitting = {"counts": (), "engine": "local", "special_text": "text", "tie_break": "ids"}
        for name, value in given.items():
            if value != fitting[name]:
                spelled = f"`{name}={value!r}`" if isinstance(value, str) else f"`{name}`"
                raise ValueError(f"`superwords` cannot be combined with {spelled}: leave one of them out")
        return self

    def entries_before(self, vocab_size: int, special_tokens: int) -> int:
        """Return how many entries the vocabulary has after the first stage, special tokens included."""
        first = max(256 + special_tokens, round(self.transition * vocab_size))
        if first >= vocab_size:
            raise ValueError(f"`vocab_size` is {vocab_size}, which leaves no entries for superwords: give more")
        return first

    def grow(self, tok: Tokenizer, texts: Iterable[Any], vocab_size: int, **options: Any) -> Tokenizer:
        """Return the vocabulary after the second stage. options: as in `train_from_counts` and `grow`."""
        names = ("min_frequency", "max_token_length", "threads", "memory", "spill_folder", "progress")
        limits = {name: options[name] for name in names if options.get(name) is not None}
        return tok.grow(texts, vocab_size, superwords=self.words, **limits)

"""From pretoken counts to a vocabulary: validation of options, and training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np

from tokenizer.byte_level import BYTE_ORDERS
from tokenizer.encoding.kinds import AnyVocabulary
from tokenizer.special import DEFAULT_SPECIAL_TOKENS, check_special_tokens
from tokenizer.splitting.bert import BertWords, resolve_splitter
from tokenizer.splitting.patterns import DEFAULT_PATTERNS, Pattern, refuse_misread_by_tokenizers
from tokenizer.training.counting import PretokenCounts, Progress
from tokenizer.training.merging import check_memory, learn_merges
from tokenizer.vocabulary import trained_vocabulary
from tokenizer.wordpiece import CONTINUATION, UNKNOWN, WordPieceVocabulary

MODELS = tuple(DEFAULT_PATTERNS)
SCORES = ("frequency", "likelihood")
LARGEST_VOCABULARY = 2**24
DEFAULT_MIN_FREQUENCY = 2


class TrainingOptions(TypedDict, total=False):
    """Keyword arguments of `Tokenizer.train` and `train_from_counts`, which `Options` checks."""

    model: Literal["bpe", "wordpiece"]
    special_tokens: Sequence[str]
    min_frequency: int | None
    max_token_length: int | None
    byte_order: Literal["gpt2", "raw"]
    limit_alphabet: int | None
    alphabet_order: str | None
    score: Literal["frequency", "likelihood"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `Tokenizer.train`. Raises ValueError for options with which no vocabulary can be trained."""

    vocab_size: int
    model: str = "bpe"
    special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS
    min_frequency: int | None = None
    max_token_length: int | None = None
    byte_order: str = "gpt2"
    limit_alphabet: int | None = None
    alphabet_order: str | None = None
    score: str = "frequency"

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model must be {' or '.join(MODELS)}, not {self.model!r}")
        object.__setattr__(self, "special_tokens", check_special_tokens(self.special_tokens))
        for name, least in (("min_frequency", 0), ("max_token_length", 1), ("limit_alphabet", 1)):
            value = getattr(self, name)
            if value is not None and (not _is_whole(value) or value < least):
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        for name, known in (("byte_order", BYTE_ORDERS), ("score", SCORES)):
            if getattr(self, name) not in [*known]:
                raise ValueError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)!r}")
        others = ("max_token_length",) if self.model == "wordpiece" else ("limit_alphabet", "alphabet_order", "score")
        for name in others:
            if getattr(self, name) not in (None, "frequency"):
                raise ValueError(f"{name} is not an option of {self.model}")
        self._check_size()

    def _check_size(self) -> None:
        first = "the 256 bytes" if self.model == "bpe" else "a character"
        least = (256 if self.model == "bpe" else 1) + len(self.special_tokens)
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

    def splitter(self, pattern: str | Pattern | BertWords | None) -> Pattern | BertWords:
        """Return the resolved pattern, by default that of the model. Raises ValueError for one of another model."""
        resolved = resolve_splitter(DEFAULT_PATTERNS[self.model] if pattern is None else pattern)
        if isinstance(resolved, BertWords) != (self.model == "wordpiece"):
            needed = "words: bert-uncased or bert-cased" if self.model == "wordpiece" else "a pattern such as cl100k"
            raise ValueError(f"{self.model} needs {needed}, not {resolved}, which belongs to another model")
        return resolved


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def train_vocabulary(
    counts: PretokenCounts, options: Options, progress: Progress | None, memory: int | None
) -> AnyVocabulary:
    """Return a vocabulary trained as `Tokenizer.train_from_counts` describes.

    Warns at the caller of the caller when pairs run out.
    """
    options.splitter(counts.pattern)
    check_memory(counts, memory)
    vocabulary = _TRAINERS[options.model](counts, options, progress, memory)
    if vocabulary.size < options.vocab_size:
        warnings.warn(
            f"the corpus ran out of pairs that occur at least {options.min_count} times: "
            f"the vocabulary has {vocabulary.size} entries, not {options.vocab_size}",
            stacklevel=3,
        )
    return vocabulary


def _train_bpe(
    counts: PretokenCounts, options: Options, progress: Progress | None, memory: int | None
) -> AnyVocabulary:
    assert isinstance(counts.pattern, Pattern)  # `Options.splitter` has checked it
    refuse_misread_by_tokenizers(counts.pattern)  # tokenizer.json could not express it
    order = BYTE_ORDERS[options.byte_order]
    special_tokens = tuple(options.special_tokens)
    merges = learn_merges(
        counts,
        options.vocab_size - 256 - len(special_tokens),
        byte_order=order,
        min_count=options.min_count,
        max_token_length=options.max_token_length,
        memory=memory,
        progress=progress,
    )
    return trained_vocabulary(merges, order, special_tokens, counts.pattern)


def _train_wordpiece(
    counts: PretokenCounts, options: Options, progress: Progress | None, memory: int | None
) -> AnyVocabulary:
    from tokenizer.training.pieces import alphabet_of, learn_pieces

    words = counts.pattern
    assert isinstance(words, BertWords)  # `Options.splitter` has checked it
    special_tokens = tuple(dict.fromkeys([*options.special_tokens, UNKNOWN]))
    for spelling in special_tokens:
        if spelling.startswith(CONTINUATION) or [*words.pretokens(spelling.encode())] == [spelling.encode()]:
            raise ValueError(
                f"the special token {spelling!r} can be a word of the text: choose another, such as '[NAME]'"
            )
    alphabet, later = alphabet_of(counts, options.limit_alphabet, options.alphabet_order)
    tokens = [*special_tokens, *alphabet, *(CONTINUATION + character for character in later)]
    known = {token: i for i, token in enumerate(tokens)}
    if len(tokens) > options.vocab_size:
        raise ValueError(
            f"vocab_size must be at least {len(tokens)}: the words have {len(alphabet)} characters, {len(later)} of "
            "them within words; or keep only the most frequent with limit_alphabet (--limit-alphabet)"
        )
    wanted = options.vocab_size - len(tokens)
    least = None if options.score == "likelihood" and options.min_frequency is None else options.min_count
    tokens += learn_pieces(counts, known, alphabet, later, wanted, options.score, least, memory, progress)
    ids = {token: i for i, token in enumerate(tokens)}
    return WordPieceVocabulary(
        ids=ids, special_tokens={spelling: ids[spelling] for spelling in special_tokens}, pattern=words
    )


_TRAINERS: dict[str, Callable[[PretokenCounts, Options, Progress | None, int | None], AnyVocabulary]]
_TRAINERS = {"bpe": _train_bpe, "wordpiece": _train_wordpiece}

"""From pretoken counts to a vocabulary: validation of options, and training."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np

from tokenizer.arguments import whole_number
from tokenizer.byte_level import BYTE_ORDERS, BYTE_TO_CHARACTER
from tokenizer.formats.number_text import read_number
from tokenizer.special import DEFAULT_SPECIAL_TOKENS, check_special_tokens
from tokenizer.splitting.bert import BertWords
from tokenizer.splitting.metaspace import MetaspaceWords
from tokenizer.splitting.patterns import DEFAULT_PATTERNS, METASPACE_NAMES, Pattern, refuse_misread_by_tokenizers
from tokenizer.splitting.splitters import KIND_OF, TrainingSplitter, resolve_splitter
from tokenizer.training.count_table import Counted
from tokenizer.training.counting import PretokenCounts, Progress
from tokenizer.training.merging import check_memory, learn_merges
from tokenizer.training.piece_rules import PieceRules
from tokenizer.unigram import UnigramVocabulary
from tokenizer.vocabulary import trained_vocabulary
from tokenizer.wordpiece import CONTINUATION, UNKNOWN, WordPieceVocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tokenizer.encoding.kinds import AnyVocabulary

MODELS = tuple(DEFAULT_PATTERNS)
# The options that only some models have, with these models.
_MODELS_OF = {
    "max_token_length": ("bpe",),
    "tie_break": ("bpe",),
    "min_frequency": ("bpe", "wordpiece"),
    "limit_alphabet": ("wordpiece",),
    "alphabet_order": ("wordpiece",),
    "score": ("wordpiece",),
    "pieces": ("unigram",),
}
SCORES = ("frequency", "likelihood")
TIE_BREAKS = ("ids", "bytes")
LARGEST_VOCABULARY = 2**24
UNKNOWN_PIECE = "<unk>"
DEFAULT_MIN_FREQUENCY = 2


class TrainingOptions(TypedDict, total=False):
    """Keyword arguments of `Tokenizer.train` and `train_from_counts`, which `Options` checks."""

    model: Literal["bpe", "wordpiece", "unigram"]
    special_tokens: Sequence[str]
    min_frequency: int | None
    max_token_length: int | None
    byte_order: Literal["gpt2", "raw"]
    tie_break: Literal["ids", "bytes"]
    limit_alphabet: int | None
    alphabet_order: str | None
    score: Literal["frequency", "likelihood"]
    pieces: PieceRules | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `Tokenizer.train`. Raises ValueError for options with which no vocabulary can be trained."""

    vocab_size: int
    model: str = "bpe"
    special_tokens: Sequence[str] = DEFAULT_SPECIAL_TOKENS
    min_frequency: int | None = None
    max_token_length: int | None = None
    byte_order: str = "gpt2"
    tie_break: str = "ids"
    limit_alphabet: int | None = None
    alphabet_order: str | None = None
    score: str = "frequency"
    pieces: PieceRules | None = None

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model must be {' or '.join(MODELS)}, not {self.model!r}")
        object.__setattr__(self, "special_tokens", check_special_tokens(self.special_tokens))
        for name, least in (("min_frequency", 0), ("max_token_length", 1), ("limit_alphabet", 1)):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value, least))
        for name, known in (("byte_order", BYTE_ORDERS), ("tie_break", TIE_BREAKS), ("score", SCORES)):
            if getattr(self, name) not in [*known]:
                raise ValueError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)!r}")
        for name, models in _MODELS_OF.items():
            if getattr(self, name) not in (None, "frequency", "ids") and self.model not in models:
                option = "all --pieces options" if name == "pieces" else f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{name} is not an option of {self.model}: leave out {option}, or choose {' or '.join(models)}"
                )
        for spelling in self.special_tokens:
            if self.model == "bpe" and spelling in BYTE_TO_CHARACTER.values():
                raise ValueError(
                    f"the special token {spelling!r} is also the spelling of a single byte, which already has an id: "
                    "choose another spelling, such as '<|name|>'"
                )
        self._check_size()

    def _check_size(self) -> None:
        first, entries = {"bpe": ("the 256 bytes", 256), "wordpiece": ("a character", 1)}.get(
            self.model, ("a character, <unk>", 2)
        )
        if self.pieces is not None and self.pieces.byte_fallback:
            first, entries = f"{first}, the 256 bytes", entries + 256
        least = entries + len({*self.special_tokens} - {UNKNOWN_PIECE})
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

    def splitter(self, pattern: str | TrainingSplitter | None) -> TrainingSplitter:
        """Return the resolved pattern, by default that of the model. Raises ValueError for one of another model."""
        resolved = resolve_splitter(DEFAULT_PATTERNS[self.model] if pattern is None else pattern)
        if KIND_OF[type(resolved)] != self.model:
            raise ValueError(
                f"{self.model} needs {_SPLITTERS[self.model]}, not {resolved}, which belongs to another model"
            )
        return resolved


_SPLITTERS = {
    "bpe": "a pattern such as cl100k",
    "wordpiece": "words: bert-uncased or bert-cased",
    "unigram": f"words: {', '.join(METASPACE_NAMES)}, or the pattern of a Unigram vocabulary",
}


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def train_vocabulary(
    counts: PretokenCounts, options: Options, threads: int | None, progress: Progress | None, memory: int | None
) -> AnyVocabulary:
    """Return a vocabulary trained as `Tokenizer.train_from_counts` describes.

    Warns if pairs or substrings run out. The warning points to the caller's caller.
    """
    options.splitter(counts.pattern)
    if options.model == "unigram":
        trained = _train_unigram(counts, options, threads, progress, memory)
        vocabulary: AnyVocabulary = trained
        problem = _why_too_few_pieces(trained, options.pieces or PieceRules())
    else:
        check_memory(counts, memory)
        vocabulary = (_train_bpe if options.model == "bpe" else _train_wordpiece)(counts, options, progress, memory)
        problem = f"the corpus ran out of pairs that occur at least {options.min_count} times"
    if vocabulary.size < options.vocab_size:
        warnings.warn(
            f"{problem}: the vocabulary has {vocabulary.size} entries, not {options.vocab_size}",
            stacklevel=3,
        )
    return vocabulary


def _why_too_few_pieces(vocabulary: UnigramVocabulary, rules: PieceRules) -> str:
    """Return why a vocabulary has fewer entries than requested."""
    learned = vocabulary.pieces[257 if rules.byte_fallback else 1 :]  # after <unk> and the bytes
    if sum(len(piece) > 1 for piece in learned) >= rules.seed_size:
        return f"training starts from only {rules.seed_size:,} substrings (seed_size, --pieces.seed-size)"
    return "the corpus ran out of substrings that occur at least twice"


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
        tie_break=options.tie_break,
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
    learned = learn_pieces(counts, known, alphabet, later, wanted, options.score, least, memory, progress)
    ids = {token: i for i, token in enumerate([*tokens, *learned.tokens])}
    return WordPieceVocabulary(
        ids=ids,
        special_tokens={spelling: ids[spelling] for spelling in special_tokens},
        pattern=words,
        learned_merges=learned.merges,
    )


def _train_unigram(
    counts: PretokenCounts, options: Options, threads: int | None, progress: Progress | None, memory: int | None
) -> UnigramVocabulary:
    """Return the vocabulary: <unk>, the bytes of byte_fallback, pieces in the order of their scores, special tokens.

    Special tokens are not pieces, so text that spells one stays text.
    """
    from tokenizer.training.unigram import check_memory, learn_pieces

    words, rules = counts.pattern, options.pieces or PieceRules()
    assert isinstance(words, MetaspaceWords)  # `Options.splitter` has checked it
    check_memory(counts, memory)
    first = [UNKNOWN_PIECE, *(f"<0x{byte:02X}>" for byte in range(256) if rules.byte_fallback)]
    later = [spelling for spelling in options.special_tokens if spelling != UNKNOWN_PIECE]
    wanted = options.vocab_size - len(first) - len(later)
    learned = learn_pieces(Counted(counts.data, counts.offsets, counts.counts), wanted, rules, threads, progress)
    # As tokenizers reads them. <unk> and the bytes score below the sum of their characters, so no text becomes one.
    scores = [read_number(f"{score:.10f}") for _, score in learned]
    lowest = [read_number(f"{scores[-1] * len(piece) - 1:.10f}") for piece in first]
    pieces = [*first, *(piece for piece, _ in learned)]
    if both := {*later} & {*pieces}:
        raise ValueError(
            f"the special token {min(both)!r} is also a learned piece: choose another spelling, such as '<|name|>'"
        )
    special = {UNKNOWN_PIECE: 0} | {spelling: len(pieces) + k for k, spelling in enumerate(later)}
    return UnigramVocabulary(
        pieces=pieces,
        scores=[*lowest, *scores],
        unknown=0,
        special_tokens=special,
        pattern=words,
        byte_fallback=rules.byte_fallback,
        decoder=[*([{"type": "ByteFallback"}] if rules.byte_fallback else []), words.field],
    )

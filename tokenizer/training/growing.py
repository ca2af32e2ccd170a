"""Grow a vocabulary of BPE over bytes, characters or integers: continue training from its merges.

Each distinct pretoken of the new text is encoded with the old merges. Its tokens are the first symbols, and ordinary
training merges them further. The new merges rank after all old ones. So every text is encoded as before, except that
some neighbouring tokens are joined (Purason et al. 2025, arXiv 2512.03989).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenizer.argument_checks import check_callable, whole_number
from tokenizer.bpe_vocabulary import BytePairVocabulary
from tokenizer.byte_level import BY_RANKS, BYTE_TO_CHARACTER, unspell
from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
from tokenizer.document_blocks import Block
from tokenizer.encoding.text_encoder import TextEncoder
from tokenizer.integer_vocabulary import IntegerVocabulary
from tokenizer.kinds.kind import changed
from tokenizer.kinds.registry import kind_named
from tokenizer.kinds.sentencepiece import refuse_model
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.integers import WIDTH, Integers
from tokenizer.splitting.normalized_splitter import NormalizedSplitter
from tokenizer.splitting.normalizers import MARK
from tokenizer.splitting.patterns import SUPERWORD_STEPS
from tokenizer.splitting.splitter import Splitter
from tokenizer.training.counting import PretokenCounts, Progress, count_pretokens
from tokenizer.training.train import DEFAULT_MIN_FREQUENCY, LARGEST_VOCABULARY
from tokenizer.training.wordpiece_training import PROGRESS_STEP, MergeLoop, lay_out_symbols
from tokenizer.vocabulary import LONGEST_TOKEN, Vocabulary
from tokenizer.warn import warn
from tokenizer.workers import thread_count

COLON = b": "
MergedVocabulary = BytePairVocabulary | CharacterPairVocabulary | IntegerVocabulary


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The options of `Tokenizer.grow`. Raises ValueError, which names the argument, for an invalid one.

    entries: size of the grown vocabulary with special tokens: its largest id plus 1. memory: limit in bytes.
    spill_folder: folder for counts beyond the limit, as in `count_pretokens`.
    superwords: maximum number of words in a new token; None: the split pattern stays.
    """

    entries: int
    min_frequency: int = DEFAULT_MIN_FREQUENCY
    max_token_length: int | None = None
    superwords: int | None = None
    threads: int | None = None
    progress: Progress | None = None
    memory: int | None = None
    spill_folder: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        thread_count(self.threads)
        check_callable("progress", self.progress)
        limits = {"entries": 1, "min_frequency": 0, "max_token_length": 1, "superwords": 1, "memory": 1}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None or name in ("entries", "min_frequency"):
                object.__setattr__(self, name, whole_number(name, value, least))
        if self.entries > LARGEST_VOCABULARY:
            raise ValueError(f"entries is {self.entries:,}: give at most {LARGEST_VOCABULARY:,}")

    def check(self, vocabulary: Vocabulary) -> None:
        """Raise ValueError unless the vocabulary can grow to this size."""
        kind = kind_named(vocabulary.kind)
        if kind.no_growth:
            raise ValueError(
                f"{kind.title} cannot grow, because {kind.no_growth}: grow a byte-level BPE vocabulary, or train a new "
                "one"
            )
        if isinstance(vocabulary, CharacterPairVocabulary):
            refuse_model(vocabulary)
            if marks := vocabulary.prefix or vocabulary.suffix:
                raise ValueError(
                    f"a vocabulary that marks words by {marks!r} cannot grow: grow one without such marks, or train a "
                    "new one"
                )
        if self.superwords is not None and not isinstance(vocabulary, BytePairVocabulary):
            raise ValueError(f"superwords is for byte-level BPE, not for {kind.title}: leave it out")
        if self.entries <= vocabulary.size:
            raise ValueError(
                f"entries is {self.entries:,}, but the vocabulary already has {vocabulary.size:,}: give a larger number"
            )


def grow(vocabulary: Vocabulary, corpus: object, growth: Growth) -> Vocabulary:
    """Return the vocabulary that `Tokenizer.grow` describes."""
    growth.check(vocabulary)
    assert isinstance(vocabulary, MergedVocabulary)
    splitter: Splitter = vocabulary.pattern
    if growth.superwords is not None:
        chain = Chain(SUPERWORD_STEPS)
        split_anew: BytePairVocabulary = changed(vocabulary, pattern=chain)
        vocabulary = split_anew
        splitter = chain if any(COLON in (token or b"") for token in vocabulary.tokens) else UpToColons(chain)
    if isinstance(vocabulary, BytePairVocabulary) and vocabulary.normalizer is not None:
        splitter = NormalizedSplitter(vocabulary.normalizer, splitter)
    counts = count_pretokens(corpus, splitter, growth.threads, growth.progress, growth.memory, growth.spill_folder)
    if isinstance(splitter, Integers):
        splitter.check(counts.data)
    grown = grow_pairs(vocabulary, counts, growth)
    if grown.size < growth.entries:
        warn(
            f"the corpus ran out of pairs that occur at least {max(1, growth.min_frequency)} times: the vocabulary has "
            f"{grown.size} entries, not {growth.entries}"
        )
    return grown


class _Pretokens(Splitter):
    """A splitter that makes each document one pretoken."""

    rewrites = False
    identity = "pretokens"

    def __init__(self, marks_spaces: bool) -> None:
        self.marks_spaces = marks_spaces

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        yield text

    def ends_of_block(self, block: Block) -> np.ndarray:
        return np.unique(block.offsets[1:])


class UpToColons(Splitter):
    """Pretokens of superwords, also cut between a colon and a space, which no superword holds."""

    rewrites = False

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    @property
    def identity(self) -> str:
        return f"{self._chain.identity}, cut after colons"

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        for pretoken in self._chain.pretokens(text):
            *before, last = pretoken.split(COLON)
            for number, part in enumerate(before):
                yield (b" " if number else b"") + part + b":"
            yield (b" " if before else b"") + last

    def ends_of_block(self, block: Block) -> np.ndarray | None:
        ends = self._chain.ends_of_block(block)
        if ends is None:
            return None
        data = block.data[: int(block.offsets[-1])]
        colons = np.flatnonzero((data[:-1] == COLON[0]) & (data[1:] == COLON[1])) + 1
        return np.union1d(ends, colons[colons > block.offsets[0]])


def grow_pairs(vocabulary: MergedVocabulary, counts: PretokenCounts, options: Growth) -> MergedVocabulary:
    """Return the vocabulary with further merges, learned from pretokens.

    Old ids and merges stay. New tokens get the ids from `vocabulary.size` on; a merge can also make an old token, which
    keeps its id. Among pairs of equal count, the pair with the smallest left id, then right id is merged first. Pairs
    that spell a special token are left out. The result is smaller than wanted if no pair is frequent enough.
    """
    symbols, offsets = _segmented(vocabulary, counts, options.threads)
    spare = None if options.memory is None else options.memory - counts.data.nbytes - symbols.nbytes
    loop = MergeLoop(lay_out_symbols(symbols, offsets, counts.counts, spare), max(1, options.min_frequency), spare)
    tokens: list[Any] = list(vocabulary.tokens)
    ids = {token: i for i, token in enumerate(tokens) if token is not None}
    apart = _never_merged(vocabulary)
    is_refused = _rule_for_tokens(vocabulary, options, apart)
    wanted, pairs = options.entries - vocabulary.size, dict.fromkeys(vocabulary.merge_pairs)
    present = len(pairs)
    new = 0
    while loop.made < wanted and (pair := loop.find(new)):
        left, right = tokens[pair[0]], tokens[pair[1]]
        if not apart.isdisjoint(pair) or is_refused(token := left + right):
            loop.refuse()
            continue
        pairs.setdefault((left, right))  # a present merge applies again if a later one makes its parts
        if token not in ids:
            ids[token] = len(tokens)
            tokens.append(token)
            loop.made += 1
            if options.progress is not None and (loop.made % PROGRESS_STEP == 0 or loop.made == wanted):
                options.progress("merge", loop.made, wanted)
        new = ids[token]
    if isinstance(vocabulary, BytePairVocabulary):
        return _with_merges(vocabulary, [*pairs][present:], tokens[vocabulary.size :])
    return _with_spelled_merges(vocabulary, [*pairs][present:], tokens[vocabulary.size :])


def _rule_for_tokens(vocabulary: MergedVocabulary, options: Growth, apart: set[int]) -> Callable[[bytes], bool]:
    """Return the function that tells which new tokens are refused. apart: ids of tokens that no merge makes."""
    tokens = vocabulary.tokens
    spellings = {spelling.encode() for spelling in vocabulary.special_tokens}
    if isinstance(vocabulary, BytePairVocabulary):  # tokenizer.json spells bytes in ByteLevel's alphabet
        alphabet = {*BYTE_TO_CHARACTER.values()}
        spellings |= {unspell(each) for each in vocabulary.special_tokens if alphabet.issuperset(each)}
    special = spellings - {*tokens} | {tokens[i] for i in apart}
    longest = options.max_token_length or 2**62
    if isinstance(vocabulary, IntegerVocabulary):
        longest *= WIDTH
    of_characters = isinstance(vocabulary, CharacterPairVocabulary)
    words = options.superwords
    # If no token of a vocabulary of characters joins words, no new token does, even if texts are not split into words.
    in_words = of_characters and not any(map(_joins_words, filter(None, tokens)))

    def is_refused(token: bytes) -> bool:
        if token in special or len(token) > longest or (of_characters and len(token.decode()) > LONGEST_TOKEN):
            return True
        return (in_words and _joins_words(token)) or (words is not None and _is_long(token, words))

    return is_refused


def _joins_words(token: bytes) -> bool:
    """Return whether a token has the mark of a space after another character."""
    return MARK in token.decode().lstrip(MARK)


def _never_merged(vocabulary: MergedVocabulary) -> set[int]:
    """Return the ids that no merge joins: of unknown characters, of bytes that spell them, and of special tokens.

    An empty set for bytes and integers, whose texts never have such ids.
    """
    if not isinstance(vocabulary, CharacterPairVocabulary):
        return set()
    apart = {*vocabulary.special_ids, *(vocabulary.byte_ids or {}).values()}
    return apart if vocabulary.unknown_id is None else {*apart, vocabulary.unknown_id}


def _is_long(token: bytes, words: int) -> bool:
    """Return whether a token has more words than allowed, or a colon before a space (Liu et al. 2025)."""
    return COLON in token or sum(map(bool, token.split(b" "))) > words


def _segmented(
    vocabulary: MergedVocabulary, counts: PretokenCounts, threads: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all pretokens, int32, and the offset of each pretoken's ids, int64 (n + 1,)."""
    whole = copy(vocabulary)
    if not isinstance(whole, IntegerVocabulary):  # a sequence of integers is one pretoken anyway
        pattern: Any = _Pretokens(whole.pattern.marks_spaces)
        whole.pattern, whole.normalizer = pattern, None
    ids, offsets = TextEncoder(whole).to_arrays(Block(counts.data, counts.offsets), threads)
    return ids.view(np.int32), offsets


def _with_merges(
    vocabulary: BytePairVocabulary, added: list[tuple[bytes, bytes]], tokens: list[bytes]
) -> BytePairVocabulary:
    """Return the vocabulary with more merges, and with new tokens whose ids follow the largest old one."""
    by_ranks = vocabulary.rule == BY_RANKS
    present: Any = vocabulary.merge_pairs if vocabulary.pairs is None else vocabulary.pairs
    written = vocabulary.written
    ids = {**vocabulary.ids, **{written(token): vocabulary.size + k for k, token in enumerate(tokens)}}
    first, merged = vocabulary.first_merged, len(present)
    follows = first is not None and first + merged == vocabulary.size and len(tokens) == len(added)
    if vocabulary.pairs is None and vocabulary.spelled:
        present = [(written(left), written(right)) for left, right in present]
    grown: BytePairVocabulary = changed(
        vocabulary,
        ids=ids,
        pairs=[*present, *((written(left), written(right)) for left, right in added)],
        first_merged=first if follows else None,
        rule=vocabulary.semantics if by_ranks else vocabulary.rule,
    )
    return grown


def _with_spelled_merges(
    vocabulary: CharacterPairVocabulary | IntegerVocabulary, added: list[tuple[bytes, bytes]], tokens: list[bytes]
) -> CharacterPairVocabulary | IntegerVocabulary:
    """Return the vocabulary, whose tokens are strings, with more merges and tokens."""
    grown: CharacterPairVocabulary | IntegerVocabulary = changed(
        vocabulary,
        ids={  # also the special tokens, because tokenizer.json gives tokens outside `ids` the last numbers
            **vocabulary.ids,
            **vocabulary.special_tokens,
            **{token.decode(): vocabulary.size + k for k, token in enumerate(tokens)},
        },
        pairs=[*vocabulary.pairs, *((left.decode(), right.decode()) for left, right in added)],
    )
    return grown

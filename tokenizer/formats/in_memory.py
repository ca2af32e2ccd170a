"""Vocabularies made in memory: from ranks, merges or WordPiece tokens, or by adding special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokenizer.argument_checks import check_iterable
from tokenizer.bpe_vocabulary import LONGEST_RANKED_TOKEN, BytePairVocabulary
from tokenizer.byte_level import BY_RANKS, spell
from tokenizer.formats.other_kinds import refuse_marked_words
from tokenizer.formats.spelled_vocabulary import LARGEST_ID, build_vocabulary, check_largest_id, expect, is_id, quote
from tokenizer.special import check_special_tokens
from tokenizer.splitting.normalizers import NFC, Normalization
from tokenizer.splitting.patterns import Pattern, resolve_pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.splitting.bert_splitter import BertWords
    from tokenizer.wordpiece_vocabulary import WordPieceVocabulary


def checked_special_tokens(special_tokens: Mapping[str, int] | None) -> dict[str, int]:
    """Return special tokens with their ids as a new dict. Raises ValueError for any other type, spelling or id."""
    if special_tokens is not None and not isinstance(special_tokens, Mapping):
        raise ValueError(
            "special_tokens must be a dict from spelling to id, such as {'<|endoftext|>': 100257}, "
            f"not a {type(special_tokens).__name__}"
        )
    special_tokens = dict(special_tokens or {})
    check_special_tokens(tuple(special_tokens))
    for spelling, i in special_tokens.items():
        if not is_id(i):
            raise ValueError(f"the id of the special token {spelling!r} must be below {LARGEST_ID}, not {i!r}")
    return special_tokens


def normalization_named(normalizer: str | None) -> Normalization | None:
    """Return the normalization with this name. Raises ValueError unless it is NFC or None."""
    if normalizer is None:
        return None
    if normalizer != "NFC":
        raise ValueError(f"normalizer must be 'NFC' or None, not {normalizer!r}")
    return NFC


def vocabulary_of_ranks(
    ranks: Mapping[bytes, int],
    pattern: str | Pattern,
    special_tokens: Mapping[str, int] | None,
    normalizer: str | None = None,
    unreachable: Mapping[str, int] | None = None,
) -> BytePairVocabulary:
    """Return the vocabulary of tiktoken's ranks, which are ids. unreachable: as in `BytePairVocabulary`."""
    special_tokens = checked_special_tokens(special_tokens)
    normalization = normalization_named(normalizer)
    check_largest_id(max([*ranks.values(), *special_tokens.values()], default=0), len(ranks) + len(special_tokens))
    longest = max(map(len, ranks), default=0)
    if longest > LONGEST_RANKED_TOKEN:
        raise ValueError(f"a token has {longest} bytes; a vocabulary of ranks may have at most {LONGEST_RANKED_TOKEN}")
    return BytePairVocabulary(
        ids=ranks,
        special_tokens=special_tokens,
        pattern=resolve_pattern(pattern),
        rule=BY_RANKS,
        unreachable=unreachable,
        normalizer=normalization,
    )


def checked_ranks(ranks: object) -> dict[bytes, int]:
    """Return ranks as a new dict. Raises ValueError unless they map non-empty bytes to distinct ids."""
    if not isinstance(ranks, Mapping) or not ranks:
        raise ValueError(f"ranks must be a dict from bytes to id with all 256 single bytes, not {quote(ranks)}")
    seen: dict[int, bytes] = {}
    for token, rank in ranks.items():
        expect(isinstance(token, bytes) and token != b"", f"ranks: the token {quote(token)} is not bytes, or is empty")
        expect(is_id(rank), f"ranks: the rank {quote(rank)} of {quote(token)} is not an id below {LARGEST_ID}")
        expect(rank not in seen, f"ranks: {quote(seen.get(rank))} and {quote(token)} have the same rank {rank}")
        seen[rank] = token
    return dict(ranks)


def vocabulary_of_merges(
    ids: Mapping[str, int] | Mapping[bytes, int],
    merges: Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]],
    pattern: str | Pattern,
    special_tokens: Mapping[str, int] | None,
    normalizer: str | None = None,
) -> BytePairVocabulary:
    """Return the vocabulary of tokens with their ids and of merges. Tokens are bytes, or spelled as in vocab.json."""
    special_tokens, pattern = checked_special_tokens(special_tokens), resolve_pattern(pattern)
    check_iterable("merges", merges, "pairs of tokens")
    normalization = normalization_named(normalizer)
    try:
        spelled = {_spell(token): i for token, i in _items(ids)}
        pairs = [[_spell(part) for part in merge] if isinstance(merge, (list, tuple)) else merge for merge in merges]
        refuse_marked_words(spelled, pairs, special_tokens)
        return build_vocabulary(
            spelled,
            pairs,
            special_tokens,
            pattern,
            vocab_field="it",
            normalizer=normalization,
        )
    except ValueError as error:
        raise ValueError(f"vocabulary: {error}") from None


def _spell(token: Any) -> Any:
    return spell(token) if isinstance(token, bytes) else token


def _items(ids: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(ids, Mapping) or not all(isinstance(token, (str, bytes)) for token in ids):
        raise ValueError(f"must be a dict from token to id, not {quote(ids)}")
    return ids.items()


def vocabulary_of_pieces(
    ids: Mapping[str, int], pattern: str | BertWords, special_tokens: Mapping[str, int] | None
) -> WordPieceVocabulary:
    """Return the WordPiece vocabulary of tokens with their ids. special_tokens default to BERT's that are in `ids`."""
    from tokenizer.formats.wordpiece_files import BERT_SPECIAL_TOKENS, build_wordpiece
    from tokenizer.splitting.bert_splitter import NAMED_WORDS, BertWords, words_of

    words = pattern if isinstance(pattern, BertWords) else words_of(pattern) if isinstance(pattern, str) else None
    if words is None:
        raise ValueError(f"pattern must be one of {', '.join(NAMED_WORDS)}, not {pattern!r}")
    if special_tokens is not None:
        special_tokens = checked_special_tokens(special_tokens)
    try:
        ids = dict(_items(ids))
        if special_tokens is None:
            special_tokens = {spelling: ids[spelling] for spelling in BERT_SPECIAL_TOKENS if spelling in ids}
        return build_wordpiece(special_tokens | ids, special_tokens, words, field="it")
    except ValueError as error:
        raise ValueError(f"vocabulary: {error}") from None

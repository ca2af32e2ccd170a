"""Vocabularies from spelled tokens, their ids and merges, as several file formats store them, with full checks.

Bulk checks take as long as parsing the file. If one fails, a second pass over the entries finds the one to report.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import chain, islice
from operator import eq, lt

from tokenizer.bpe_vocabulary import BytePairVocabulary
from tokenizer.byte_level import BY_MERGES, BYTE_TO_CHARACTER, batches, unspell
from tokenizer.special import check_special_tokens
from tokenizer.splitting.patterns import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from tokenizer.splitting.chains import Chain
    from tokenizer.splitting.normalizers import Normalization

LARGEST_ID = 2**24


def build_vocabulary(
    vocab: Any,
    merges: Any,
    special: dict[str, int],
    pattern: Pattern | Chain,
    *,
    rule: str = BY_MERGES,
    vocab_field: str = "model.vocab",
    normalizer: Normalization | None = None,
    added_flags: Mapping[str, dict[str, bool]] | None = None,
    post_processor: dict[str, Any] | None = None,
    length_settings: dict[str, Any] | None = None,
    keeps_unreachable: bool = False,
) -> BytePairVocabulary:
    """Return a vocabulary from spelled tokens with ids, and merges.

    Takes over `vocab` and removes its special tokens, except bytes and merged tokens, which text can become.
    keeps_unreachable: whether tokens may be empty or have characters outside ByteLevel's alphabet, as in `tokenizers`.
    No text becomes them, so their merges are left out.
    Raises ValueError that names the wrong entry. `vocab_field` is the name of `vocab` in messages.
    """
    expect(isinstance(vocab, dict), f"has no {vocab_field}, or it is not an object")
    expect(isinstance(merges, list), "has no merges, or they are not a list")
    check_ids(vocab, special, vocab_field)
    for spelling in [spelling for spelling in special if not _is_ordinary(spelling, vocab, merges)]:
        vocab.pop(spelling, None)
    unreachable: dict[str, int] = {}
    if keeps_unreachable:
        unreachable, merges = _cut_unreachable(vocab, merges)
    _check_spellings(vocab, vocab_field)
    pairs, first_merged = _parse_merges(merges, vocab)
    return BytePairVocabulary(
        ids=vocab,
        spelled=True,
        pairs=pairs,
        first_merged=first_merged,
        unreachable=unreachable,
        special_tokens=special,
        pattern=pattern,
        rule=rule,
        normalizer=normalizer,
        added_flags=added_flags,
        post_processor=post_processor,
        length_settings=length_settings,
    )


def _is_ordinary(spelling: str, vocab: dict[str, Any], merges: list[Any]) -> bool:
    """Return whether a token of the vocabulary is a byte or a merged token."""
    if len(spelling) == 1:
        return spelling in BYTE_TO_CHARACTER.values()
    cuts = ((spelling[:length], spelling[length:]) for length in range(1, len(spelling)))
    pairs = [[left, right] for left, right in cuts if left in vocab and right in vocab]
    return any(pair in merges or " ".join(pair) in merges for pair in pairs)


def check_ids(vocab: dict[str, Any], special: dict[str, int], vocab_field: str) -> None:
    """Raise ValueError unless ids are distinct whole numbers in range, and special tokens have the same id in both."""
    check_special_tokens(tuple(special))
    if not _are_valid_ids(vocab, special):
        _raise_for_id(vocab, special, vocab_field)


def largest_size(entries: int) -> int:
    """Return the largest vocabulary size for a number of entries. It allows some unused ids, but bounds the memory."""
    return 2 * entries + 65536


def check_largest_id(largest: int, entries: int) -> None:
    """Raise ValueError if an id is too large for a vocabulary with this number of tokens, special ones included."""
    limit = min(LARGEST_ID, largest_size(entries))
    expect(
        largest < limit,
        f"ids up to {largest} are too large for {entries:,} tokens: the largest allowed id is {limit - 1}",
    )


def most_merges(ids: Mapping[str, int]) -> int:
    """Return an upper bound of the number of merges: one for each position where a token can be cut."""
    return sum(map(len, ids))


def _are_valid_ids(vocab: dict[str, Any], special: dict[str, int]) -> bool:
    """Return whether ids are whole numbers, in range and distinct. A special token in `vocab` must have the same id."""
    values = list(vocab.values())
    if not set(map(type, values)) <= {int} or not all(map(is_id, special.values())):
        return False
    if not all(map(lt, values, values[1:])):
        values.sort()
        if not all(map(lt, values, values[1:])):
            return False
    both = [*values[:1], *values[-1:], *special.values()]
    if both and not 0 <= min(both) <= max(both) < min(LARGEST_ID, largest_size(_entries(vocab, special))):
        return False
    for spelling, i in special.items():
        place = bisect_left(values, i)
        taken = place < len(values) and values[place] == i
        if taken != (spelling in vocab) or (taken and vocab[spelling] != i):
            return False
    return True


def _entries(vocab: dict[str, Any], special: dict[str, int]) -> int:
    """Return the number of tokens, special ones included."""
    return len(vocab) + sum(spelling not in vocab for spelling in special)


def _raise_for_id(vocab: dict[str, Any], special: dict[str, int], vocab_field: str) -> NoReturn:
    for spelling, i in [*vocab.items(), *special.items()]:
        expect(is_id(i), f"has the id {quote(i)} for {quote(spelling)} in {vocab_field}")
    check_largest_id(max([*vocab.values(), *special.values()], default=-1), _entries(vocab, special))
    taken: dict[int, str] = {}
    for spelling, i in vocab.items():
        expect(i not in taken, f"gives the id {i} twice in {vocab_field}: {quote(taken.get(i))} and {quote(spelling)}")
        taken[i] = spelling
        expect(special.get(spelling, i) == i, f"gives {quote(spelling)} the ids {i} and {special.get(spelling)}")
    for spelling, i in special.items():
        expect(taken.get(i, spelling) == spelling, f"gives the id {i} to {quote(taken.get(i))} and {quote(spelling)}")
    raise AssertionError("the bulk check of ids is stricter than the check of each entry")


def _cut_unreachable(vocab: dict[str, int], merges: list[Any]) -> tuple[dict[str, int], list[Any]]:
    """Take the tokens out of `vocab` that spell no bytes. Return their ids, and the merges without them."""
    alphabet = {*BYTE_TO_CHARACTER.values()}
    strange = [token for token in vocab if token == "" or not alphabet.issuperset(token)]
    if not strange:
        return {}, merges
    unreachable = {token: vocab.pop(token) for token in strange}
    kept = []
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not (isinstance(parts, list) and len(parts) == 2 and any(map(unreachable.__contains__, map(str, parts)))):
            kept.append(merge)
    return unreachable, kept


def _check_spellings(ids: dict[str, int], vocab_field: str) -> None:
    expect("" not in ids, f"has an empty token in {vocab_field}")
    try:
        for batch in batches(list(ids)):
            unspell("".join(batch))
    except KeyError as error:
        character = error.args[0]
        spelling = next(spelling for spelling in ids if character in spelling)
        raise ValueError(
            f"has {quote(spelling)} in {vocab_field}, whose character {character!r} spells no byte "
            "(is it a special token that is missing in added_tokens?)"
        ) from None


def _parse_merges(merges: list[Any], ids: dict[str, int]) -> tuple[list[list[str]], int | None]:
    """Return the merges as pairs, and the id of the first merged token.

    The id is None unless the ids of all merged tokens follow it without gaps, in the order of the merges.
    """
    if len(merges) > most_merges(ids):
        _raise_for_merge(merges, ids)
    kinds = set(map(type, merges))
    pairs = [merge.split(" ") for merge in merges] if kinds == {str} else merges
    try:
        valid = kinds in ({str}, {list}, set()) and set(map(len, pairs)) <= {2}
        valid = valid and all(map(ids.__contains__, chain.from_iterable(pairs)))
    except TypeError:  # a part that cannot be a key
        valid = False
    if not valid:
        _raise_for_merge(merges, ids)
    first = ids.get("".join(pairs[0])) if pairs else None
    if first is not None:
        # In most files, merged tokens are in the order of the merges. Then no pair can be there twice.
        tokens, values = list(ids), list(ids.values())
        at = values.index(first)
        end = at + len(pairs)
        if (
            end <= len(tokens)
            and values[end - 1] - first == len(pairs) - 1
            and values[at:end] == sorted(values[at:end])
            and all(map(eq, map("".join, pairs), islice(tokens, at, end)))
        ):
            return pairs, first
    if not all(map(ids.__contains__, map("".join, pairs))) or len(set(map(tuple, pairs))) < len(pairs):
        _raise_for_merge(merges, ids)
    return pairs, None


def _raise_for_merge(merges: list[Any], ids: dict[str, int]) -> NoReturn:
    seen = set()
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        expect(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair),
            f"has merge {number}, which is not a pair: {quote(merge)}",
        )
        left, right = pair
        named = f"merge {number} ({quote(left)}, {quote(right)})"
        for part in (left, right, left + right):
            expect(part in ids, f"has {named} with {quote(part)}, which the vocabulary lacks")
        expect((left, right) not in seen, f"has {named} twice")
        seen.add((left, right))
    raise ValueError("has merges of two kinds: lists and strings")


def is_id(i: Any) -> bool:
    """Return whether a value is a whole number in the range of ids."""
    return isinstance(i, int) and not isinstance(i, bool) and 0 <= i < LARGEST_ID


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quote(value: Any) -> str:
    """Return a value's repr for a message, shortened to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def expect(condition: bool, problem: str) -> None:
    """Raise ValueError with the file's problem, as the end of a sentence, unless the condition holds."""
    if not condition:
        raise ValueError(problem)

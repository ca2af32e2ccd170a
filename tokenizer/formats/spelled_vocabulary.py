"""A vocabulary from spelled tokens with their ids and merges, as several file formats have them, all of it checked.

It is checked in bulk, which takes as long as parsing the file; only where something is wrong is it gone through entry
by entry, to name what.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import chain, islice
from operator import eq, lt

from tokenizer.byte_level import batches, unspell
from tokenizer.special import check_special_tokens
from tokenizer.splitting.patterns import Pattern
from tokenizer.vocabulary import BY_MERGES, Vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST_ID = 2**24


def build_vocabulary(
    vocab: Any,
    merges: Any,
    special: dict[str, int],
    pattern: Pattern,
    *,
    rule: str = BY_MERGES,
    vocab_field: str = "model.vocab",
    normalizer: str | None = None,
    added_flags: Mapping[str, dict] | None = None,
    post_processor: dict | None = None,
) -> Vocabulary:
    """A vocabulary from spelled tokens with their ids and merges, every field of them checked; it keeps `vocab`."""
    expect(isinstance(vocab, dict), f"has no {vocab_field}, or it is no object")
    expect(isinstance(merges, list), "has no merges, or they are no list")
    check_special_tokens(tuple(special))
    if not _are_sound_ids(vocab, special):
        _name_unsound_id(vocab, special, vocab_field)
    for spelling in special:
        vocab.pop(spelling, None)
    _check_spellings(vocab, vocab_field)
    pairs, first_merged = _parse_merges(merges, vocab)
    return Vocabulary(
        ids=vocab,
        spelled=True,
        pairs=pairs,
        first_merged=first_merged,
        special_tokens=special,
        pattern=pattern,
        rule=rule,
        normalizer=normalizer,
        added_flags=added_flags,
        post_processor=post_processor,
    )


def largest_size(entries: int) -> int:
    """How many ids a file with that many tokens may have: some may be unused, but not most of a large number."""
    return 2 * entries + 65536


def most_merges(ids: Mapping[str, int]) -> int:
    """How many distinct pairs can make these tokens at most: there is one for every place to cut one of them."""
    return sum(map(len, ids))


def _are_sound_ids(vocab: dict[str, Any], special: dict[str, int]) -> bool:
    """Whether ids are whole numbers, in range and distinct, and tokens that are also special have the same id twice."""
    values = list(vocab.values())
    if not set(map(type, values)) <= {int} or not all(map(is_id, special.values())):
        return False
    if not all(map(lt, values, values[1:])):
        values.sort()
        if not all(map(lt, values, values[1:])):
            return False
    both = [*values[:1], *values[-1:], *special.values()]
    if both and not 0 <= min(both) <= max(both) < min(LARGEST_ID, largest_size(len(vocab) + len(special))):
        return False
    for spelling, i in special.items():
        place = bisect_left(values, i)
        taken = place < len(values) and values[place] == i
        if taken != (spelling in vocab) or (taken and vocab[spelling] != i):
            return False
    return True


def _name_unsound_id(vocab: dict[str, Any], special: dict[str, int], vocab_field: str) -> None:
    for spelling, i in [*vocab.items(), *special.items()]:
        expect(is_id(i), f"has the id {shown(i)} for {shown(spelling)} in {vocab_field}")
    size = max([*vocab.values(), *special.values()], default=-1) + 1
    entries = len(vocab) + len(special)
    expect(size <= largest_size(entries), f"has ids up to {size - 1} for {entries} tokens")
    taken: dict[int, str] = {}
    for spelling, i in vocab.items():
        expect(i not in taken, f"gives the id {i} twice in {vocab_field}: {shown(taken.get(i))} and {shown(spelling)}")
        taken[i] = spelling
        expect(special.get(spelling, i) == i, f"gives {shown(spelling)} the ids {i} and {special.get(spelling)}")
    for spelling, i in special.items():
        expect(taken.get(i, spelling) == spelling, f"gives the id {i} to {shown(taken.get(i))} and {shown(spelling)}")
    raise AssertionError("the bulk check of ids is stricter than the one that names them")


def _check_spellings(ids: dict[str, int], vocab_field: str) -> None:
    expect("" not in ids, f"has an empty token in {vocab_field}")
    try:
        for batch in batches(list(ids)):
            unspell("".join(batch))
    except KeyError as error:
        character = error.args[0]
        spelling = next(spelling for spelling in ids if character in spelling)
        raise ValueError(
            f"has {shown(spelling)} in {vocab_field}, whose character {character!r} spells no byte "
            "(is it a special token that is missing in added_tokens?)"
        ) from None


def _parse_merges(merges: list, ids: dict[str, int]) -> tuple[list[list[str]], int | None]:
    """The merges as pairs; and the id of the first one's token where the others' follow one by one, else None."""
    if len(merges) > most_merges(ids):
        _name_unsound_merge(merges, ids)
    kinds = set(map(type, merges))
    pairs = [merge.split(" ") for merge in merges] if kinds == {str} else merges
    try:
        sound = kinds in ({str}, {list}, set()) and set(map(len, pairs)) <= {2}
        sound = sound and all(map(ids.__contains__, chain.from_iterable(pairs)))
    except TypeError:  # a part that cannot be a key
        sound = False
    if not sound:
        _name_unsound_merge(merges, ids)
    first = ids.get("".join(pairs[0])) if pairs else None
    if first is not None:
        # In most files the tokens that merges make stand in their order; then no pair is there twice.
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
        _name_unsound_merge(merges, ids)
    return pairs, None


def _name_unsound_merge(merges: list, ids: dict[str, int]) -> None:
    seen = set()
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        expect(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair),
            f"has merge {number} that is no pair: {shown(merge)}",
        )
        left, right = pair
        named = f"merge {number} ({shown(left)}, {shown(right)})"
        for part in (left, right, left + right):
            expect(part in ids, f"has {named} with {shown(part)}, which the vocabulary lacks")
        expect((left, right) not in seen, f"has {named} twice")
        seen.add((left, right))
    raise ValueError("has merges some of which are lists and some strings")


def is_id(i: Any) -> bool:
    return isinstance(i, int) and not isinstance(i, bool) and 0 <= i < LARGEST_ID


def shown(value: Any) -> str:
    """How a message shows what a file holds, which may be long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def expect(condition: bool, what: str) -> None:
    """Raise a ValueError that says what is wrong with the file, unless the condition holds."""
    if not condition:
        raise ValueError(what)

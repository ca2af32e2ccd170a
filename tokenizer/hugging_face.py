"""The tokenizer.json format of Hugging Face's tokenizers, there and back, where it says only what we do.

A file is checked in bulk, which takes as long as parsing it; only where something is wrong is it gone through entry by
entry, to name what.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import chain, islice
from operator import eq, lt

from tokenizer.byte_level import spell, unspell
from tokenizer.patterns import NAMES, Pattern, resolve_pattern
from tokenizer.special import check_special_tokens
from tokenizer.vocabulary import BY_MERGES, BY_RANKS, WHOLE_FIRST, Vocabulary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST_ID = 2**24
LONGEST_REGEX = 10_000  # characters

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def tokenizer_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """The content of tokenizer.json. ValueError where the format cannot say what the vocabulary is."""
    if vocabulary.semantics == BY_RANKS:
        raise ValueError(
            "this vocabulary has tokens that no list of merges makes, only joining by rank as tiktoken does, "
            "which tokenizer.json cannot say; keep its .tiktoken file"
        )
    special = {i: spelling for spelling, i in vocabulary.special_tokens.items()}
    spelled = {i: spell(token) for i, token in enumerate(vocabulary.tokens) if token is not None}
    taken = set(spelled.values()) & set(special.values())
    if taken:
        raise ValueError(
            f"the special token {min(taken)!r} is also the spelling of an ordinary token; "
            "tokenizer.json cannot tell them apart, choose another such as '<|name|>'"
        )
    added = [{"id": i, "content": special[i]} | _SPECIAL for i in sorted(special)]
    for token in added:
        token.update(vocabulary.added_flags.get(token["content"], {}))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": vocabulary.normalizer} if vocabulary.normalizer else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": vocabulary.pattern.regex},
                    "behavior": "Isolated",
                    "invert": False,
                },
                _BYTE_LEVEL,
            ],
        },
        "post_processor": vocabulary.post_processor,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": vocabulary.semantics == WHOLE_FIRST,
            "vocab": {spelling: i for i, spelling in sorted((spelled | special).items())},
            "merges": [[spelled[left], spelled[right]] for left, right, _ in vocabulary.merges.tolist()],
        },
    }


def parse_tokenizer_json(content: Any) -> Vocabulary:
    """The vocabulary of a tokenizer.json. ValueError names the field that is missing, damaged or not supported."""
    _expect(isinstance(content, dict), "is not a JSON object")
    for field in ("truncation", "padding"):
        _expect(content.get(field) is None, f"has a {field} ({_type(content.get(field))}), which is not supported")
    decoder = content.get("decoder")
    _expect(
        decoder is None or _type(decoder) == "ByteLevel",
        f"has a decoder of type {_type(decoder)}, which is not supported",
    )
    normalizer = _parse_normalizer(content.get("normalizer"))
    pattern = _parse_pre_tokenizer(content.get("pre_tokenizer"))
    model = content.get("model")
    _expect(isinstance(model, dict), "has no model")
    _expect(
        model.get("type") == "BPE" or ("type" not in model and "merges" in model),
        f"has a model of type {_short(model.get('type'))}, which is not supported",
    )
    for field in ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "byte_fallback"):
        _expect(not model.get(field), f"has model.{field} = {_short(model.get(field))}, which is not supported")
    ignore_merges = model.get("ignore_merges", False)
    _expect(isinstance(ignore_merges, bool), f"has model.ignore_merges = {_short(ignore_merges)}")
    added = content.get("added_tokens", [])
    _expect(isinstance(added, list), "has added_tokens that are no list")
    special, flags = parse_added_tokens(
        [(f"added_tokens[{number}]", token) for number, token in enumerate(added)], normalizer
    )
    return build_vocabulary(
        model.get("vocab"),
        model.get("merges"),
        special,
        pattern,
        rule=WHOLE_FIRST if ignore_merges else BY_MERGES,
        normalizer=normalizer,
        added_flags=flags,
        post_processor=_parse_post_processor(content.get("post_processor"), special),
    )


def _parse_normalizer(normalizer: Any) -> str | None:
    """The normalizer NFC or None, each also as a Sequence."""
    steps = [normalizer]
    if _type(normalizer) == "Sequence":
        steps = normalizer.get("normalizers")
        _expect(isinstance(steps, list), "has a normalizer.normalizers that is no list")
    kinds = {_type(step) for step in steps if step is not None}
    _expect(
        kinds <= {"NFC"}, f"has a normalizer of type {' + '.join(sorted(kinds))}, which is not supported (only NFC is)"
    )
    return "NFC" if kinds else None


def _parse_pre_tokenizer(pre_tokenizer: Any) -> Pattern:
    """A Split by a regex and then ByteLevel, or ByteLevel alone with GPT-2's own regex."""
    kind = _type(pre_tokenizer)
    steps = [pre_tokenizer]
    if kind == "Sequence":
        steps = pre_tokenizer.get("pretokenizers")
        _expect(isinstance(steps, list), "has a pre_tokenizer.pretokenizers that is no list")
    kinds = [_type(step) for step in steps]
    _expect(
        kinds in (["ByteLevel"], ["Split", "ByteLevel"]),
        f"has the pre_tokenizer {_short(' + '.join(kinds))}; supported are ByteLevel, and Split + ByteLevel",
    )
    byte_level = steps[-1]
    _expect(byte_level.get("add_prefix_space") is False, "has pre_tokenizer add_prefix_space, which is not supported")
    use_regex = byte_level.get("use_regex", True)
    if kinds == ["ByteLevel"]:
        _expect(use_regex is True, "has a ByteLevel pre_tokenizer without its regex, which is not supported")
        return resolve_pattern("gpt2")
    _expect(use_regex is False, "has a Split and ByteLevel's own regex, which is not supported")
    split = steps[0]
    regex = split.get("pattern", {}).get("Regex") if isinstance(split.get("pattern"), dict) else None
    _expect(isinstance(regex, str) and regex != "", "has a pre_tokenizer.pattern that is no Regex")
    _expect(len(regex) <= LONGEST_REGEX, f"has a pre_tokenizer.pattern of {len(regex)} characters")
    _expect(_is_unicode(regex), "has a pre_tokenizer.pattern with a lone surrogate")
    _expect(regex not in NAMES, f"has the pre_tokenizer.pattern {regex!r}, which names a pattern and is not its regex")
    pattern = resolve_pattern(regex)
    how = (split.get("behavior"), split.get("invert"))
    # Removing what does not match is the same where everything matches, as with the named patterns.
    _expect(
        how == ("Isolated", False) or (how == ("Removed", True) and pattern.name is not None),
        f"has a Split with behavior {_short(how[0])} and invert {_short(how[1])}, which is not supported",
    )
    return pattern


def parse_added_tokens(
    added: list[tuple[str, Any]], normalizer: str | None
) -> tuple[dict[str, int], dict[str, dict[str, bool]]]:
    """The ids of added tokens, given with their fields' names, and the flags in which they differ from special ones.

    Tokens that are not special ("special": false) follow the same rule in `encode` as those that are.
    """
    special: dict[str, int] = {}
    flags: dict[str, dict[str, bool]] = {}
    for field, token in added:
        _expect(isinstance(token, dict), f"has {field} that is no object")
        spelling, i = token.get("content"), token.get("id")
        _expect(isinstance(spelling, str) and spelling != "", f"has {field}.content = {_short(spelling)}")
        _expect(is_id(i), f"has {field}.id = {_short(i)}")
        name = f"{field} ({_short(spelling)})"
        for flag, value in _SPECIAL.items():
            given = token.get(flag, value)
            _expect(isinstance(given, bool), f"has {name} with {flag} = {_short(given)}")
            if given != value:
                flags.setdefault(spelling, {})[flag] = given
        for flag in ("single_word", "lstrip", "rstrip"):
            _expect(not token.get(flag), f"has {name} with {flag}, which is not supported")
        _expect(
            normalizer is None or not token.get("normalized"),
            f"has {name} with normalized beside a normalizer, which is not supported",
        )
        _expect(spelling not in special, f"has {name} twice")
        special[spelling] = i
    return special, flags


def _parse_post_processor(processor: Any, special: dict[str, int]) -> dict | None:
    """None, ByteLevel or TemplateProcessing, or a sequence of these.

    They change the offsets, and what is put around a text, both of which are not ours: the field is only kept.
    """
    steps = [processor]
    if _type(processor) == "Sequence":
        steps = processor.get("processors")
        _expect(isinstance(steps, list), "has a post_processor.processors that is no list")
    for step in steps:
        kind = _type(step)
        if kind == "TemplateProcessing":
            _check_template(step, special)
        elif kind == "ByteLevel":
            flags = [step.get(flag, True) for flag in ("add_prefix_space", "trim_offsets", "use_regex")]
            _expect(set(map(type, flags)) == {bool}, f"has a post_processor ByteLevel with {_short(flags)}")
        else:
            _expect(processor is None, f"has a post_processor of type {kind}, which is not supported")
    return processor


def _check_template(template: dict, special: dict[str, int]) -> None:
    what = "has a post_processor TemplateProcessing"
    named = template.get("special_tokens")
    _expect(isinstance(named, dict), f"{what} without special_tokens")
    for name, token in named.items():
        spellings, ids = (token.get("tokens"), token.get("ids")) if isinstance(token, dict) else (None, None)
        _expect(
            isinstance(spellings, list)
            and all(isinstance(spelling, str) for spelling in spellings)
            and [special.get(spelling) for spelling in spellings] == ids
            and token.get("id") == name,
            f"{what} with special_tokens[{_short(name)}] = {_short(token)}, which added_tokens does not have",
        )
    for field in ("single", "pair"):
        pieces = template.get(field)
        _expect(isinstance(pieces, list), f"{what} without {field}")
        for piece in pieces:
            [(kind, value)] = piece.items() if isinstance(piece, dict) and len(piece) == 1 else [(None, None)]
            known = {"Sequence": ("A", "B"), "SpecialToken": named}.get(kind, ())
            _expect(
                isinstance(value, dict)
                and isinstance(value.get("id"), str)
                and value["id"] in known
                and type(value.get("type_id")) is int
                and 0 <= value["type_id"] < 2**32,
                f"{what} with {_short(piece)} in {field}, which is neither a sequence nor one of its special_tokens",
            )


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
    _expect(isinstance(vocab, dict), f"has no {vocab_field}, or it is no object")
    _expect(isinstance(merges, list), "has no merges, or they are no list")
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
        _expect(is_id(i), f"has the id {_short(i)} for {_short(spelling)} in {vocab_field}")
    size = max([*vocab.values(), *special.values()], default=-1) + 1
    entries = len(vocab) + len(special)
    _expect(size <= largest_size(entries), f"has ids up to {size - 1} for {entries} tokens")
    taken: dict[int, str] = {}
    for spelling, i in vocab.items():
        _expect(
            i not in taken, f"gives the id {i} twice in {vocab_field}: {_short(taken.get(i))} and {_short(spelling)}"
        )
        taken[i] = spelling
        _expect(special.get(spelling, i) == i, f"gives {_short(spelling)} the ids {i} and {special.get(spelling)}")
    for spelling, i in special.items():
        _expect(
            taken.get(i, spelling) == spelling, f"gives the id {i} to {_short(taken.get(i))} and {_short(spelling)}"
        )
    raise AssertionError("the bulk check of ids is stricter than the one that names them")


def _check_spellings(ids: dict[str, int], vocab_field: str) -> None:
    _expect("" not in ids, f"has an empty token in {vocab_field}")
    try:
        unspell("".join(ids))
    except KeyError as error:
        character = error.args[0]
        spelling = next(spelling for spelling in ids if character in spelling)
        raise ValueError(
            f"has {_short(spelling)} in {vocab_field}, whose character {character!r} spells no byte "
            "(is it a special token that is missing in added_tokens?)"
        ) from None


def _parse_merges(merges: list, ids: dict[str, int]) -> tuple[list[list[str]], int | None]:
    """The merges as pairs; and the id of the first one's token where the others' follow one by one, else None."""
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
        _expect(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair),
            f"has merge {number} that is no pair: {_short(merge)}",
        )
        left, right = pair
        named = f"merge {number} ({_short(left)}, {_short(right)})"
        for part in (left, right, left + right):
            _expect(part in ids, f"has {named} with {_short(part)}, which the vocabulary lacks")
        _expect((left, right) not in seen, f"has {named} twice")
        seen.add((left, right))
    raise ValueError("has merges some of which are lists and some strings")


def is_id(i: Any) -> bool:
    return isinstance(i, int) and not isinstance(i, bool) and 0 <= i < LARGEST_ID


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _type(field: Any) -> str:
    """The type of a step of the pipeline, or what stands in its place, for messages."""
    kind = field.get("type") if isinstance(field, dict) else field
    return kind if isinstance(kind, str) and len(kind) <= 80 else _short(kind)


def _short(value: Any) -> str:
    """How a message shows what a file holds, which may be long."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)

"""The tokenizer.json format of Hugging Face's tokenizers, there and back, where it says only what we do."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenizer.merging import GPT2_BYTE_ORDER
from tokenizer.patterns import Pattern, resolve_pattern
from tokenizer.special import check_special_tokens
from tokenizer.vocabulary import BY_RANKS, WHOLE_FIRST, Vocabulary

# ByteLevel's alphabet spells every byte as one printable character: itself, or the next from U+0100 on.
_PRINTABLE = 188
BYTE_TO_CHARACTER = {
    byte: chr(byte) if i < _PRINTABLE else chr(256 + i - _PRINTABLE) for i, byte in enumerate(GPT2_BYTE_ORDER)
}
_CHARACTER_TO_BYTE = {character: byte for byte, character in BYTE_TO_CHARACTER.items()}
_SPELL = str.maketrans({chr(byte): character for byte, character in BYTE_TO_CHARACTER.items()})

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_ADDED_FLAGS = ("single_word", "lstrip", "rstrip")


def spell(token: bytes) -> str:
    """A token in ByteLevel's alphabet."""
    return token.decode("latin-1").translate(_SPELL)


def unspell(spelling: str) -> bytes:
    """The bytes of a token in ByteLevel's alphabet; KeyError for a character that is not in it."""
    return bytes([_CHARACTER_TO_BYTE[character] for character in spelling])


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
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": special[i], **flags} for i in sorted(special)],
        "normalizer": None,
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
        "post_processor": None,
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
    for field in ("truncation", "padding", "normalizer"):
        _expect(content.get(field) is None, f"has a {field} ({_type(content.get(field))}), which is not supported")
    processor = content.get("post_processor")
    _expect(
        processor is None or _type(processor) == "ByteLevel",
        f"has a post_processor of type {_type(processor)}, which is not supported",
    )
    decoder = content.get("decoder")
    _expect(
        decoder is None or _type(decoder) == "ByteLevel",
        f"has a decoder of type {_type(decoder)}, which is not supported",
    )
    pattern = _parse_pre_tokenizer(content.get("pre_tokenizer"))
    model = content.get("model")
    _expect(isinstance(model, dict), "has no model")
    _expect(
        model.get("type") == "BPE" or ("type" not in model and "merges" in model),
        f"has a model of type {model.get('type')!r}, which is not supported",
    )
    for field in ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "byte_fallback"):
        _expect(not model.get(field), f"has model.{field} = {model.get(field)!r}, which is not supported")
    ignore_merges = model.get("ignore_merges", False)
    _expect(isinstance(ignore_merges, bool), f"has model.ignore_merges = {ignore_merges!r}")
    special = _parse_added_tokens(content.get("added_tokens", []))
    return build_vocabulary(model.get("vocab"), model.get("merges"), special, pattern, ignore_merges)


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
        f"has the pre_tokenizer {' + '.join(kinds)}; supported are ByteLevel, and Split + ByteLevel",
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
    _expect(isinstance(regex, str) and regex, "has a pre_tokenizer.pattern that is no Regex")
    pattern = resolve_pattern(regex)
    how = (split.get("behavior"), split.get("invert"))
    # Removing what does not match is the same where everything matches, as with the named patterns.
    _expect(
        how == ("Isolated", False) or (how == ("Removed", True) and pattern.name is not None),
        f"has a Split with behavior {how[0]!r} and invert {how[1]!r}, which is not supported",
    )
    return pattern


def _parse_added_tokens(added: Any) -> dict[str, int]:
    _expect(isinstance(added, list), "has added_tokens that are no list")
    special: dict[str, int] = {}
    for number, token in enumerate(added):
        field = f"added_tokens[{number}]"
        _expect(isinstance(token, dict), f"has {field} that is no object")
        spelling, i = token.get("content"), token.get("id")
        _expect(isinstance(spelling, str) and spelling != "", f"has {field}.content = {spelling!r}")
        _expect(_is_id(i), f"has {field}.id = {i!r}")
        _expect(token.get("special") is True, f"has {field} ({spelling!r}) that is not special: not supported")
        for flag in _ADDED_FLAGS:
            _expect(not token.get(flag), f"has {field} ({spelling!r}) with {flag}, which is not supported")
        _expect(spelling not in special, f"has {field} ({spelling!r}) twice")
        special[spelling] = i
    return special


def build_vocabulary(
    vocab: Any,
    merges: Any,
    special: dict[str, int],
    pattern: Pattern,
    ignore_merges: bool,
    vocab_field: str = "model.vocab",
) -> Vocabulary:
    """A vocabulary from spelled tokens with their ids and merges, every field of them checked."""
    _expect(isinstance(vocab, dict), f"has no {vocab_field}, or it is no object")
    _expect(isinstance(merges, list), "has no merges, or they are no list")
    check_special_tokens(tuple(special))
    for spelling, i in [*vocab.items(), *special.items()]:
        _expect(_is_id(i), f"has the id {i!r} for {spelling!r} in {vocab_field}")
    size = max([*vocab.values(), *special.values()], default=-1) + 1
    _expect(size <= 2 * (len(vocab) + len(special)) + 65536, f"has ids up to {size - 1} for {len(vocab)} tokens")
    tokens: list[bytes | None] = [None] * size
    taken: dict[int, str] = {}
    for spelling, i in vocab.items():
        _expect(i not in taken, f"gives the id {i} twice in {vocab_field}: {taken.get(i)!r} and {spelling!r}")
        taken[i] = spelling
        if spelling in special:
            _expect(special[spelling] == i, f"gives {spelling!r} the ids {i} and {special[spelling]}")
            continue
        try:
            tokens[i] = unspell(spelling)
        except KeyError as error:
            raise ValueError(
                f"has {spelling!r} in {vocab_field}, whose character {error.args[0]!r} spells no byte "
                "(is it a special token that is missing in added_tokens?)"
            ) from None
        _expect(spelling != "", f"has an empty token in {vocab_field}")
    for spelling, i in special.items():
        _expect(taken.get(i, spelling) == spelling, f"gives the id {i} to {taken.get(i)!r} and {spelling!r}")
    listed = np.array(_parse_merges(vocab, merges, special), dtype=np.int32).reshape(-1, 3)
    vocabulary = Vocabulary(tokens=tokens, merges=listed, special_tokens=special, pattern=pattern)
    return _with_semantics(vocabulary, ignore_merges)


def _parse_merges(vocab: dict[str, int], merges: list, special: dict[str, int]) -> list[tuple[int, int, int]]:
    listed = []
    seen = set()
    for number, merge in enumerate(merges):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        _expect(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair),
            f"has merge {number} that is no pair: {str(merge)[:80]!r}",
        )
        left, right = pair
        for part in (left, right, left + right):
            _expect(
                part in vocab and part not in special,
                f"has merge {number} ({left!r}, {right!r}) with {part[:80]!r}, which the vocabulary lacks",
            )
        _expect((left, right) not in seen, f"has merge {number} ({left!r}, {right!r}) twice")
        seen.add((left, right))
        listed.append((vocab[left], vocab[right], vocab[left + right]))
    return listed


def _with_semantics(vocabulary: Vocabulary, ignore_merges: bool) -> Vocabulary:
    from tokenizer.encoding import all_tokens_reachable

    if not ignore_merges or all_tokens_reachable(vocabulary.tokens, vocabulary.merges, vocabulary.byte_ids):
        return vocabulary
    return Vocabulary(
        tokens=vocabulary.tokens,
        merges=vocabulary.merges,
        special_tokens=vocabulary.special_tokens,
        pattern=vocabulary.pattern,
        semantics=WHOLE_FIRST,
    )


def _is_id(i: Any) -> bool:
    return isinstance(i, int) and not isinstance(i, bool) and 0 <= i < 2**24


def _type(field: Any) -> str:
    return str(field.get("type")) if isinstance(field, dict) else str(field)


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)

"""Reading and writing tokenizer.json, the format of Hugging Face's tokenizers, for byte-level BPE.

`wordpiece_files` does the same for WordPiece.
"""

from __future__ import annotations

import json

from tokenizer.bpe_vocabulary import BytePairVocabulary
from tokenizer.byte_level import BY_MERGES, WHOLE_FIRST, spell
from tokenizer.formats.added_tokens import added_tokens_field, parse_added_tokens_field
from tokenizer.formats.length_settings import length_fields, parse_length_settings
from tokenizer.formats.other_kinds import ONLY, refuse_other_bpe, refuse_tekken
from tokenizer.formats.spelled_vocabulary import build_vocabulary, expect, is_unicode, quote
from tokenizer.splitting.chains import BEHAVIORS, Chain
from tokenizer.splitting.patterns import NAMES, Pattern, refuse_misread_by_tokenizers, resolve_pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

LONGEST_REGEX = 10_000  # characters
MOST_STEPS = 100
_PART_BYTES = 1 << 20  # a longer token is spelled in parts of this size
# The place of tokens and merges in the JSON of all other fields.
_NO_ENTRIES = '"vocab": {},\n    "merges": []'

_NOT_ADDED = "is not an added token with the id that tokenizers gives it"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def tokenizer_json(vocabulary: BytePairVocabulary) -> Iterator[str]:
    """Yield the text of tokenizer.json in parts, because a long run can have tokens of megabytes.

    Raises ValueError if the format cannot represent the vocabulary.
    """
    special = {i: spelling for spelling, i in vocabulary.special_tokens.items()}
    content: dict[str, Any] = {
        "version": "1.0",
        **length_fields(vocabulary.length_settings),
        "added_tokens": added_tokens_field(vocabulary.special_tokens, vocabulary.added_flags),
        "normalizer": {"type": vocabulary.normalizer} if vocabulary.normalizer else None,
        "pre_tokenizer": _pre_tokenizer_field(vocabulary.pattern),
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
            "vocab": {},
            "merges": [],
        },
    }
    encode = json.JSONEncoder(ensure_ascii=False, indent=2).encode
    before, after = encode(content).rsplit(_NO_ENTRIES, 1)
    tokens: Any = vocabulary.tokens  # merges refer to tokens that are not None
    merges = vocabulary.merges.tolist()
    yield f'{before}"vocab": {{'
    separator = "\n      "
    for i, token in enumerate(vocabulary.tokens):
        if token is None and i not in special:
            continue
        yield separator
        yield from [encode(special[i])] if token is None else _json_string(token, encode)
        yield f": {i}"
        separator = ",\n      "
    yield '\n    },\n    "merges": ['
    separator = "\n      [\n        "
    for left, right, _ in merges:
        yield separator
        yield from _json_string(tokens[left], encode)
        yield ",\n        "
        yield from _json_string(tokens[right], encode)
        separator = "\n      ],\n      [\n        "
    yield f"\n      ]\n    ]{after}\n" if merges else f"]{after}\n"


def _json_string(token: bytes, encode: Callable[[str], str]) -> Iterator[str]:
    """Yield a spelled token as a JSON string, in parts."""
    if len(token) <= _PART_BYTES:
        yield encode(spell(token))
        return
    yield '"'
    for start in range(0, len(token), _PART_BYTES):
        yield encode(spell(token[start : start + _PART_BYTES]))[1:-1]
    yield '"'


def _pre_tokenizer_field(pattern: Pattern | Chain) -> dict[str, Any]:
    """Return the field pre_tokenizer. GPT-2's regex is that of ByteLevel, because some readers refuse it in a Split."""
    if isinstance(pattern, Chain):
        steps = [step | {"trim_offsets": True} if step["type"] == "ByteLevel" else step for step in pattern.steps]
    elif pattern.name == "gpt2":
        return _BYTE_LEVEL | {"use_regex": True}
    else:
        refuse_misread_by_tokenizers(pattern)
        split = {"type": "Split", "pattern": {"Regex": pattern.regex}, "behavior": "Isolated", "invert": False}
        steps = [split, _BYTE_LEVEL]
    return {"type": "Sequence", "pretokenizers": steps}


def parse_tokenizer_json(content: Any) -> BytePairVocabulary:
    """Return the vocabulary of a tokenizer.json's value.

    Raises ValueError that names the field that is missing, damaged or not supported.
    """
    expect(isinstance(content, dict), "is not a JSON object")
    refuse_tekken(content)
    model = content.get("model")
    expect(isinstance(model, dict), "has no model; is it a tokenizer.json?")
    # Checked first: files with another model differ in most other fields, too.
    expect(
        model.get("type") == "BPE" or ("type" not in model and "merges" in model),
        f"has a model of type {quote(model.get('type'))}, which is not supported ({ONLY})",
    )
    refuse_other_bpe(content, model)
    decoder = content.get("decoder")
    expect(
        decoder is None or type_of(decoder) == "ByteLevel",
        f"has a decoder of type {type_of(decoder)}, which is not supported ({ONLY})",
    )
    normalizer = _parse_normalizer(content.get("normalizer"))
    pattern = _parse_pre_tokenizer(content.get("pre_tokenizer"))
    expect(not model.get("dropout"), f"has model.dropout = {quote(model.get('dropout'))}, which is not supported")
    ignore_merges = model.get("ignore_merges", False)
    expect(isinstance(ignore_merges, bool), f"has model.ignore_merges = {quote(ignore_merges)}")
    special, flags = parse_added_tokens_field(content, model.get("vocab"))
    return build_vocabulary(
        model.get("vocab"),
        model.get("merges"),
        special,
        pattern,
        rule=WHOLE_FIRST if ignore_merges else BY_MERGES,
        normalizer=normalizer,
        added_flags=flags,
        post_processor=parse_post_processor(content.get("post_processor"), special),
        length_settings=parse_length_settings(content),
    )


def _parse_normalizer(normalizer: Any) -> str | None:
    """Return "NFC" or None for the normalizer field, which may be a Sequence."""
    steps = [normalizer]
    if type_of(normalizer) == "Sequence":
        steps = normalizer.get("normalizers")
        expect(isinstance(steps, list), "has a normalizer.normalizers that is not a list")
    kinds = {type_of(step) for step in steps if step is not None}
    expect(
        kinds <= {"NFC"}, f"has a normalizer of type {' + '.join(sorted(kinds))}, which is not supported (only NFC is)"
    )
    return "NFC" if kinds else None


def _parse_pre_tokenizer(pre_tokenizer: Any) -> Pattern | Chain:
    """Return the pattern for ByteLevel alone or after a Split by a regex, and a chain for all other steps."""
    steps = [pre_tokenizer]
    if type_of(pre_tokenizer) == "Sequence":
        steps = pre_tokenizer.get("pretokenizers")
        expect(isinstance(steps, list), "has pre_tokenizer.pretokenizers that are not a list")
        expect(len(steps) <= MOST_STEPS, f"has {len(steps):,} pre_tokenizer.pretokenizers; {MOST_STEPS} are supported")
    kinds = [type_of(step) for step in steps]
    expect(
        kinds.count("ByteLevel") == 1 and {*kinds} <= {"ByteLevel", "Split", "Digits", "Punctuation"},
        f"has the pre_tokenizer {quote(' + '.join(kinds))}; supported are Split, Digits, Punctuation and one ByteLevel",
    )
    steps = [_parse_step(step) for step in steps]
    byte_level = steps[kinds.index("ByteLevel")]
    if not byte_level["add_prefix_space"]:
        if kinds == ["ByteLevel"] and byte_level["use_regex"]:
            return resolve_pattern("gpt2")
        if kinds == ["Split", "ByteLevel"] and not byte_level["use_regex"] and "Regex" in steps[0]["pattern"]:
            pattern = resolve_pattern(steps[0]["pattern"]["Regex"])
            options = (steps[0]["behavior"], steps[0]["invert"])
            # Named patterns match the whole text, so removing text that does not match changes nothing.
            if options == ("Isolated", False) or (options == ("Removed", True) and pattern.name is not None):
                return pattern
    for step in steps:
        expect(
            step.get("behavior", "Isolated") in BEHAVIORS,
            f"has a {step['type']} with behavior {quote(step.get('behavior'))}, which is not supported: it drops text",
        )
    chain = Chain(steps)
    chain.check()
    return chain


def _parse_step(step: dict[str, Any]) -> dict[str, Any]:
    """Return the checked fields of a pre-tokenizer step that decide how it splits."""
    kind = step["type"]
    flags = {"ByteLevel": ("add_prefix_space", "use_regex"), "Digits": ("individual_digits",), "Split": ("invert",)}
    parsed: dict[str, Any] = {"type": kind}
    for flag in flags.get(kind, ()):
        parsed[flag] = step.get(flag, flag == "use_regex")
        expect(isinstance(parsed[flag], bool), f"has a {kind} with {flag} = {quote(parsed[flag])}")
    if kind in ("Split", "Punctuation"):
        parsed["behavior"] = step.get("behavior", "Isolated")
        expect(parsed["behavior"] in (*BEHAVIORS, "Removed"), f"has a {kind} with behavior {quote(parsed['behavior'])}")
    if kind == "Split":
        parsed["pattern"] = _parse_split_pattern(step.get("pattern"))
    return parsed


def _parse_split_pattern(pattern: Any) -> dict[str, str]:
    """Return the checked pattern of a Split: {"Regex": regex} or {"String": text}."""
    kind, text = _single_item(pattern)
    expect(
        kind in ("Regex", "String") and isinstance(text, str) and text != "",
        "has a pre_tokenizer.pattern that is neither a Regex nor a String",
    )
    expect(len(text) <= LONGEST_REGEX, f"has a pre_tokenizer.pattern of {len(text)} characters")
    expect(is_unicode(text), "has a pre_tokenizer.pattern with a lone surrogate")
    if kind == "Regex":
        expect(text not in NAMES, f"has the pre_tokenizer.pattern {text!r}, the name of a pattern instead of a regex")
        refuse_misread_by_tokenizers(resolve_pattern(text))
    return {kind: text}


def parse_post_processor(processor: Any, special: dict[str, int]) -> dict[str, Any] | None:
    """Return the checked post_processor field, for saving only.

    Supported are None, ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, and a Sequence of them. They
    change offsets and add tokens around a text, so `encode` does not apply them.
    """
    steps = [processor]
    if type_of(processor) == "Sequence":
        steps = processor.get("processors")
        expect(isinstance(steps, list), "has a post_processor.processors that is not a list")
    for step in steps:
        kind = type_of(step)
        if kind == "TemplateProcessing":
            _check_template(step, special)
        elif kind in ("BertProcessing", "RobertaProcessing"):
            for name in ("cls", "sep"):
                token = step.get(name)
                expect(
                    isinstance(token, list)
                    and len(token) == 2
                    and isinstance(token[0], str)
                    and type(token[1]) is int
                    and special.get(token[0]) == token[1],
                    f"has a post_processor {kind} with {name} = {quote(token)}, which {_NOT_ADDED}",
                )
        elif kind == "ByteLevel":
            flags = [step.get(flag, True) for flag in ("add_prefix_space", "trim_offsets", "use_regex")]
            expect(set(map(type, flags)) == {bool}, f"has a post_processor ByteLevel with {quote(flags)}")
        else:
            expect(processor is None, f"has a post_processor of type {kind}, which is not supported")
    return dict(processor) if processor is not None else None


def ids_of_post_processor(processor: dict[str, Any] | None) -> tuple[list[int], list[int]]:
    """Return the ids that a checked post_processor adds before and after a text."""
    before: list[int] = []
    after: list[int] = []
    processor = processor or {}
    for step in processor.get("processors", [processor]):
        if step.get("type") in ("BertProcessing", "RobertaProcessing"):
            before, after = [step["cls"][1], *before], [*after, step["sep"][1]]
            continue
        side = before
        for piece in step.get("single", ()):
            if "Sequence" in piece:
                side = after
            else:
                side += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return before, after


def ids_between(processor: dict[str, Any] | None) -> list[int]:
    """Return the ids that a checked post_processor adds between two texts."""
    processor = processor or {}
    between: list[int] = []
    for step in processor.get("processors", [processor]):
        separators = {"BertProcessing": 1, "RobertaProcessing": 2}.get(step.get("type"), 0)
        between += [step["sep"][1]] * separators if separators else []
        after_first = False
        for piece in step.get("pair", ()):
            if "Sequence" in piece:
                after_first = piece["Sequence"]["id"] == "A"
            elif after_first:
                between += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    return between


def _check_template(template: dict[str, Any], special: dict[str, int]) -> None:
    label = "has a post_processor TemplateProcessing"
    named: Any = template.get("special_tokens")
    expect(isinstance(named, dict), f"{label} without special_tokens")
    for name, token in named.items():
        spellings, ids = (token.get("tokens"), token.get("ids")) if isinstance(token, dict) else (None, None)
        expect(
            isinstance(spellings, list)
            and all(isinstance(spelling, str) for spelling in spellings)
            and [special.get(spelling) for spelling in spellings] == ids
            and token.get("id") == name,
            f"{label} with special_tokens[{quote(name)}] = {quote(token)}, which {_NOT_ADDED}",
        )
    for field in ("single", "pair"):
        pieces: Any = template.get(field)
        expect(isinstance(pieces, list), f"{label} without {field}")
        for piece in pieces:
            kind, value = _single_item(piece)
            known = {"Sequence": ("A", "B"), "SpecialToken": named}.get(kind, ())
            expect(
                isinstance(value, dict)
                and isinstance(value.get("id"), str)
                and value["id"] in known
                and type(value.get("type_id")) is int
                and 0 <= value["type_id"] < 2**32,
                f"{label} with {quote(piece)} in {field}, which is neither a sequence nor one of its special_tokens",
            )


def _single_item(field: Any) -> tuple[Any, Any]:
    """Return the key and value of an object with one item; otherwise (None, None)."""
    return next(iter(field.items())) if isinstance(field, dict) and len(field) == 1 else (None, None)


def type_of(field: Any) -> str:
    """Return a field's "type", or the field itself if it is not an object, as a short text."""
    kind = field.get("type") if isinstance(field, dict) else field
    return kind if isinstance(kind, str) and len(kind) <= 80 else quote(kind)

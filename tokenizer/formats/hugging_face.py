"""Reading and writing tokenizer.json, the format of Hugging Face's tokenizers, for byte-level BPE.

`wordpiece_files` does the same for WordPiece.
"""

from __future__ import annotations

import json

from tokenizer.bpe_vocabulary import BytePairVocabulary
from tokenizer.byte_level import BY_MERGES, BYTE_TO_CHARACTER, WHOLE_FIRST, spell
from tokenizer.formats.added_tokens import parse_added_tokens_field
from tokenizer.formats.length_settings import parse_length_settings
from tokenizer.formats.other_kinds import ONLY
from tokenizer.formats.spelled_vocabulary import build_vocabulary, expect, quote
from tokenizer.formats.step_fields import (
    file_fields,
    normalizer_field,
    parse_byte_level_steps,
    parse_normalization,
    pre_tokenizer_field,
    steps_of,
    type_of,
)
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.patterns import Pattern
from tokenizer.splitting.regex_differences import refuse_misread_by_tokenizers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_PART_BYTES = 1 << 20  # a longer token is spelled in parts of this size
BPE_MODEL: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
    "vocab": {},
    "merges": [],
}
"""The field model, without tokens and merges"""
# The place of tokens and merges in the JSON of all other fields.
NO_ENTRIES = '"vocab": {},\n    "merges": []'

_ALPHABET = {*BYTE_TO_CHARACTER.values()}
_NOT_ADDED = "is not an added token with the id that tokenizers gives it"
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def is_bpe(content: Any) -> bool:
    """Return whether the value of a tokenizer.json has the model BPE. Old files leave the type out."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or "type" in model:
        return isinstance(model, dict) and model["type"] == "BPE"
    return "merges" in model and not isinstance(model.get("vocab"), list)


def is_byte_level(content: dict[str, Any]) -> bool:
    """Return whether text goes through one ByteLevel step and tokens spell bytes without marks, as in GPT-2.

    Later steps may only cut the text in ByteLevel's alphabet.
    """
    normalizers = [*map(type_of, steps_of(content.get("normalizer"), "normalizer", "normalizers"))]
    others = [*map(type_of, steps_of(content.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers"))]
    decoder, model = content.get("decoder"), content["model"]
    marks = [model.get(name) for name in ("end_of_word_suffix", "continuing_subword_prefix", "byte_fallback")]
    return (
        [*normalizers, *others].count("ByteLevel") == 1
        and ("ByteLevel" in others or normalizers[-1] == "ByteLevel")
        and "Metaspace" not in others
        and not any(marks)
        and not _has_unknown_bytes(model)
        and (decoder is None or type_of(decoder) == "ByteLevel")
    )


def _has_unknown_bytes(model: dict[str, Any]) -> bool:
    """Return whether bytes without a token become the unknown token, as in BPE over characters."""
    vocab = model.get("vocab")
    return model.get("unk_token") is not None and isinstance(vocab, dict) and not vocab.keys() >= _ALPHABET


def tokenizer_json(vocabulary: BytePairVocabulary) -> Iterator[str]:
    """Yield the text of tokenizer.json in parts, because a long run can have tokens of megabytes.

    Raises ValueError if the format cannot represent the vocabulary.
    """
    others = {i: spelling for spelling, i in [*vocabulary.special_tokens.items(), *vocabulary.unreachable.items()]}
    content = file_fields(
        vocabulary,
        normalizer=normalizer_field(vocabulary.normalizer),
        pre_tokenizer=_pre_tokenizer_field(vocabulary.pattern),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model=BPE_MODEL | {"ignore_merges": vocabulary.semantics == WHOLE_FIRST},
    )
    encode = json.JSONEncoder(ensure_ascii=False, indent=2).encode
    before, after = encode(content).rsplit(NO_ENTRIES, 1)
    tokens: Any = vocabulary.tokens  # merges refer to tokens that are not None
    merges = vocabulary.merges.tolist()
    yield f'{before}"vocab": {{'
    separator = "\n      "
    for i, token in enumerate(vocabulary.tokens):
        if token is None and i not in others:
            continue
        yield separator
        yield from [encode(others[i])] if token is None else _json_string(token, encode)
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


def _pre_tokenizer_field(pattern: Pattern | Chain) -> Any:
    """Return the field pre_tokenizer. GPT-2's regex is that of ByteLevel, because some readers refuse it in a Split."""
    if isinstance(pattern, Chain):
        return pre_tokenizer_field(pattern)
    if pattern.name == "gpt2":
        return _BYTE_LEVEL | {"use_regex": True}
    refuse_misread_by_tokenizers(pattern)
    split = {"type": "Split", "pattern": {"Regex": pattern.regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _BYTE_LEVEL]}


def parse_tokenizer_json(content: Any) -> BytePairVocabulary:
    """Return the vocabulary of a tokenizer.json's value.

    Raises ValueError that names the field that is missing, damaged or not supported.
    """
    expect(isinstance(content, dict), "is not a JSON object")
    model = content.get("model")
    expect(isinstance(model, dict), "has no model; is it a tokenizer.json?")
    # Checked first: files with another model differ in most other fields, too.
    expect(
        model.get("type") == "BPE" or ("type" not in model and "merges" in model),
        f"has a model of type {quote(model.get('type'))}, which is not supported ({ONLY})",
    )
    decoder = content.get("decoder")
    expect(
        decoder is None or type_of(decoder) == "ByteLevel",
        f"has a decoder of type {type_of(decoder)}, which is not supported ({ONLY})",
    )
    normalizer = parse_normalization(content.get("normalizer"))
    pattern = parse_byte_level_steps(content.get("pre_tokenizer"))
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
        keeps_unreachable=True,
        length_settings=parse_length_settings(content),
    )


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

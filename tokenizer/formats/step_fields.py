"""The fields of tokenizer.json that all kinds share: normalizers, pre-tokenizers and decoders, with full checks.

Each field is None, one step or a Sequence of steps. Nested Sequences are flattened.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizer.encoding.decoder_steps import JOIN
from tokenizer.formats.added_tokens import added_tokens_field
from tokenizer.formats.length_settings import length_fields
from tokenizer.formats.spelled_vocabulary import expect, is_unicode, quote
from tokenizer.splitting.chains import BEHAVIORS, Chain
from tokenizer.splitting.normalizers import (
    MARK,
    NAMED_STEPS,
    BertText,
    Named,
    Normalization,
    Normalizer,
    Precompiled,
    Prepend,
    Replace,
    Strip,
)
from tokenizer.splitting.patterns import NAMES, Pattern, pattern_of, warn_if_slow
from tokenizer.splitting.regex_differences import anchor_in, refuse_other_meanings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tokenizer.vocabulary import Vocabulary

LONGEST_REGEX = 10_000  # characters
LONGEST_TEXT = 4096  # characters of a text in a step
MOST_STEPS = 100
_SCHEMES = ("always", "first", "never")
_PLAIN_PRE_TOKENIZERS = ("BertPreTokenizer", "UnicodeScripts", "Whitespace", "WhitespaceSplit")
_PRE_TOKENIZERS = (
    *("ByteLevel", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace", "Punctuation", "Split"),
    *_PLAIN_PRE_TOKENIZERS,
)


def type_of(field: Any) -> str:
    """Return a field's "type" as a short text; the field itself if it is not an object."""
    kind = field.get("type") if isinstance(field, dict) else field
    return kind if isinstance(kind, str) and len(kind) <= 80 else quote(kind)


def steps_of(field: Any, name: str, list_name: str) -> list[Any]:
    """Return the steps of a field. Raises ValueError for a damaged Sequence."""
    if type_of(field) != "Sequence":
        return [] if field is None else [field]
    listed: Any = field.get(list_name)
    expect(isinstance(listed, list), f"has {name}.{list_name} that are not a list")
    steps = [step for inner in listed for step in steps_of(inner, name, list_name)]
    expect(len(steps) <= MOST_STEPS, f"has {len(steps):,} {name}.{list_name}; {MOST_STEPS} are supported")
    return steps


def file_fields(
    vocabulary: Vocabulary, *, normalizer: Any, pre_tokenizer: Any, decoder: Any, model: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of the tokenizer.json of a vocabulary from the fields that depend on its kind."""
    return {
        "version": "1.0",
        **length_fields(vocabulary.length_settings),
        "added_tokens": added_tokens_field(vocabulary.special_tokens, vocabulary.added_flags),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": vocabulary.post_processor,
        "decoder": decoder,
        "model": model,
    }


def in_sequence(name: str, steps: Any) -> Any:
    """Return steps as a field: None, the only step, or a Sequence."""
    steps = list(steps)
    return {"type": "Sequence", name: steps} if len(steps) > 1 else steps[0] if steps else None


def parse_normalization(field: Any) -> Normalization | None:
    """Return the normalization that the field normalizer asks for."""
    steps = tuple(map(parse_normalizer, steps_of(field, "normalizer", "normalizers")))
    return Normalization(steps) if steps else None


def normalizer_field(normalization: Normalization | None) -> Any:
    """Return the field normalizer."""
    return in_sequence("normalizers", [step.field for step in normalization.steps] if normalization else [])


def parse_normalizer(step: Any) -> Normalizer:
    """Return one step of the field normalizer."""
    kind = type_of(step)
    if kind in NAMED_STEPS:
        return Named(kind)
    if kind == "Precompiled":
        return Precompiled(_parse_character_map(step.get("precompiled_charsmap")))
    if kind == "Replace":
        return Replace(*parse_replace(step, "a normalizer"))
    if kind == "Strip":
        return Strip(*(_flag(step, name, "a normalizer Strip") for name in ("strip_left", "strip_right")))
    if kind == "Prepend":
        return Prepend(_text(step, "prepend", "a normalizer Prepend"))
    expect(kind == "BertNormalizer", f"has a normalizer of type {kind}, which is not supported")
    return parse_bert_normalizer(step, "a normalizer")


def parse_bert_normalizer(step: dict[str, Any], where: str) -> BertText:
    """Return a BertNormalizer. strip_accents defaults to None, which means the value of lowercase."""
    flags = {
        name: _flag(step, name, where, default=True) for name in ("clean_text", "handle_chinese_chars", "lowercase")
    }
    strip = step.get("strip_accents")
    expect(strip is None or isinstance(strip, bool), f"has {where} with strip_accents = {quote(strip)}")
    return BertText(flags["clean_text"], flags["handle_chinese_chars"], strip, flags["lowercase"])


def _parse_character_map(compiled: Any) -> Any:
    from base64 import b64decode

    from tokenizer.splitting.precompiled_map import CharacterMap

    field = "normalizer.precompiled_charsmap"
    expect(isinstance(compiled, str), f"has {field} = {quote(compiled)}")
    try:
        decoded = b64decode(compiled, validate=True)
    except ValueError:
        raise ValueError(f"has a {field} that is not base64") from None
    try:
        return CharacterMap(decoded)
    except ValueError as error:
        raise ValueError(f"has a {field} that {error}") from None


def parse_replace(step: dict[str, Any], where: str) -> tuple[str, bool, str]:
    """Return the pattern of a Replace, whether it is a regular expression, and the new text."""
    parsed = _parse_split_pattern(step.get("pattern"), f"{where} Replace with pattern = {quote(step.get('pattern'))}")
    ((kind, find),) = parsed.items()
    return find, kind == "Regex", _text(step, "content", f"{where} Replace", empty=True)


def parse_pre_tokenizer(steps: list[Any]) -> list[dict[str, Any]]:
    """Return the checked steps of the field pre_tokenizer, with the fields that decide how they split."""
    parsed = [_parse_pre_tokenizer_step(step) for step in steps]
    for step in parsed[1:]:
        expect(
            step.get("prepend_scheme") != "first",
            "has a pre_tokenizer Metaspace with prepend_scheme first after other steps, which is not supported",
        )
    return parsed


def parse_chain(field: Any, *, as_bytes: bool) -> Chain:
    """Return the splitter of the field pre_tokenizer, which may be None."""
    chain = Chain(parse_pre_tokenizer(steps_of(field, "pre_tokenizer", "pretokenizers")), as_bytes=as_bytes)
    chain.check()
    return chain


def pre_tokenizer_field(chain: Chain) -> Any:
    """Return the field pre_tokenizer."""
    steps = [step | {"trim_offsets": True} if step["type"] == "ByteLevel" else step for step in chain.steps]
    return in_sequence("pretokenizers", steps)


def parse_byte_level_steps(field: Any) -> Pattern | Chain:
    """Return the pattern for ByteLevel alone or after a Split by a regex, and a chain for all other steps."""
    steps = parse_pre_tokenizer(steps_of(field, "pre_tokenizer", "pretokenizers"))
    kinds = [step["type"] for step in steps]
    if kinds in (["ByteLevel"], ["Split", "ByteLevel"]) and not steps[-1]["add_prefix_space"]:
        if kinds == ["ByteLevel"] and steps[0]["use_regex"]:
            return pattern_of("gpt2")
        if len(kinds) == 2 and not steps[1]["use_regex"] and "Regex" in steps[0]["pattern"]:
            pattern = pattern_of(steps[0]["pattern"]["Regex"])
            options = (steps[0]["behavior"], steps[0]["invert"])
            # Named patterns match the whole text, so removing text that does not match changes nothing.
            named = pattern.name is not None
            plain = named or not anchor_in(pattern.regex)  # a chain reads anchors as `tokenizers` does
            if (plain and options == ("Isolated", False)) or (named and options == ("Removed", True)):
                warn_if_slow(pattern)
                return pattern
    chain = Chain(steps)
    chain.check()
    return chain


def _parse_pre_tokenizer_step(step: Any) -> dict[str, Any]:
    kind = type_of(step)
    expect(kind in _PRE_TOKENIZERS, f"has a pre_tokenizer of type {kind}, which is not supported")
    where = f"a {kind}"
    parsed: dict[str, Any] = {"type": kind}
    if kind == "ByteLevel":
        parsed["add_prefix_space"] = _flag(step, "add_prefix_space", where, default=False)
        parsed["use_regex"] = _flag(step, "use_regex", where, default=True)
    if kind == "Digits":
        parsed["individual_digits"] = _flag(step, "individual_digits", where, default=False)
    if kind == "Split":
        parsed["invert"] = _flag(step, "invert", where, default=False)
        parsed["pattern"] = _parse_split_pattern(
            step.get("pattern"), "a pre_tokenizer.pattern that is neither a Regex nor a String"
        )
    if kind in ("Split", "Punctuation"):
        parsed["behavior"] = step.get("behavior", "Isolated")
        expect(parsed["behavior"] in BEHAVIORS, f"has {where} with behavior {quote(parsed['behavior'])}")
    if kind == "CharDelimiterSplit":
        parsed["delimiter"] = _text(step, "delimiter", where)
        expect(len(parsed["delimiter"]) == 1, f"has {where} with delimiter = {quote(parsed['delimiter'])}")
    if kind == "FixedLength":
        length = parsed["length"] = step.get("length")
        expect(type(length) is int and 0 < length < 2**31, f"has {where} with length = {quote(length)}")
    if kind == "Metaspace":
        parsed |= parse_metaspace(step, "pre_tokenizer")
    return parsed


def parse_metaspace(step: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a Metaspace in the spelling of new files."""
    where = f"a {where} Metaspace"
    replacement = step.get("replacement", MARK)
    expect(
        isinstance(replacement, str) and len(replacement) == 1 and is_unicode(replacement),
        f"has {where} with replacement = {quote(replacement)}",
    )
    old = _flag(step, "add_prefix_space", where, default=True)
    prepend = step.get("prepend_scheme", "always")
    expect(prepend in _SCHEMES, f"has {where} with prepend_scheme = {quote(prepend)}")
    expect(
        old or prepend == "never",
        f"has {where} with add_prefix_space = False, but prepend_scheme is not 'never', which tokenizers requires",
    )
    cuts = _flag(step, "split", where, default=True)
    return {"replacement": replacement, "prepend_scheme": prepend, "split": cuts}


def _parse_split_pattern(pattern: Any, where: str) -> dict[str, str]:
    """Return a checked pattern: {"Regex": regex} or {"String": text}."""
    kind, text = next(iter(pattern.items())) if isinstance(pattern, dict) and len(pattern) == 1 else (None, None)
    if kind not in ("Regex", "String") or not isinstance(text, str) or text == "":
        raise ValueError(f"has {where}")
    field = where.split(" that ")[0].split(" with ")[0]
    expect(len(text) <= LONGEST_REGEX, f"has {field} of {len(text)} characters")
    expect(is_unicode(text), f"has {field} with a lone surrogate")
    if kind == "Regex":
        named = field.replace("a pre_tokenizer", "the pre_tokenizer")
        expect(text not in NAMES, f"has {named} {text!r}, the name of a pattern instead of a regex")
        pattern_of(text)  # raises for a regex that cannot run
        refuse_other_meanings(text)
    return {kind: text}


def parse_decoder(decoder: Any) -> list[dict[str, Any]]:
    """Return the checked steps of decoding, in the spelling of new files."""
    if decoder is None:
        return [{"type": JOIN}]
    return [_parse_decoder_step(step) for step in steps_of(decoder, "decoder", "decoders")]


def decoder_field(steps: Sequence[dict[str, Any]]) -> Any:
    """Return the field decoder."""
    if len(steps) != 1:
        return {"type": "Sequence", "decoders": list(steps)}
    return None if steps[0]["type"] == JOIN else steps[0]


def _parse_decoder_step(step: Any) -> dict[str, Any]:
    kind = type_of(step)
    where = f"a decoder {kind}"
    if kind in ("ByteFallback", "Fuse"):
        return {"type": kind}
    if kind == "ByteLevel":
        return {"type": kind, "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    if kind == "Metaspace":
        return {"type": kind} | parse_metaspace(step, "decoder")
    if kind == "Replace":
        find, is_regex, content = parse_replace(step, "a decoder")
        return {"type": kind, "pattern": {"Regex" if is_regex else "String": find}, "content": content}
    if kind == "BPEDecoder":
        return {"type": kind, "suffix": _text(step, "suffix", where, empty=True, default="</w>")}
    if kind == "WordPiece":
        prefix = _text(step, "prefix", where, empty=True, default="##")
        return {"type": kind, "prefix": prefix, "cleanup": _flag(step, "cleanup", where, default=True)}
    if kind == "CTC":
        texts = {
            name: _text(step, name, where, empty=True, default=default)
            for name, default in (("pad_token", "<pad>"), ("word_delimiter_token", "|"))
        }
        return {"type": kind} | texts | {"cleanup": _flag(step, "cleanup", where, default=True)}
    expect(kind == "Strip", f"has a decoder of type {kind}, which is not supported")
    content = _text(step, "content", where)
    expect(len(content) == 1, f"has {where} with content = {quote(content)}")
    counts = {name: step.get(name) for name in ("start", "stop")}
    for name, count in counts.items():
        expect(type(count) is int and 0 <= count < 2**31, f"has {where} with {name} = {quote(count)}")
    return {"type": kind, "content": content} | counts


def _flag(step: dict[str, Any], name: str, where: str, *, default: bool | None = None) -> bool:
    value = step.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"has {where} with {name} = {quote(value)}")
    return value


def _text(step: dict[str, Any], name: str, where: str, *, empty: bool = False, default: str | None = None) -> str:
    value = step.get(name, default)
    if not isinstance(value, str) or not is_unicode(value) or (value == "" and not empty):
        raise ValueError(f"has {where} with {name} = {quote(value)}")
    expect(len(value) <= LONGEST_TEXT, f"has {where} with a {name} of {len(value):,} characters")
    return value

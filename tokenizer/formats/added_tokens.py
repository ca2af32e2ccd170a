"""Added tokens in the files of `tokenizers` and transformers: their ids and flags.

In `encode`, added tokens with "special": false follow the same rule as special tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from tokenizer.formats.spelled_vocabulary import expect, is_id, quote
from tokenizer.formats.strict_json import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    IdsAndFlags = tuple[dict[str, int], dict[str, dict[str, bool]]]

_SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
# The fields of transformers' files that name special tokens.
_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def added_tokens_field(
    special_tokens: Mapping[str, int], added_flags: Mapping[str, dict[str, bool]]
) -> list[dict[str, Any]]:
    """Return the field added_tokens of tokenizer.json, in the order of ids."""
    return [
        {"id": i, "content": spelling} | _SPECIAL | added_flags.get(spelling, {})
        for spelling, i in sorted(special_tokens.items(), key=lambda item: item[1])
    ]


def parse_added_tokens_field(content: dict[str, Any], vocab: Any) -> IdsAndFlags:
    """Return the ids of a tokenizer.json's added tokens, and the flags in which each differs from a special token.

    vocab: the token ids of its model.
    """
    added = content.get("added_tokens", [])
    expect(isinstance(added, list), "has added_tokens that are not a list")
    listed, flags = _parse_added_tokens([(f"added_tokens[{number}]", token) for number, token in enumerate(added)])
    return _ids_in_tokenizers(listed, vocab), flags


def read_added_tokens(path: Path, config: dict[str, Any], vocab: dict[str, Any]) -> IdsAndFlags:
    """Return the ids and flags of the added tokens in the files that transformers writes beside a vocabulary.

    tokenizer_config.json has ids and flags. If it has none, added_tokens.json has the ids. transformers adds the tokens
    in the order of these ids.

    path: the file of the vocabulary. config: the content of tokenizer_config.json. vocab: the token ids.
    """
    listed, flags = _parse_added_tokens(_tokens_beside(path, config))
    return _ids_in_tokenizers(sorted(listed, key=listed.__getitem__), vocab), flags


def read_object(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the object in a JSON file, or `default` if the file is missing."""
    if default is not None and not path.exists():
        return default
    try:
        content = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return content


def _ids_in_tokenizers(spellings: Iterable[str], vocab: Any) -> dict[str, Any]:
    """Return the ids that `tokenizers` gives added tokens. It does not read the ids in the file.

    A token of the vocabulary keeps its id. The others are numbered in the order of the list, from the size of the
    vocabulary on.
    vocab: the value in the file, which `check_ids` checks later, together with the result.
    """
    known = vocab if isinstance(vocab, dict) else {}
    free = count(len(known))
    return {spelling: known[spelling] if spelling in known else next(free) for spelling in spellings}


def _parse_added_tokens(added: list[tuple[str, Any]]) -> IdsAndFlags:
    """Return the ids that are listed for added tokens, and their flags.

    added: (field name for messages, value).
    """
    listed: dict[str, int] = {}
    flags: dict[str, dict[str, bool]] = {}
    for field, token in added:
        expect(isinstance(token, dict), f"has {field}, which is not an object")
        spelling, i = token.get("content"), token.get("id")
        expect(isinstance(spelling, str) and spelling != "", f"has {field}.content = {quote(spelling)}")
        expect(is_id(i), f"has {field}.id = {quote(i)}")
        name = f"{field} ({quote(spelling)})"
        for flag, value in _SPECIAL.items():
            given = token.get(flag, value)
            expect(isinstance(given, bool), f"has {name} with {flag} = {quote(given)}")
            if given != value:
                flags.setdefault(spelling, {})[flag] = given
        expect(spelling not in listed, f"has {name} twice")
        listed[spelling] = i
    return listed, flags


def _tokens_beside(path: Path, config: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the added tokens beside a vocabulary, in the form that `_parse_added_tokens` takes."""
    decoder = config.get("added_tokens_decoder")
    if decoder is None:
        ids = read_object(path.with_name("added_tokens.json"), {})
        named = _named_special_tokens(config, read_object(path.with_name("special_tokens_map.json"), {}))
        return [
            (
                "added_tokens.json",
                {"content": token, "id": i, "special": token in named, "normalized": token not in named},
            )
            for token, i in ids.items()
        ]
    if not isinstance(decoder, dict):
        raise ValueError("tokenizer_config.json has an added_tokens_decoder that is not an object")
    added = []
    for key, token in decoder.items():
        field = f"added_tokens_decoder[{key[:20]!r}]"
        if not (key.isascii() and key.isdigit() and len(key) < 10 and isinstance(token, dict)):
            raise ValueError(f"tokenizer_config.json has {field}, which is not a token with its id")
        added.append((field, token | {"id": int(key)}))
    return added


def _named_special_tokens(config: dict[str, Any], tokens_map: dict[str, Any]) -> set[Any]:
    """Return the spellings that tokenizer_config.json and special_tokens_map.json name as special.

    transformers reads additional_special_tokens in the first file only.
    """
    merged = config | tokens_map
    values = [merged.get(name) for name in _NAMES]
    for several in (merged.get("extra_special_tokens"), config.get("additional_special_tokens")):
        values += several if isinstance(several, list) else []
    return {str(value.get("content") if isinstance(value, dict) else value) for value in values}

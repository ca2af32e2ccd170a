"""The fields truncation and padding of tokenizer.json, which `tokenizers` applies and `encode` does not.

transformers writes them after a call with truncation=True or padding=True. They are checked and kept for saving.
"""

from __future__ import annotations

from tokenizer.formats.spelled_vocabulary import expect, is_unicode, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def length_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of tokenizer.json for `settings`, the result of `parse_length_settings`."""
    return {"truncation": None, "padding": None, **settings}


def parse_length_settings(content: dict[str, Any]) -> dict[str, Any]:
    """Return the checked truncation and padding of a tokenizer.json, without a field that is None.

    Raises ValueError that names a value if `tokenizers` does not read it either.
    """
    settings = {}
    for field, checks in _FIELDS.items():
        given = content.get(field)
        if given is None:
            continue
        expect(isinstance(given, dict), f"has a {field} that is not an object: {quote(given)}")
        for name, fits in checks.items():
            if name not in given:
                expect(name in _OPTIONAL[field], f"has a {field} without {name}")
                continue
            expect(fits(given[name]), f"has {field}.{name} = {quote(given[name])}, which is not supported")
        settings[field] = {name: given[name] for name in checks if name in given}
    return settings


def _is_below(limit: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value < limit


def _is_one_of(*names: str) -> Callable[[Any], bool]:
    return lambda value: value in names


_is_size, _is_side = _is_below(2**64), _is_one_of("Left", "Right")
_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "truncation": {
        "direction": _is_side,
        "max_length": _is_size,
        "strategy": _is_one_of("LongestFirst", "OnlyFirst", "OnlySecond"),
        "stride": _is_size,
    },
    "padding": {
        "strategy": lambda value: (
            value == "BatchLongest" or (isinstance(value, dict) and [*value] == ["Fixed"] and _is_size(value["Fixed"]))
        ),
        "direction": _is_side,
        "pad_to_multiple_of": lambda value: value is None or _is_size(value),
        "pad_id": _is_below(2**32),
        "pad_type_id": _is_below(2**32),
        "pad_token": lambda value: isinstance(value, str) and is_unicode(value),
    },
}
_OPTIONAL = {"truncation": ("direction",), "padding": ("pad_to_multiple_of",)}

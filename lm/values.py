"""Checks of values against type hints, for the fields of configurations and the arguments of public functions."""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

_UNFIT = object()
_NAMES = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("a string", "strings"),
    Path: ("a path", "paths"),
}


def check_value(value: Any, hint: Any, name: str) -> Any:
    """Return `value` as the type `hint`: numbers of numpy become Python's, and a list a tuple if the hint is one.

    Raises ValueError, with the value and the accepted ones, for a value of another type or outside the choices of a
    Literal.
    """
    fitted = _fit(value, hint)
    if fitted is _UNFIT:
        raise ValueError(f"{name} is {reprlib.repr(value)}, but must be {_describe_hint(hint)}")
    return fitted


def read_as(hint: Any, value: Any) -> Any:
    """Return `value`, parsed JSON, as the type `hint`, as `check_value` does, with mappings as dataclasses.

    Keys that are no fields are ignored, and a missing key is null. Raises ValueError for a value of another type.
    """
    fitted = _fit(value, hint, mappings=True)
    if fitted is _UNFIT:
        raise ValueError(f"{reprlib.repr(value)} must be {_describe_hint(hint)}")
    return fitted


def check_fields(config: Any, prefix: str) -> None:
    """Make every field of a dataclass the type of its hint, as `check_value` does, in its `__post_init__`.

    Raises ValueError that names the field with `prefix`, such as `model.`, for a value of another type.
    """
    for name, hint in _hints(config.__class__).items():
        object.__setattr__(config, name, check_value(getattr(config, name), hint, prefix + name))  # it may be frozen


def check_range(value: Any, hint: Any, name: str) -> None:
    """Raise ValueError for NaN, and for a number outside the range of float32 if the `hint` is float, else of int64."""
    bits = 128 if hint is float else 63
    if isinstance(value, int | float) and not abs(value) < 2**bits:  # the comparison refuses NaN too
        raise ValueError(f"{name} is out of range: its magnitude must be below 2^{bits}")


def check_ranges(config: Any, spelled: str) -> None:
    """Raise ValueError if `check_range` refuses a field of a dataclass; `spelled`: how messages name it, `train.{}`."""
    for name, hint in _hints(config.__class__).items():
        check_range(getattr(config, name), hint, spelled.format(name))


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _fit(value: Any, hint: Any, mappings: bool = False) -> Any:
    """Return `value` as the type `hint`, or _UNFIT. A mapping fits a dataclass if `mappings`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fit(value, arguments[0], mappings)
    if origin in (Union, UnionType):
        fitting = (_fit(value, kind, mappings) for kind in arguments)
        return next((fitted for fitted in fitting if fitted is not _UNFIT), _UNFIT)
    if origin is Literal:
        return value if any(type(value) is type(choice) and value == choice for choice in arguments) else _UNFIT
    if origin in (tuple, list, Sequence):
        return _fitted_items(value, origin, arguments, mappings)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping) or _fitted_items([*value], list, arguments[:1]) is _UNFIT:
            return _UNFIT
        items = _fitted_items([*value.values()], tuple, (*arguments[1:], ...), mappings)
        return _UNFIT if items is _UNFIT else dict(zip(value, items, strict=True))
    if mappings and isinstance(value, Mapping) and is_dataclass(hint):
        return _fitted_fields(value, hint)
    if hint in (int, float):
        if isinstance(value, bool):
            return _UNFIT
        if isinstance(value, Integral):
            return int(value)
        return float(value) if hint is float and isinstance(value, Real) else _UNFIT
    return value if hint is Any or not isinstance(hint, type) or isinstance(value, hint) else _UNFIT


def _fitted_items(value: Any, origin: Any, kinds: tuple[Any, ...], mappings: bool = False) -> Any:
    """Return a list or another sequence with its items as `kinds`, the arguments of the hint, or _UNFIT."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return _UNFIT
    if origin is tuple and kinds[1:] != (...,):
        if len(value) != len(kinds):
            return _UNFIT
    else:
        kinds = kinds[:1] * len(value)
    items = tuple(_fit(item, kind, mappings) for item, kind in zip(value, kinds, strict=True))
    if any(item is _UNFIT for item in items):
        return _UNFIT
    return items if origin is tuple else value


def _fitted_fields(values: Mapping[str, Any], cls: Any) -> Any:
    """Return the dataclass `cls` with `values` of its fields, or _UNFIT. A missing field has its default, or None."""
    hints = _hints(cls)
    absent = {field.name: None if field.default is MISSING else field.default for field in fields(cls)}
    known = {name: value for name, value in values.items() if name in hints}
    given = {name: _fit(value, hints[name], mappings=True) for name, value in (absent | known).items()}
    return _UNFIT if any(value is _UNFIT for value in given.values()) else cls(**given)


def _describe_hint(hint: Any) -> str:
    """Return the values that a hint accepts, in words: "a whole number or None"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _describe_hint(arguments[0])
    if origin in (Union, UnionType):
        kinds = dict.fromkeys(_describe_hint(kind) for kind in arguments if kind is not NoneType)
        return " or ".join([*kinds, *(["None"] if NoneType in arguments else [])])
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin is tuple and arguments[1:] != (...,):
        return f"{len(arguments)} {_plural(arguments[0])}"
    if origin in (tuple, list, Sequence):
        return f"a list of {_plural(arguments[0])}"
    if origin in (dict, Mapping):
        return f"a mapping from {_plural(arguments[0])} to {_plural(arguments[1])}"
    return _NAMES[hint][0] if hint in _NAMES else f"a {getattr(hint, '__name__', hint)}"


def _plural(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_plural, get_args(hint)))
    return _NAMES[hint][1] if hint in _NAMES else f"values that are each {_describe_hint(hint)}"

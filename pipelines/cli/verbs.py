"""Verbs as Python functions: strings stand for paths and recipes, and signatures are plain.

The command line reads the wrapped function, `__wrapped__`, whose annotations define how words become arguments.
"""

import inspect
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from lm.config import ModelConfig
from pipelines.run.recipe import Recipe, load_recipe

T = TypeVar("T")


def verb(function: Callable[..., T]) -> Callable[..., T]:
    """Return the verb for callers in Python.

    A str stands for a path, a recipe or a model, and one value for a sequence of them: `report("runs/gpt")`.
    """
    raw = inspect.signature(function)
    kinds = {name: _plain(parameter.annotation) for name, parameter in raw.parameters.items()}

    @wraps(function)
    def call(*positional: Any, **named: Any) -> T:
        bound = raw.bind(*positional, **named)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _converted(kinds[name], value)
        return function(*bound.args, **bound.kwargs)

    parameters = [parameter.replace(annotation=_accepted(kinds[p])) for p, parameter in raw.parameters.items()]
    call.__signature__ = raw.replace(parameters=parameters)
    return call


def _plain(annotation: Any) -> Any:
    """Return an annotation without its command-line metadata."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, except None."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(kind for kind in get_args(annotation) if kind is not NoneType)
    return (annotation,)


def _items(annotation: Any) -> Any:
    """Return the item type of a sequence of any length; None for other types."""
    arguments = get_args(annotation)
    several = get_origin(annotation) is Sequence or (get_origin(annotation) is tuple and arguments[1:] == (...,))
    return arguments[0] if several else None


def _model(name: str) -> ModelConfig:
    from pipelines.run.named_models import named_model

    return named_model(name)[0]


_FROM_TEXT: dict[Any, Callable[[str], Any]] = {Path: Path, Recipe: load_recipe, ModelConfig: _model, str: str}


def _converted(annotation: Any, value: Any) -> Any:
    """Return `value` converted to the type that the verb takes; values of other types pass unchanged."""
    is_text = isinstance(value, (str, os.PathLike))
    for kind in _kinds(annotation):
        if (item := _items(kind)) in _FROM_TEXT and (is_text or isinstance(value, (list, tuple))):
            return tuple(_converted(item, each) for each in ([value] if is_text else value))
        if is_text and kind in _FROM_TEXT:
            return _FROM_TEXT[kind](os.fspath(value))
    return value


def _accepted(annotation: Any) -> Any:
    """Return the annotation with str added if the verb converts strings."""
    converts = any(kind in (Path, Recipe, ModelConfig) or _items(kind) in (Path, str) for kind in _kinds(annotation))
    return annotation | str if converts else annotation

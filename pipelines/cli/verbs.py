"""Verbs as Python functions, which also take strings for paths, recipes and models.

The command line calls the wrapped function, whose annotations define its arguments and options.
"""

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from lm.values import check_value
from pipelines.cli.arguments import OR_LOADED
from pipelines.cli.errors import UsageError, nearest

P = ParamSpec("P")
T = TypeVar("T")
# Path("s3://bucket") is the local path s3:/bucket.
_URI = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/+")


def verb(function: Callable[..., T]) -> Callable[..., T]:
    """Return the verb for callers in Python.

    It converts a string to a path, recipe or model, and a single value to a sequence: `report("runs/gpt")`. It checks
    its arguments as `checks_arguments` does.
    """
    return checks_arguments(function)


def checks_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with checked arguments. Errors give the name of the argument.

    It raises ValueError for a value of the wrong type or not among the choices, and TypeError for an unknown argument.
    """
    raw = inspect.signature(function)
    kinds = {name: _plain(parameter.annotation) for name, parameter in raw.parameters.items()}
    further = {name for name, parameter in raw.parameters.items() if parameter.kind is parameter.VAR_KEYWORD}
    runs = {name for name, parameter in raw.parameters.items() if OR_LOADED in get_args(parameter.annotation)}

    @wraps(function)
    def call(*positional: P.args, **named: P.kwargs) -> T:
        hints = {name: get_type_hints(get_args(kinds[name])[0]) for name in further}
        _refuse_unknown(function, {name for each in hints.values() for name in each}, named)
        bound = raw.bind(*positional, **named)
        for name, value in bound.arguments.items():
            if name in further:
                options = hints[name].items()
                bound.arguments[name] = {key: _check(value[key], kind, key) for key, kind in options if key in value}
            elif name in runs:
                bound.arguments[name] = _check_runs(value, kinds[name], name)
            else:
                bound.arguments[name] = _check(value, kinds[name], name)
        refuse_uris(function, bound.arguments)
        return function(*bound.args, **bound.kwargs)

    parameters = [parameter.replace(annotation=_accept(kinds[p])) for p, parameter in raw.parameters.items()]
    call.__signature__ = raw.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect.signature
    return call


def _refuse_unknown(function: Callable[..., Any], options: Collection[str], named: Collection[str]) -> None:
    """Raise TypeError if one of the keyword arguments `named` is unknown, with where it belongs.

    `options` are the further keyword arguments of the function.
    """
    parameters = inspect.signature(function).parameters
    known = {*parameters, *options}
    for name in [name for name in named if name not in known]:
        similar = " or ".join(f"`{known_name}`" for known_name in nearest(name, known))
        hint = [f": did you mean {similar}?"] if similar else []
        for parameter in parameters.values():
            kinds = [parameter.annotation, *get_args(parameter.annotation)]
            for config in [kind for kind in kinds if is_dataclass(kind) and name in kind.__dataclass_fields__]:
                table = get_origin(_plain(parameter.annotation)) is Mapping
                value = f"{{{name!r}: ...}}" if table else f"{getattr(config, '__name__', config)}({name}=...)"
                hint.insert(0, f": it belongs in `{parameter.name}={value}`")
        raise TypeError(f"{function.__name__}() has no argument `{name}`{''.join(hint[:1])}")


def _check_runs(value: Any, annotation: Any, name: str) -> Any:
    """Return an argument that names runs; loaded ones stay as they are."""
    if is_loaded(value):
        return value
    if isinstance(value, list | tuple) and any(map(is_loaded, value)):
        return tuple(_check_runs(each, Path, name) for each in value)
    return _check(value, annotation, name)


def is_loaded(value: object) -> bool:
    """Return whether a value is a loaded run, without importing its class."""
    return type(value).__name__ == "LoadedRun"


def _check(value: Any, annotation: Any, name: str) -> Any:
    """Return an argument as the type that the verb takes."""
    return check_value(_convert(annotation, value), _accept(annotation), f"`{name}`")


def refuse_uris(function: Callable[..., Any], given: Mapping[str, Any], metavars: bool = False) -> None:
    """Raise UsageError if one of the arguments `given` to the verb `function` is a URI but must be a local path.

    An argument that may be a URI must be given as a string, because a Path drops a slash. `metavars`: whether the error
    names positional arguments as the command line does.
    """
    for name, parameter in inspect.signature(function).parameters.items():
        kinds = _kinds(_plain(parameter.annotation))
        if not given.get(name) or not any(Path in (kind, _items(kind)) for kind in kinds):
            continue
        option = f"`{name}`"
        if metavars and parameter.kind is not parameter.KEYWORD_ONLY:
            shown = [rule.metavar for rule in get_args(parameter.annotation) if getattr(rule, "metavar", None)]
            option = shown[0].split()[0] if shown else option
        values = (
            given[name] if isinstance(given[name], Iterable) and not isinstance(given[name], str) else [given[name]]
        )
        for path in [value for value in values if not is_loaded(value)]:
            if str not in kinds:
                refuse_uri(option, path)
            elif "://" not in str(path) and _URI.match(str(path)):
                raise UsageError(f"{option} is a URI in a Path ({path}): give the URI as a string")


def refuse_uri(option: str, path: Path) -> None:
    """Raise UsageError if the path given for `option` is a URI."""
    if match := _URI.match(path.as_posix()):
        uri = f"{match[1]}://{path.as_posix()[match.end() :]}"
        raise UsageError(
            f"{option} is {uri}, but must be a local path: only a corpus, `out` of build-dataset, `data` of pretrain "
            "and evaluate, and dataset verify take URIs"
        )


def _plain(annotation: Any) -> Any:
    """Return an annotation without the metadata of the command line."""
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


def _recipe(name: str) -> Any:
    from pipelines.recipes.recipe import load_recipe

    return load_recipe(name)


def _model(name: str) -> Any:
    from pipelines.run.named_models import named_model

    return named_model(name)[0]


# Types that strings are converted to, by name: most verbs import neither recipes nor models for their --help.
_FROM_TEXT: dict[str, Callable[[str], Any]] = {"Path": Path, "Recipe": _recipe, "ModelConfig": _model, "str": str}


def _from_text(kind: Any) -> Callable[[str], Any] | None:
    """Return the conversion of a string to a type, if there is one."""
    return _FROM_TEXT.get(getattr(kind, "__name__", ""))


def _convert(annotation: Any, value: Any) -> Any:
    """Return strings and paths converted to the type that the verb takes, and other values unchanged."""
    is_text = isinstance(value, (str, os.PathLike))
    texts = [value] if is_text else value if isinstance(value, (list, tuple)) else [None]
    for kind in _kinds(annotation):
        item = _items(kind)
        if _from_text(item) and all(isinstance(text, (str, os.PathLike)) for text in texts):
            return tuple(_convert(item, text) for text in texts)
        if is_text and (convert := _from_text(kind)):
            return convert(os.fspath(value))
    return value


def _accept(annotation: Any) -> Any:
    """Return the annotation with str added if the verb converts strings."""
    converts = any((_from_text(kind) and kind is not str) or _from_text(_items(kind)) for kind in _kinds(annotation))
    return annotation | str if converts else annotation

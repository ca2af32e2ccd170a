"""The measurements of `bytelm evaluate`: each module defines one, and names it MEASUREMENT.

`bytelm evaluate --help` reads the options from the source of the modules, because importing them would import PyTorch.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pipelines.cli.module_options import options_of
from pipelines.evaluation.measurement import Measurement

FOLDER = Path(__file__).parent
# The numbers that people look for come first. Intervals come after the measurements that compute them.
FIRST, LAST = ("predictions", "ngrams", "trained_text", "against"), ("intervals", "settings")


@cache
def kinds() -> tuple[type[Measurement], ...]:
    """Return the measurements: FIRST, then by the names of their modules, and LAST."""
    return tuple(import_module(f"{__name__}.{path.stem}").MEASUREMENT for path in _modules())


def options() -> Iterator[inspect.Parameter]:
    """Yield the options of all measurements: the fields of their classes, with their docstrings as help."""
    for path in _modules():
        yield from _options_of(path)


def _options_of(path: Path) -> Iterator[inspect.Parameter]:
    return options_of(path, "Measurement")


def measurements(given: Mapping[str, Any] | None = None) -> tuple[Measurement, ...]:
    """Return every measurement, with its options from `given`; the others keep their defaults."""
    given = given or {}
    names = ((kind, [option.name for option in fields(kind) if option.name in given]) for kind in kinds())
    return tuple(kind(**{name: given[name] for name in own}) for kind, own in names)


def changed_options(given: Mapping[str, Any]) -> list[str]:
    """Return the names of the options in `given` that are not their defaults."""
    return [option.name for option in options() if given.get(option.name, option.default) != option.default]


def with_changed_options(given: Mapping[str, Any]) -> Iterator[Measurement]:
    """Yield the measurements with an option in `given` that is not its default; imports no other module."""
    for path in _modules():
        defaults = {option.name: option.default for option in _options_of(path)}
        own = {name: given[name] for name in defaults if name in given}
        if any(value != defaults[name] for name, value in own.items()):
            yield import_module(f"{__name__}.{path.stem}").MEASUREMENT(**own)


def _modules() -> list[Path]:
    modules = {path.stem: path for path in sorted(FOLDER.glob("[!_]*.py"))}
    between = [name for name in modules if name not in (*FIRST, *LAST)]
    return [modules[name] for name in (*FIRST, *between, *LAST)]

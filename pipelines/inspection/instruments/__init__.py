"""The instruments of `bytelm inspect`: each module defines one, and names it INSTRUMENT.

The name of the module is that of the instrument, and the first line of its docstring describes it in `--help`.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from pipelines.cli.module_options import options_of
from pipelines.inspection.instrument import Instrument

FIRST = ("lens", "attribution")  # the others follow by name
_MODULES = {path.stem: path for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}
_MODULES = {name: _MODULES[name] for name in dict.fromkeys((*FIRST, *_MODULES))}
NAMES = tuple(_MODULES)


def descriptions() -> dict[str, str]:
    """Return the first line of each instrument's docstring, by name."""
    docstrings = {name: ast.get_docstring(ast.parse(path.read_text("utf-8"))) for name, path in _MODULES.items()}
    return {name: (text or "").partition("\n")[0] for name, text in docstrings.items()}


def options() -> Iterator[inspect.Parameter]:
    """Yield the options of all instruments. An option of several instruments has the help text of the first one."""
    every = (option for path in _MODULES.values() for option in options_of(path, "Instrument"))
    named: dict[str, inspect.Parameter] = {}
    for option in every:
        named.setdefault(option.name, option)
    yield from named.values()


def instrument(name: str, given: Mapping[str, Any]) -> Instrument:
    """Return the instrument `name`, with its options from `given`; absent options keep their defaults."""
    kind: type[Instrument] = import_module(f"{__name__}.{name}").INSTRUMENT
    return kind(**{option.name: given[option.name] for option in fields(kind) if option.name in given})

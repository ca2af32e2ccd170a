"""Options that the modules of a folder define, such as those of measurements, read from their source.

Importing the modules would import PyTorch, and `--help` should not.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from pipelines.cli.escapes import as_options

F = TypeVar("F", bound=Callable[..., Any])


def options_of(path: Path, base: str) -> Iterator[inspect.Parameter]:
    """Yield the fields of the class in a module that inherits from `base` alone, with their docstrings as help."""
    _, _, source = path.read_text(encoding="utf-8").partition(f"({base}):\n")
    lines = takewhile(lambda line: not line or line.startswith(" "), source.splitlines())
    body = ast.parse(textwrap.dedent("\n".join(lines))).body
    for field, text in pairwise([*body, None]):
        if isinstance(field, ast.AnnAssign) and field.value and isinstance(text, ast.Expr):
            kind = eval(ast.unparse(field.annotation), {"Literal": Literal})
            words = " ".join(inspect.cleandoc(ast.literal_eval(text.value)).split())
            yield inspect.Parameter(
                ast.unparse(field.target),
                inspect.Parameter.KEYWORD_ONLY,
                default=ast.literal_eval(field.value),
                annotation=Annotated[kind, tyro.conf.arg(help=as_options(words))],
            )


def with_options(function: F, options: Iterable[inspect.Parameter]) -> F:
    """Add options to the signature of a verb, before its last parameter, `**options`."""
    signature, added = inspect.signature(function), list(options)
    *own, last = signature.parameters.values()
    function.__signature__ = signature.replace(parameters=[*own, *added, last])  # type: ignore[attr-defined]  # read by inspect.signature
    function.__annotations__ |= {option.name: option.annotation for option in added}
    return function

"""The tasks of fine-tuning. Each module defines one task as TASK. Imports no torch."""

import ast
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path

from pipelines.tasks.task import Task

SHARED = (
    "answer_pairs",
    "comparison",
    "data",
    "examples",
    "seeds",
    "shared_boundaries",
    "task",
    "text_reader",
    "windows",
)
"""Modules that all tasks share"""


def tasks() -> dict[str, str]:
    """Return the first sentence about each task by its command-line name, without importing the tasks."""
    described = {}
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        if path.stem not in SHARED:
            words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            described[path.stem.replace("_", "-")] = words.partition("\n\n")[0].replace("\n", " ").rstrip(".")
    return described


def task_names() -> list[str]:
    """Return the command-line names of all tasks, such as `classes`."""
    return list(tasks())


@cache
def task_class(name: str) -> type[Task]:
    """Return the class of the task `name`. Raises ValueError, which lists the names, for any other name."""
    names = task_names()
    if name not in names:
        near = get_close_matches(name, names, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no task {name!r}: {meant}tasks are {', '.join(names)}")
    kind: type[Task] = import_module(f"{__name__}.{name.replace('-', '_')}").TASK
    return kind

"""Command lines of `bytelm` as text that a shell reads back."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def command(verb: str, *words: str | Path, **options: Any) -> str:
    """Return the command line of a verb. Options that are None are left out."""
    return shlex.join(["bytelm", verb, *map(str, words), *_words(options)])


def _words(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is False:
            option = f"--{name.rpartition('.')[0]}{'.' * ('.' in name)}no-{name.rpartition('.')[2]}".replace("_", "-")
        if value is not None:
            words.append(option)
        if isinstance(value, Sequence) and not isinstance(value, str):
            words += map(str, value)
        elif value is not None and not isinstance(value, bool):
            words.append(str(value))
    return words

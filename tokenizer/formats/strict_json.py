"""JSON files, read strictly: no repeated name in an object, no NaN or infinity, a bounded size and depth."""

from __future__ import annotations

import json
import stat
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# Bytes. The largest published vocabularies have about 35 MB. The parsed objects take many times the file's size.
LARGEST_FILE = 1 << 28


def regular_size(path: Path) -> int:
    """Return the size of a file without opening it. ValueError for a pipe or device: reading one may never end.

    A folder passes, because opening it raises IsADirectoryError.
    """
    facts = path.stat()
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        kinds = {stat.S_ISFIFO: "named pipe", stat.S_ISSOCK: "socket"}
        kind = next((word for test, word in kinds.items() if test(facts.st_mode)), "device")
        raise ValueError(f"is a {kind}, not a regular file")
    return facts.st_size


def read_bytes(path: Path) -> bytes:
    """Return a file's content. Raises ValueError if it is no regular file, or larger than LARGEST_FILE."""
    size = regular_size(path)
    if size > LARGEST_FILE:
        raise ValueError(f"has {size:,} bytes, more than the limit of {LARGEST_FILE:,}")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Return a file's text. Raises ValueError if it is too large or not UTF-8."""
    return decode(read_bytes(path))


def decode(content: bytes) -> str:
    """Return the text of a file's content. Raises ValueError if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 at byte {error.start}") from None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file. Raises ValueError, as `parse_json`."""
    return parse_json(read_bytes(path))


def parse_json(content: bytes) -> Any:
    """Return the value of JSON text in UTF-8. The message of a ValueError is the end of a sentence about the file."""
    return parse_json_text(decode(content))


def parse_json_text(text: str, parse_float: Callable[[str], float] = float) -> Any:
    """Return the value of JSON text. Raises ValueError, as `parse_json`. parse_float: reads numbers with a fraction."""

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"has the number {name}, which is not JSON")

    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=refuse_constant, parse_float=parse_float)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg} at line {error.lineno}); the file may be truncated") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("has a number with thousands of digits") from None
        raise


def _distinct(items: list[tuple[str, object]]) -> dict[str, object]:
    """Return the items of a JSON object as a dict. Raises ValueError for a repeated name."""
    fields = dict(items)
    if len(fields) < len(items):
        seen = set()
        for name, _ in items:
            if name in seen:
                raise ValueError(f"has the name {name[:80]!r} twice in one object")
            seen.add(name)
    return fields

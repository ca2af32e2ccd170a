"""Checks of the arguments of `Tokenizer`: ValueError with the argument's name, what it must be, and its value."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

LARGEST = 2**63 - 1
MOST_THREADS = 1024


def whole_number(name: str, value: object, least: int, most: int | None = LARGEST) -> int:
    """Return a whole number from `least` to `most`, of Python or numpy; None for no upper limit."""
    number = None if isinstance(value, bool) else getattr(value, "__index__", lambda: None)()
    if number is None or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most:,}, not {value!r}")
    return int(number)


def random_of(seed: object) -> Random:
    """Return a generator with this seed."""
    from random import Random

    return Random(whole_number("seed", seed, 0, None))


def file_path(name: str, value: object) -> str | os.PathLike[str]:
    """Return the path of a file or folder."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"{name} must be a path, not {value!r}")
    return value


def error_handler(value: object) -> str:
    """Return the name of an error handler of `bytes.decode`."""
    import codecs

    try:
        codecs.lookup_error(value)  # type: ignore[arg-type]  # other types raise TypeError
    except (LookupError, TypeError):
        raise ValueError(f"errors must be 'replace', 'strict' or 'ignore', not {value!r}") from None
    return str(value)


def check_iterable(name: str, value: object, of: str) -> None:
    """Raise ValueError unless `value` is an iterable and no text. `of`: what it holds."""
    if isinstance(value, (str, bytes, bytearray, memoryview)) or not hasattr(value, "__iter__"):
        raise ValueError(f"{name} must be an iterable of {of}, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Raise ValueError unless `value` is None or callable."""
    if value is not None and not callable(value):
        raise ValueError(f"{name} must be a function or None, not {value!r}")

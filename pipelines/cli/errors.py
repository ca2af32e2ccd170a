"""Errors and warnings as one line on standard error."""

import sys
from collections.abc import Iterable
from contextlib import suppress

from pipelines.cli import waiting
from pipelines.cli.escapes import as_options, safe


class UsageError(ValueError):
    """A mistake in a command line; the exit status is 2."""


def complain(command: str, text: str) -> None:
    """Print one line about the `bytelm` command `command` to standard error."""
    text = safe(as_options(text))
    with waiting.pause_line(), suppress(OSError):
        print(f"bytelm {command}: {text}" if command else f"bytelm: {text}", file=sys.stderr)


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that resemble a mistyped word, best first.

    Parts of a name are separated by hyphens, underscores and dots. Names with a part equal to the word come first, then
    names with a part that begins with it. If there are none, the name with the most similar spelling counts.
    """
    from difflib import SequenceMatcher

    def likeness(name: str) -> float:
        return SequenceMatcher(None, word.lstrip("-"), name.lstrip("-")).ratio()

    def parts(text: str) -> str:
        return "-" + text.lstrip("-").replace("_", "-").replace(".", "-")

    ranked = sorted(names, key=likeness, reverse=True)
    begun = [name for name in ranked if f"{parts(word)}-" in f"{parts(name)}-"]
    begun += [name for name in ranked if len(word.lstrip("-")) > 2 and parts(word) in parts(name) and name not in begun]
    return begun[:3] or [name for name in ranked[:1] if likeness(name) >= 0.6]


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return the question about a mistyped word, such as "did you mean 'gpt2'? ", or "" if no name resembles it."""
    found = " or ".join(map(repr, nearest(word, names)))
    return f"did you mean {found}? " if found else ""


def one_sentence(error: BaseException) -> str:
    """Return `error` as one line; for a failed system call, the reason and the file."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return " ".join(str(error).split()) or type(error).__name__

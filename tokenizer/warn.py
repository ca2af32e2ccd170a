"""Warnings that name the line of the caller's code; the same as in lm, because packages do not import each other."""

import sys
import warnings
from traceback import walk_stack

PACKAGES = ("bytelm", "pipelines", "lm", "tokenizer", "corpora")


def warn(message: str) -> None:
    """Warn about the line of the caller's code whose call led here, outside of these packages."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_stack(sys._getframe(1))]
    ours = [level for level, name in enumerate(names, 1) if name.partition(".")[0] in PACKAGES]
    warnings.warn(message, stacklevel=max(ours) + 2)

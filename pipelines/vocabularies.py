"""Tokenizers that are named on a command line: a folder or a file, and the pattern of one that does not say it."""

from collections.abc import Sequence
from pathlib import Path

from tokenizer import PATTERN_NAMES, Tokenizer

# Published ranks whose file has not the name of its pattern.
_PATTERNS = {"r50k": "gpt2", "p50k": "gpt2"}


def load_tokenizer(path: Path, pattern: str | None = None) -> Tokenizer:
    """Read a tokenizer; a .tiktoken file of a published name (cl100k_base, say) needs no pattern.

    ValueError for another such file without one, and for a pattern that a file says itself.
    """
    if pattern is None and path.suffix == ".tiktoken" and path.is_file():
        pattern = _pattern_of(path.stem)
        if pattern is None:
            names = ", ".join(PATTERN_NAMES)
            raise ValueError(f"{path} does not say how text is split: add --pattern with one of {names}")
    return Tokenizer.load(path, pattern=pattern)


def load_compared(specs: Sequence[str]) -> dict[str, Tokenizer]:
    """The tokenizers that --compare PATH or NAME=PATH means, by their names."""
    found: dict[str, Tokenizer] = {}
    for spec in specs:
        name, _, path = spec.rpartition("=")
        path = Path(path)
        name = name or path.stem.removesuffix("_base")
        if name in found:
            raise ValueError(f"--compare {spec}: another is called {name} too; write it as NAME={path}")
        pattern = None
        if path.suffix == ".tiktoken" and path.is_file():
            pattern = _pattern_of(name) or _pattern_of(path.stem)
            if pattern is None:
                raise ValueError(
                    f"--compare {spec}: a .tiktoken file does not say its pattern; write it as cl100k={path}, say"
                )
        found[name] = Tokenizer.load(path, pattern=pattern)
    return found


def _pattern_of(name: str) -> str | None:
    """The pattern that belongs to a name of published ranks, such as cl100k or cl100k_base."""
    name = name.removesuffix("_base")
    name = _PATTERNS.get(name, name)
    return name if name in PATTERN_NAMES else None

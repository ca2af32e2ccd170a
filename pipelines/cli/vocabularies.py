"""Tokenizers that are named on a command line: a folder or a file, and the pattern of one that does not say it."""

from collections.abc import Sequence
from pathlib import Path

from tokenizer import PATTERN_NAMES, PatternNeededError, Tokenizer


def load_tokenizer(path: Path, pattern: str | None = None) -> Tokenizer:
    """Return the tokenizer of `--tokenizer PATH`, with the pattern of `--pattern`.

    ValueError if `--pattern` is missing, or if it is given for a file that has its own pattern.
    """
    try:
        return Tokenizer.load(path, pattern=pattern)
    except PatternNeededError:
        names = ", ".join(PATTERN_NAMES)
        raise ValueError(f"{path} does not say how text is split: add --pattern with one of {names}") from None


def load_compared(specs: Sequence[str]) -> dict[str, Tokenizer]:
    """The tokenizers that --compare PATH or NAME=PATH means, by their names."""
    found: dict[str, Tokenizer] = {}
    for spec in specs:
        name, _, path = spec.rpartition("=")
        path = Path(path)
        name = name or path.stem.removesuffix("_base")
        if name in found:
            raise ValueError(f"--compare {spec}: another is called {name} too; write it as NAME={path}")
        try:
            found[name] = Tokenizer.load(path)
        except PatternNeededError:
            pattern = PATTERN_NAMES.get(name.removesuffix("_base"))
            if pattern is None:
                raise ValueError(
                    f"--compare {spec}: {path} does not say how text is split; name its pattern, as in cl100k={path}"
                ) from None
            found[name] = Tokenizer.load(path, pattern=pattern)
    return found

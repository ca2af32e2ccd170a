"""Tokenizers named on a command line."""

from collections.abc import Sequence
from pathlib import Path

from pipelines.cli.verbs import refuse_uri
from tokenizer import PATTERN_NAMES, PatternNeededError, Tokenizer


def load_tokenizer(path: Path, pattern: str | None = None) -> Tokenizer:
    """Return the tokenizer at a path with the split pattern of the argument `pattern`.

    Raises ValueError if the file has no pattern and `pattern` is missing, or if both give one.
    """
    try:
        return Tokenizer.load(path, pattern=pattern)
    except PatternNeededError as error:
        raise ValueError(str(error).replace("pass pattern=", "add `pattern`")) from None


def load_compared(specs: Sequence[str]) -> dict[str, Tokenizer]:
    """Return the tokenizers of `compare` by name: each PATH or NAME=PATH. PATH alone is named after its file.

    An existing PATH may have an equals sign. A file without a split pattern gets the pattern with the same name as the
    tokenizer. Raises ValueError if there is no such pattern, or if two tokenizers have the same name.
    """
    tokenizers: dict[str, Tokenizer] = {}
    for spec in specs:
        name, _, file = spec.partition("=") if "=" in spec and not Path(spec).exists() else ("", "", spec)
        path = Path(file)
        refuse_uri("`compare`", path)
        name = name or path.stem.removesuffix("_base")
        if name in tokenizers:
            raise ValueError(f"`compare='{spec}'`: another tokenizer has the name {name}; write it as NAME={path}")
        try:
            tokenizers[name] = Tokenizer.load(path)
        except PatternNeededError:
            pattern = PATTERN_NAMES.get(name.removesuffix("_base"))
            if pattern is None:
                raise ValueError(
                    f"`compare='{spec}'`: {path} has no split pattern; give the name of one, as in cl100k={path}"
                ) from None
            tokenizers[name] = Tokenizer.load(path, pattern=pattern)
    return tokenizers

"""`bytelm tokenize`: the tokens of a text."""

import json
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from pipelines.arguments import parse
from pipelines.display import console, say
from tokenizer import Tokenizer

COLOURS = (
    "black on bright_cyan",
    "black on bright_yellow",
    "black on bright_green",
    "black on bright_magenta",
)


def tokenize(
    text: Annotated[str | None, tyro.conf.Positional] = None,
    *,
    tokenizer: Path,
    file: Path | None = None,
    special: bool = False,
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> list[int]:
    """Show the tokens of a text or of a file, in colour, with their ids; return the ids.

    Args:
        text: The text itself.
        tokenizer: Folder of the tokenizer, or its tokenizer.json.
        file: A file to read instead of the text.
        special: Whether spellings of special tokens become those tokens; otherwise they are text.
        as_json: Whether to print the ids as a JSON array and nothing else.
    """
    if (text is None) == (file is None):
        raise ValueError("give either a text or --file, and not both")
    data: str | bytes = file.read_bytes() if file is not None else text or ""
    tok = Tokenizer.load(tokenizer)
    ids = tok.encode(data, allowed_special="all" if special else set(), disallowed_special=())
    if as_json:
        print(json.dumps(ids))
        return ids
    pieces = Text()
    for index, token in enumerate(ids):
        piece = tok.token_bytes(token).decode("utf-8", "backslashreplace").replace("\n", "⏎\n")
        pieces.append(piece, style=COLOURS[index % len(COLOURS)])
    console.print(pieces)
    say(" ".join(map(str, ids)))
    size = len(data if isinstance(data, bytes) else data.encode())
    say(f"{len(ids):,} tokens, {size:,} bytes, {size / max(1, len(ids)):.2f} bytes per token")
    return ids


def main(arguments: list[str]) -> None:
    parse(tokenize, arguments, "tokenize")

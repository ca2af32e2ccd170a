"""`bytelm tokenize`: the tokens of a text or a file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pipelines.cli.arguments import AsJson, TokenizerPath, TokenizerPattern
from pipelines.cli.display import answer, counted, results, write
from pipelines.cli.escapes import visible
from pipelines.cli.named_tokenizers import load_tokenizer
from pipelines.cli.parsing import parse
from pipelines.cli.process import read_standard_input
from pipelines.cli.verbs import verb
from tokenizer import Tokenizer

COLOURS = (
    "black on bright_cyan",
    "black on bright_yellow",
    "black on bright_green",
    "black on bright_magenta",
)
SHORT_TEXT = 1000  # bytes; shorter texts are encoded without loading numba
LINE_END = visible(b"\n")
SPECIAL = "bold white on red"
# Text, id and style of a token.
Cell = tuple[str, str, str]


@verb
def tokenize(
    text: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT]")] = None,
    *,
    tokenizer: TokenizerPath,
    file: Path | None = None,
    pattern: TokenizerPattern = None,
    special: bool = False,
    limit: int = 200,
    as_json: AsJson = False,
) -> np.ndarray:
    """Print the tokens of a text or a file in colour, each above its id; return the ids, uint32.

    White space is printed as · (space), ⏎, ␍ and → (tab), and incomplete characters as \\xNN.

    Args:
        text: Text to tokenize; - reads standard input.
        file: File to read instead of a text; - reads standard input.
        special: Encode the spellings of special tokens as these tokens, not as text.
        limit: Maximum number of tokens to print; 0 prints all.
        as_json: Print all ids as a JSON array, and nothing else.
    """
    if (text is None) == (file is None):
        raise ValueError("give either a text or --file")
    if limit < 0:
        raise ValueError(f"--limit is {limit}, but must not be negative")
    tok = load_tokenizer(tokenizer, pattern)
    if special and not tok.special_tokens:
        raise ValueError(f"{tokenizer} has no special tokens: leave out --special")
    if text == "-" or file == Path("-"):
        data = read_standard_input()
    else:
        data = file.read_bytes() if file else (text or "").encode("utf-8", "surrogateescape")
    encode = tok.encode if len(data) <= SHORT_TEXT else tok.encode_to_numpy
    ids = np.array(encode(data, allowed_special="all" if special else set(), disallowed_special=()), dtype=np.uint32)
    if as_json:
        write(json.dumps(ids.tolist()))
        return ids
    shown = ids[: limit or None].tolist()
    for row in _rows([_cell(tok, token, i) for i, token in enumerate(shown)], results.width):
        pieces, below = Text(), Text(style="dim")
        for piece, token, style in row:
            width = max(cell_len(piece), len(token))
            pieces.append(piece, style=style).append(" " * (width - cell_len(piece) + 1))
            below.append(token.ljust(width + 1))
        for line in (pieces, below):
            line.rstrip()
            results.print(line, no_wrap=True, crop=False, overflow="ignore")
        answer("")
    if left := len(ids) - len(shown):
        answer(f"... and {counted(left, 'more token')}; --limit 0 shows all")
    characters = len(data.decode("utf-8", "replace"))
    per_token = f"{len(data) / max(1, len(ids)):.2f} bytes per token"
    counts = counted(len(ids), "token"), counted(len(data), "byte"), counted(characters, "character")
    answer(f"{', '.join(counts)}; {per_token}")
    return ids


def _cell(tok: Tokenizer, token: int, index: int) -> Cell:
    special = not tok.token_byte_lengths[token]
    return visible(tok.token_bytes(token)), str(token), SPECIAL if special else COLOURS[index % len(COLOURS)]


def _rows(cells: list[Cell], width: int) -> Iterator[list[Cell]]:
    """Yield rows of cells that fit in `width` columns; a row also ends with a line of the text."""
    row: list[Cell] = []
    used = 0
    for piece, token, style in cells:
        if cell_len(piece) > width:
            piece = set_cell_size(piece, width - 1).rstrip() + "…"
        needed = max(cell_len(piece), len(token)) + 1
        if row and used + needed - 1 > width:
            yield row
            row, used = [], 0
        row.append((piece, token, style))
        used += needed
        if piece.endswith(LINE_END):
            yield row
            row, used = [], 0
    if row:
        yield row


def main(arguments: list[str]) -> None:
    parse(tokenize, arguments, "tokenize")

"""Tokens of a text in colour, each above its id."""

from collections.abc import Iterator

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pipelines.cli.console import results
from pipelines.cli.display import answer, count_text
from pipelines.cli.escapes import visible
from tokenizer import Tokenizer

COLOURS = (
    "black on bright_cyan",
    "black on bright_yellow",
    "black on bright_green",
    "black on bright_magenta",
)
LINE_END = visible(b"\n")
SPECIAL = "bold white on red"
# Text, id and style of a token.
Cell = tuple[str, str, str]


def print_tokens(tok: Tokenizer, ids: np.ndarray, limit: int) -> None:
    """Print the first `limit` of `ids`, uint32, as rows of tokens that fit the terminal; 0 prints all."""
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
        answer(f"... and {count_text(left, 'more token')}; `limit=0` shows all")


def _cell(tok: Tokenizer, token: int, index: int) -> Cell:
    special = tok.vocabulary.tokens[token] is None
    return visible(tok.token_bytes(token)), str(token), SPECIAL if special else COLOURS[index % len(COLOURS)]


def _rows(cells: list[Cell], width: int) -> Iterator[list[Cell]]:
    """Yield rows of cells that fit in `width` columns. A line end of the text also ends a row."""
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

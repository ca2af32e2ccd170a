"""Print scores on a terminal: the text with colours and bars for surprisal, the most surprising tokens, the totals."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from lm.metrics.units import bits
from pipelines.cli.console import results
from pipelines.cli.display import answer, count_text, perplexity_text, table
from pipelines.cli.escapes import safe, visible
from pipelines.scoring.choices import ChoiceScores
from pipelines.scoring.texts import TextScore
from pipelines.scoring.word_probabilities import Words
from tokenizer import Tokenizer

LEVELS = (1.0, 2.0, 4.0, 8.0, 12.0)  # bits; a token's level is the number of thresholds that its surprisal reaches
BARS = " ▁▂▄▆█"
STYLES = (
    "",
    "#000000 on #fff2b2",
    "#000000 on #fed976",
    "#000000 on #fd8d3c",
    "#ffffff on #c51b1d",
    "#ffffff on #800026",
)
UNSCORED_BAR, UNSCORED_STYLE = "?", "dim"
LIKELIEST_WIDTH = 20  # columns for the likeliest tokens
MOST_SURPRISING = 10
CONTEXT = 24  # columns of the text before a surprising token
LINE_END = visible(b"\n")
LOST = (
    "The tokenizer loses text, such as case or unknown words: the byte length of a token is unknown, and the score is "
    "not a code length."
)


class Cell(NamedTuple):
    """A stretch of the text with its surprisal, NaN if it was not scored."""

    text: str
    bits: float

    @property
    def level(self) -> int:
        """Return the index of the cell's colour and bar; -1 if the cell was not scored."""
        return -1 if np.isnan(self.bits) else sum(self.bits >= level for level in LEVELS)


def show_text(score: TextScore, tok: Tokenizer, limit: int) -> None:
    """Print the score of a text, with its first `limit` tokens or words (0: all)."""
    cells = _cells(score)
    shown = cells[: limit or None]
    for row in _rows(shown, results.width):
        _print_row(row)
    if left := len(cells) - len(shown):
        answer(f"... and {count_text(left, 'word' if score.words else 'token')} more; `limit=0` shows all")
    _print_legend(unscored=any(cell.level < 0 for cell in shown))
    answer("")
    if score.words is None:
        _most_surprising_tokens(score, tok)
    else:
        _most_surprising_words(score, cells)
    answer("")
    size = "" if score.bytes is None else f", {count_text(score.bytes, 'byte')}"
    answer(f"{count_text(score.tokens, 'token')}{size}; {_reading(score, tok)}")
    answer(_totals(score))
    if score.words is not None:
        answer(_word_totals(score, score.words))


def show_choices(scores: ChoiceScores) -> None:
    """Print choices, the likeliest first, with their rank by each measure."""
    measures = (scores.log_probabilities, scores.per_token, scores.per_byte)
    orders = [(-values).argsort(kind="stable") for values in measures]
    places = [order.argsort() + 1 for order in orders]
    rows = [
        [
            visible(scores.choices[i].encode()),
            *(f"{values[i]:.4f} ({place[i]})" for values, place in zip(measures, places, strict=True)),
            f"{scores.tokens[i]:,}",
            f"{scores.bytes[i]:,}",
            "yes" if scores.greedy[i] else "no",
        ]
        for i in orders[0].tolist()
    ]
    table(("choice", "log p (rank)", "per token", "per byte", "tokens", "bytes", "greedy"), rows)
    answer("log p in nats; greedy: every token of the choice is the likeliest")


def _cells(score: TextScore) -> list[Cell]:
    surprisal = score.surprisal_bits
    if score.words is None:
        return [Cell(_show(piece), b) for piece, b in zip(score.pieces, surprisal.tolist(), strict=True)]
    words = score.words
    return [
        Cell(_show(b"".join(score.pieces[start:end])), -nats / np.log(2.0))
        for start, end, nats in zip(words.starts, words.ends, words.log_probabilities.tolist(), strict=True)
    ]


def _show(piece: bytes) -> str:
    """Return the bytes of a token as visible characters, with spaces unchanged."""
    return " ".join(visible(part) for part in piece.split(b" "))


def _rows(cells: Sequence[Cell], width: int) -> Iterator[list[Cell]]:
    """Yield rows of cells that fit in `width` columns; a line end in the text also ends the row."""
    row: list[Cell] = []
    used = 0
    for cell in cells:
        if cell_len(cell.text) > width:
            cell = cell._replace(text=set_cell_size(cell.text, width - 1).rstrip() + "…")
        if row and used + cell_len(cell.text) > width:
            yield row
            row, used = [], 0
        row.append(cell)
        used += cell_len(cell.text)
        if cell.text.endswith(LINE_END):
            yield row
            row, used = [], 0
    if row:
        yield row


def _print_row(row: Sequence[Cell]) -> None:
    """Print a row of the text, and the bars of its cells below."""
    above, below = Text(), Text(style="dim")
    for cell in row:
        above.append(cell.text, style=STYLES[cell.level] if cell.level >= 0 else UNSCORED_STYLE)
        bar = BARS[cell.level] if cell.level >= 0 else UNSCORED_BAR
        below.append(bar * cell_len(cell.text))
    below.rstrip()
    for line in (above, below):
        results.print(line, no_wrap=True, crop=False, overflow="ignore")


def _print_legend(unscored: bool) -> None:
    edges = ("0", *(f"{level:g}" for level in LEVELS))
    names = [f"{low}-{high}" for low, high in pairwise(edges)] + [f"{edges[-1]}+"]
    legend = Text("bits ")
    for name, bar, style in zip(names, BARS, STYLES, strict=True):
        legend.append(" ").append(f" {bar} {name} ", style=style)
    if unscored:
        legend.append("  ").append(f"{UNSCORED_BAR} not scored", style=UNSCORED_STYLE)
    results.print(legend, soft_wrap=True)


def _most_surprising_tokens(score: TextScore, tok: Tokenizer) -> None:
    made = score.predictions
    heads: tuple[str, ...] = ("at", "bits", "entropy", "rank", "p", "after", "token", "likeliest")
    rows: list[tuple[str, ...]] = []
    likeliest = []
    for place in _highest(score.surprisal_bits):
        candidates = zip(made.top_ids[place].tolist(), np.exp(made.top_log_probabilities[place]).tolist(), strict=True)
        rows.append(
            (
                f"{place + 1:,}",
                f"{score.surprisal_bits[place]:.2f}",
                f"{score.entropy_bits[place]:.2f}",
                f"{made.ranks[place]:,}",
                f"{np.exp(made.log_probabilities[place]):.2g}",
                _before(score, place),
                token_label(tok, int(score.ids[place])),
            )
        )
        likeliest.append([f"{token_label(tok, i)} {p:.1%}" for i, p in candidates])
    widths = [2 + max(map(cell_len, column)) for column in zip(heads[:-1], *rows, strict=True)]
    if results.width - sum(widths) < LIKELIEST_WIDTH:  # leave out p, which the bits give too
        place = heads.index("p")
        heads, widths = (*heads[:place], *heads[place + 1 :]), widths[:place] + widths[place + 1 :]
        rows = [(*row[:place], *row[place + 1 :]) for row in rows]
    width = results.width - sum(widths)
    if not made.top_ids.shape[1]:
        table(heads[:-1], rows, text=True)
        return
    table(heads, [(*row, _fitting(words, width)) for row, words in zip(rows, likeliest, strict=True)], text=True)


def _fitting(words: Sequence[str], width: int) -> str:
    """Return as many of the words as fit in `width` columns, but at least one."""
    text, *rest = words
    for word in rest:
        if cell_len(f"{text}  {word}") > width:
            break
        text = f"{text}  {word}"
    return text


def _most_surprising_words(score: TextScore, cells: Sequence[Cell]) -> None:
    words = score.words
    assert words is not None
    rows = [
        (
            f"{place + 1:,}",
            f"{cells[place].bits:.2f}",
            f"{-words.token_sums[place] / np.log(2.0):.2f}",
            f"{words.ends[place] - words.starts[place]:,}",
            _before(score, int(words.starts[place])),
            visible(b"".join(score.pieces[words.starts[place] : words.ends[place]])),
        )
        for place in _highest(np.array([cell.bits for cell in cells]))
    ]
    table(("at", "bits", "sum of tokens", "tokens", "after", "word"), rows, text=True)


def _highest(surprisal: np.ndarray) -> list[int]:
    """Return the indices of the highest values without NaN, the highest first."""
    order = (-surprisal).argsort(kind="stable")[:MOST_SURPRISING]  # NaN comes last
    return [place for place in order.tolist() if not np.isnan(surprisal[place])]


def _before(score: TextScore, place: int) -> str:
    """Return the end of the text before a token."""
    return visible(b"".join(score.pieces[max(0, place - CONTEXT) : place]))[-CONTEXT:]


def token_label(tok: Tokenizer, token: int) -> str:
    """Return a candidate as one line of visible characters."""
    try:
        return visible(tok.token_bytes(token))
    except ValueError:  # the vocabulary of an imported model may be padded beyond its tokenizer
        return f"(unused id {token})"


def _word_totals(score: TextScore, words: Words) -> str:
    """Return the number of words, what their bits include, and their sum beside that of the tokens."""
    each = -words.log_probabilities / np.log(2.0)
    count, known = count_text(len(each), "word"), each[~np.isnan(each)]
    ends = "" if score.measure == "pseudo-log-likelihood" else " and that the word ends"
    line = f"the bits of a word include the white space before it{ends}\n{count}, {known.sum():.4f} bits"
    if len(known) < len(each):
        return f"{line} without the first word, which has a token that is not scored"
    if not words.end:
        return f"{line}, the same total as the tokens"
    end = bits(-words.end)
    return f"{line}: {-score.log_probability_bits:.4f} of the tokens, and {end:.4f} because the last word ends"


def _totals(score: TextScore) -> str:
    name = "log p" if score.measure == "log-likelihood" else "pseudo-log p"
    line = f"{name} {score.log_probability:.4f} nats ({score.log_probability_bits:.4f} bits)"
    if score.tokens:
        shown = perplexity_text(-score.log_probability / score.tokens, ",.4f")
        line += f", {'' if name == 'log p' else 'pseudo-'}perplexity {shown}"
    if score.bits_per_byte is not None:
        line += f", {score.bits_per_byte:.4f} bits per byte"
    if score.bits_per_original_byte is not None:
        line += f", {score.bits_per_original_byte:.4f} bits per byte of the original"
    return line if score.byte_lengths is not None else f"{line}\n{LOST}"


def _reading(score: TextScore, tok: Tokenizer) -> str:
    """Return a description of how the model read the text."""
    if score.window is None:
        return "the target and its end token, given the source"
    if score.measure == "pseudo-log-likelihood":
        line = "each token masked and predicted from all others"
    elif score.before:
        line = f"read after {safe(tok.decode(list(score.before)))}"
    else:
        line = "read without a start token, so the first token is not scored"
    long = len(score.ids) + len(score.before) > score.window
    back = ", the last one moved back to a full context" if score.rolling else ""
    return f"{line}; windows of {score.window:,} tokens, {score.stride:,} apart{back}" if long else line

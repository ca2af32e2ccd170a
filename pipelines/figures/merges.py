"""The merges of byte pair encoding that make the tokens of one word."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pipelines.cli.escapes import visible
from pipelines.figures.canvas import SMALL, escaped
from pipelines.reporting.svg import INK, SERIES, SOFT, new_figure, style
from tokenizer import Tokenizer

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

# Sennrich et al. 2016, algorithm 1
WORDS = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
MERGES = 10
LONGEST = 24  # bytes of a word

Step = tuple[tuple[bytes, bytes] | None, list[bytes]]


def draw_merges(text: str | None = None, run: LoadedRun | None = None) -> Figure:
    """Return the steps from the bytes of a word to its tokens: a row for each merge, in the order of training.

    The tokenizer is that of `run`. Without one it is trained on `text`, by default the words of Sennrich et al. 2016,
    with 10 merges. The word is the pretoken of the text with the most steps. Raises ValueError if there are no steps.
    """
    trained_on = text or " ".join(" ".join([word] * count) for word, count in WORDS.items())
    tok = run.tokenizer if run else Tokenizer.train([trained_on], vocab_size=256 + MERGES, special_tokens=[])
    words = pretokens(tok, trained_on) if tok.kind == "bpe" else []
    steps = max((merge_steps(tok, word[:LONGEST]) for word in words), key=len, default=[])
    if len(steps) < 2:
        raise ValueError(
            "the tokenizer has no merges of bytes in the text: give a run with a byte-level BPE tokenizer, or a longer "
            "text"
        )
    with style():
        figure = new_figure(7.4, 0.9 + 0.45 * len(steps))
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set_title("A word, from bytes to tokens (· is a space)", fontsize="medium")
        numbers = {pair: number for number, pair in enumerate(tok.merges, 1)}
        length = sum(map(len, steps[0][1]))
        for row, (pair, tokens) in enumerate(steps):
            label = "bytes"
            if pair is not None:
                label = f"merge {numbers[pair]:,}: " + " + ".join(escaped(visible(part)) for part in pair)
            axes.text(-0.4, row, label, ha="right", va="center", fontsize=SMALL + 2, color=SOFT)
            start = 0
            for token in tokens:
                new = pair is not None and token == b"".join(pair)
                look: dict[str, Any] = {
                    "facecolor": SERIES[5] if new else "none",
                    "linewidth": 2.2 if new else 0.8,
                    "edgecolor": INK,
                }
                axes.add_patch(Rectangle((start + 0.04, row - 0.36), len(token) - 0.08, 0.72, **look))
                name = escaped(visible(token))
                axes.text(start + len(token) / 2, row, name, ha="center", va="center", fontsize=SMALL + 2)
                start += len(token)
        axes.set_xlim(-0.45 * length, length)
        axes.set_ylim(len(steps) - 0.4, -0.6)
    return figure


def pretokens(tok: Tokenizer, text: str) -> list[bytes]:
    """Return the distinct pretokens of a text, in order: what the tokenizer merges after normalizing and splitting."""
    vocabulary, data = tok.vocabulary, text.encode()
    if vocabulary.normalizer is not None:
        data = vocabulary.normalizer.apply(data)
    return list(dict.fromkeys(vocabulary.pattern.pretokens(data)))


def merge_steps(tok: Tokenizer, word: bytes) -> list[Step]:
    """Return the tokens of `word` before the first merge and after each one, with the pair that it merged.

    A step merges all occurrences of the pair that training merged first.
    """
    ranks = {pair: rank for rank, pair in enumerate(tok.merges)}
    tokens = [bytes([byte]) for byte in word]
    steps: list[Step] = [(None, tokens)]
    while found := [pair for pair in pairwise(tokens) if pair in ranks]:
        pair = min(found, key=ranks.__getitem__)
        tokens = _merged(tokens, pair)
        steps.append((pair, tokens))
    return steps


def _merged(tokens: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
    merged: list[bytes] = []
    rest = iter(tokens)
    for token in rest:
        if merged and (merged[-1], token) == pair:
            merged[-1] += token
        else:
            merged.append(token)
    return merged

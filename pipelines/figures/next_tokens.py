"""P(next | context), one token after another."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.cli.escapes import visible
from pipelines.figures.canvas import SMALL, escaped, probability, show_bars
from pipelines.reporting.svg import new_figure, style

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

TEXT = "the cat sat on the mat while the dog sat by the door and the cat saw a rat on a mat"
STEPS = 6
SHOWN = 4  # tokens of a step
LONGEST = 16  # characters of a context or a token

Token = str | int
"""A word, or the id of a token"""


class Step(NamedTuple):
    """A prediction: probabilities by token, the token that follows in the text, and the labels of the tokens."""

    context: str
    probabilities: dict[Token, float]
    target: Token
    labels: dict[Token, str]


def draw_next_tokens(text: str | None = None, run: LoadedRun | None = None) -> Figure:
    """Return bars of the most likely next tokens for each of the first 6 predictions in a text.

    Without a run, the model counts which word follows which in the text. The line at the bottom
    multiplies the probabilities of the tokens that follow.
    """
    steps = (counted_steps(text or TEXT) if run is None else predicted_steps(run, text or TEXT))[:STEPS]
    if not steps:
        raise ValueError("`text` has fewer than two words: give a longer text")
    columns = min(3, len(steps))
    rows = -(-len(steps) // columns)
    with style():
        figure = new_figure(3.2 * columns, 0.8 + 2.3 * rows)
        grid = [*figure.subplots(rows, columns, squeeze=False).flat]
        for axes in grid:
            axes.set_axis_off()
        for axes, step in zip(grid, steps, strict=False):
            axes.set_axis_on()
            _show_step(axes, step)
        figure.supxlabel(_product([step.probabilities[step.target] for step in steps]), fontsize=SMALL + 1)
    return figure


def counted_steps(text: str) -> list[Step]:
    """Return the predictions of a bigram model: counts of the words after the last word, divided by their sum."""
    words = text.split()
    after: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for word, following in pairwise(words):
        after[word][following] += 1
    steps = []
    for position in range(1, len(words)):
        counts = after[words[position - 1]]
        shares: dict[Token, float] = {word: count / counts.total() for word, count in counts.most_common()}
        steps.append(Step(" ".join(words[:position]), shares, words[position], {word: word for word in counts}))
    return steps


def predicted_steps(run: LoadedRun, text: str) -> list[Step]:
    """Return the predictions of a decoder. Raises ValueError for another architecture."""
    if run.config.model.architecture != "decoder":
        raise ValueError(f"{run.path} is not a decoder, but P(next | context) needs one: give another run")
    from pipelines.inspection.words import Words

    words = Words(run)
    ids = run.ids(text)[: STEPS + 1]
    start = len(run.around.before)
    probabilities = run.logits(text).double().softmax(dim=-1)
    steps = []
    for position in range(1, len(ids)):
        row = probabilities[position - 1]
        likely = row.topk(min(SHOWN, len(row))).indices.tolist()
        tokens = list(dict.fromkeys([*likely, ids[position]]))
        labels: dict[Token, str] = dict(zip(tokens, words.of(tokens), strict=True))
        context = visible(run.tokenizer.decode_bytes(ids[start:position])) or "start of text"
        steps.append(Step(context, {token: row[token].item() for token in tokens}, ids[position], labels))
    return steps


def _show_step(axes: Axes, step: Step) -> None:
    tokens = list(step.probabilities)[:SHOWN]
    if step.target not in tokens:
        tokens[-1] = step.target
    values = [step.probabilities[token] for token in tokens]
    names = [step.labels[token] for token in tokens]
    shown = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]
    labels = [
        probability(value) + (" ←" if token == step.target else "") for token, value in zip(tokens, values, strict=True)
    ]
    show_bars(axes, shown, values, labels, tokens.index(step.target), limit=1.0)
    axes.set_ylim(SHOWN - 0.5, -0.5)
    context = step.context if len(step.context) <= LONGEST else f"…{step.context[1 - LONGEST :]}"
    axes.set_title(f"P(next | {escaped(context)})", fontsize=SMALL + 2)


def _product(probabilities: list[float]) -> str:
    bits = -sum(math.log2(p) for p in probabilities)
    factors = " × ".join(map(probability, probabilities))
    mean = bits / len(probabilities)
    return f"P = {factors} = {math.prod(probabilities):.2g}\n−log₂ P = {bits:.2f} bits, {mean:.2f} per token"

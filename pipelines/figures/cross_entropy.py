"""Cross-entropy as entropy plus divergence, over the same positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from corpora.synthetic import MarkovSource
from lm.text_statistics.distributions import entropy, kl
from pipelines.evaluation.measurements.source import SourceNumbers
from pipelines.evaluation.results import Evaluation
from pipelines.figures.canvas import SMALL
from pipelines.reporting.svg import INK, SERIES, new_figure, style

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

TRAINED_ON = (50, 200, 1000)  # symbols
POSITIONS = 2000


class Parts(NamedTuple):
    """Means over the same positions, in bits per token."""

    name: str
    entropy: float
    divergence: float
    loss: float
    """-log2 q of the tokens that follow: the cross-entropy of this text"""


def draw_cross_entropy(run: LoadedRun | None = None) -> Figure:
    """Return stacked bars: the entropy of the source and the divergence of a model from it.

    Their sum is the expected cross-entropy; a line marks the loss on the text at the same positions. `bytelm evaluate`
    has evaluated `run` on a synthetic corpus. Without a run, bigram models count the first 50, 200 and 1,000 symbols
    of a Markov chain and predict 2,000 later ones.
    """
    rows = counted_parts() if run is None else [measured_parts(run)]
    with style():
        figure = new_figure(7.4, 1.7 + 0.75 * len(rows))
        axes = figure.subplots()
        names, entropies, divergences, losses = zip(*rows, strict=True)
        places = range(len(rows))
        look: dict[str, Any] = {"height": 0.55, "edgecolor": INK, "linewidth": 0.8}
        first = axes.barh(places, entropies, color=SERIES[5], label="entropy of the source", **look)
        axes.barh(places, divergences, left=entropies, color=SERIES[4], hatch="///", label="divergence", **look)
        axes.bar_label(first, [f"{value:.4f}" for value in entropies], label_type="center", fontsize=SMALL + 1)
        longest = max(max(row.entropy + row.divergence, row.loss) for row in rows)
        for place, (_, h, d, loss) in zip(places, rows, strict=True):
            end, total = max(h + d, loss) + 0.02 * longest, round(h, 4) + round(d, 4)
            axes.text(end, place, f"+ {d:.4f} = {total:.4f}\nloss {loss:.4f}", va="center", fontsize=SMALL + 1)
        axes.plot(losses, places, "|", color=INK, markersize=26, markeredgewidth=2, label="loss on this text")
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.35 * longest)
        axes.set_xlabel("bits per token")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=SMALL, markerscale=0.4)
    return figure


def counted_parts() -> list[Parts]:
    """Return the parts of bigram models that count ever more symbols of one chain; each count starts at 1."""
    source = MarkovSource(order=1, symbols=8, seed=0)
    longest = max(TRAINED_ON)
    symbols = source.sample(longest + POSITIONS, np.random.default_rng(0))
    contexts, targets = symbols[longest - 1 : -1], symbols[longest:]
    p = source.conditional(contexts[:, None])
    rows = []
    for count in TRAINED_ON:
        counts = np.ones((source.symbols, source.symbols))
        np.add.at(counts, (symbols[: count - 1], symbols[1:count]), 1)
        q = (counts / counts.sum(axis=1, keepdims=True))[contexts]
        h, d = float(np.mean([*map(entropy, p)])), float(np.mean([*map(kl, p, q)]))
        loss = float(-np.log2(q[np.arange(len(q)), targets]).mean())
        rows.append(Parts(f"{count:,} symbols", h, d, loss))
    return rows


def measured_parts(run: LoadedRun) -> Parts:
    """Return what `bytelm evaluate` measured. Raises ValueError if it measured no divergence from a source."""
    evaluation = Evaluation.read(run.run.results)
    for split in evaluation.all if evaluation else ():
        numbers = split.find(SourceNumbers)
        if numbers and numbers.true_entropy_bits and numbers.kl_true_bits and numbers.true_cross_entropy_bits:
            parts = numbers.true_entropy_bits, numbers.kl_true_bits, numbers.true_cross_entropy_bits
            return Parts(f"{run.path.name}, {split.split}", *parts)
    raise ValueError(
        f"{run.path} has no measured divergence from a synthetic source: run bytelm evaluate on a decoder "
        "that was trained on a synthetic corpus with a tokenizer without merges"
    )

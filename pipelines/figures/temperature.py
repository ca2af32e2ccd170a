"""Softmax of the same logits at several temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lm.decoding.sampling import apply_temperature
from lm.text_statistics.distributions import entropy
from pipelines.figures.canvas import SMALL, probability, show_bars
from pipelines.inspection.words import Words
from pipelines.reporting.svg import new_figure, style

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

LOGITS = {"mat": 3.0, "sofa": 2.0, "roof": 1.5, "moon": 0.0, "idea": -1.0}
TEMPERATURES = (0.5, 1.0, 2.0)
SHOWN = 6
OTHERS = "all others"


def draw_temperatures(
    text: str | None = None, run: LoadedRun | None = None, temperatures: Sequence[float] = TEMPERATURES
) -> Figure:
    """Return bars of the softmax of logits / T for each temperature T, with the entropy in bits.

    The logits are those of `run` for the token after `text`; without a run, five example values. Tokens beyond the six
    likeliest share one bar. The entropy is that of all tokens. Raises ValueError for a run that is not a decoder.
    """
    if run is None:
        names, logits = list(LOGITS), torch.tensor(list(LOGITS.values()))
    else:
        if run.config.model.architecture != "decoder":
            raise ValueError(f"{run.path} is not a decoder, but the next token needs one: give another run")
        logits = run.logits(text or "the")[-1].cpu()
        names = list(Words(run).of(logits.topk(min(SHOWN, len(logits))).indices))
    with style():
        figure = new_figure(3.1 * len(temperatures), 1.0 + 0.36 * (len(names) + 1))
        for axes, temperature in zip(
            figure.subplots(1, len(temperatures), squeeze=False).flat, temperatures, strict=True
        ):
            values, bits = probabilities(logits, temperature, len(names))
            more = [OTHERS] * (len(values) - len(names))
            show_bars(axes, [*names, *more], values, [probability(value) for value in values], limit=1.0)
            axes.set_title(f"T = {temperature:g}, entropy {bits:.2f} bits", fontsize=SMALL + 2)
    return figure


def probabilities(logits: Tensor, temperature: float, shown: int) -> tuple[list[float], float]:
    """Return the probabilities of the `shown` likeliest tokens, then of all others if there are any, and the entropy.

    The entropy is in bits.
    """
    all_of_them = apply_temperature(logits.double(), temperature).softmax(dim=-1)
    likely = logits.topk(shown).indices
    others = all_of_them.index_fill(0, likely, 0.0).sum().item()
    values = all_of_them[likely].tolist() + ([] if shown == len(logits) else [others])
    return values, entropy((all_of_them / all_of_them.sum()).numpy())

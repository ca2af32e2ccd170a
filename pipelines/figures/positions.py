"""Sinusoidal codes of positions as a heat map."""

from __future__ import annotations

from matplotlib.figure import Figure

from lm.positions import sinusoidal_table
from pipelines.reporting.svg import new_figure, style


def draw_positions(positions: int = 64, width: int = 64) -> Figure:
    """Return the table of Vaswani et al. 2017, 3.5: a row for each position, a column for each feature.

    Even columns are sines and odd ones cosines.
    """
    with style():
        figure = new_figure(6.4, 5.6)
        axes = figure.subplots()
        table = sinusoidal_table(positions, width).numpy()
        # Orange and blue differ for people with any colour vision, and the middle is pale.
        image = axes.imshow(table, cmap="PuOr", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_xlabel("feature (even: sine, odd: cosine)")
        axes.set_ylabel("position")
        axes.set_title(f"Sinusoidal codes of {positions} positions, width {width}", fontsize="medium")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, ticks=[-1, -0.5, 0, 0.5, 1], label="value")
    return figure

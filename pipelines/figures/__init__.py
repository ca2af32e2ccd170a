"""Textbook figures: each is a function that returns a matplotlib figure.

A figure is a module here and an entry of `FIGURES`. A module is imported when its figure is drawn.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Entry(NamedTuple):
    """A figure, by the module and the name of its function."""

    module: str
    function: str
    caption: str

    def draw(self, **given: Any) -> Figure:
        """Return the figure. Arguments that its function does not take are ignored."""
        function = getattr(import_module(f"pipelines.figures.{self.module}"), self.function)
        taken = inspect.signature(function).parameters
        figure: Figure = function(**{name: value for name, value in given.items() if name in taken})
        return figure


FIGURES = {
    "positions": Entry(
        "positions",
        "draw_positions",
        "Sinusoidal codes: a row is the vector of a position. Later columns have longer wavelengths.",
    ),
    "masks": Entry(
        "masks", "draw_masks", "Masks of self-attention: a query (row) sees the keys (columns) that are coloured."
    ),
    "attention": Entry(
        "attention",
        "draw_attention",
        "One step of causal attention of one head in numbers: scores, weights, and the weighted mean of the values.",
    ),
    "decoder": Entry(
        "architecture", "draw_decoder", "A decoder with pre-norm and post-norm, and the shape after each stage."
    ),
    "encoder": Entry(
        "architecture", "draw_encoder", "An encoder with pre-norm and post-norm, and the shape after each stage."
    ),
    "encoder-decoder": Entry(
        "architecture",
        "draw_encoder_decoder",
        "An encoder-decoder with pre-norm and post-norm, and the shape after each stage.",
    ),
    "parameters": Entry("parameters", "draw_parameters", "Parameters of a model by component."),
    "merges": Entry("merges", "draw_merges", "The merges of byte pair encoding that make the tokens of one word."),
    "next-tokens": Entry(
        "next_tokens",
        "draw_next_tokens",
        "P(next | context), one token after another. The arrow points to the token that follows.",
    ),
    "cross-entropy": Entry(
        "cross_entropy",
        "draw_cross_entropy",
        "Cross-entropy is entropy plus divergence: means over the same positions.",
    ),
    "temperature": Entry(
        "temperature", "draw_temperatures", "Softmax of the same logits at several temperatures, with its entropy."
    ),
}

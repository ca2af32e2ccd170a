"""The shares of a model's parameters."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from lm.config import ModelConfig
from lm.config_costs import parameter_table
from lm.presets import PRESETS
from pipelines.figures.canvas import show_bars
from pipelines.reporting.svg import new_figure, style
from pipelines.training.model_costs import ASSUMED_VOCABULARY, shares


def draw_parameters(model: ModelConfig = PRESETS["gpt2"]) -> Figure:
    """Return bars of the parameters by component, as `bytelm params` counts them.

    A model without a vocabulary size gets 8,192 entries. A tied output matrix is part of the embedding.
    """
    if not model.vocab_size:
        model = replace(model, vocab_size=ASSUMED_VOCABULARY)
    table = parameter_table(model)
    total, counts = table["total"], {name: count for name, count in table.items() if count and name != "total"}
    percentages = shares(table)
    with style():
        figure = new_figure(6.4, 1.2 + 0.42 * len(counts))
        axes = figure.subplots()
        labels = [f"{count:,} ({percentages[name]})" for name, count in counts.items()]
        show_bars(axes, list(counts), [count / total for count in counts.values()], labels)
        axes.set_xlim(0, 1.6 * max(counts.values()) / total)
        head = "head tied to the embedding" if model.tied_head else "untied head"
        axes.set_title(f"{total:,} parameters\n{model.vocab_size:,} entries, {head}", fontsize="medium", loc="left")
    return figure

"""Pictures of attention masks: which keys the query of each row sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from lm.attention.patterns import attention_pattern
from lm.config import ModelConfig
from lm.masks import Mask
from pipelines.reporting.svg import SERIES, new_figure, style

POSITIONS = 32
COLUMNS = 4
MASKS: Mapping[str, Mapping[str, Any]] = {
    "causal": {},
    "full": {"architecture": "encoder"},
    "window 8": {"window": 8},
    "dilated 4": {"attention_pattern": "dilated", "pattern_size": 4},
    "strided 6": {"attention_pattern": "strided", "pattern_size": 6},
    "fixed 6, 1": {"attention_pattern": "fixed", "pattern_size": 6},
    "global 5, 2": {"attention_pattern": "global", "pattern_size": 5, "pattern_count": 2},
    "random 3, 1": {"attention_pattern": "random", "pattern_size": 3},
}
"""Titles of pictures, and the fields of `ModelConfig` that make their masks."""


def draw_masks(masks: Mapping[str, Mapping[str, Any]] = MASKS, positions: int = POSITIONS) -> Figure:
    """Return the masks of self-attention side by side, with queries as rows and keys as columns.

    `masks`: fields of `ModelConfig` by title. Titles of the default masks name the pattern, `pattern_size` and
    `pattern_count`. Keys that a query sees are coloured.
    """
    rows = -(-len(masks) // COLUMNS)
    with style():
        figure = new_figure(2.0 * COLUMNS, 2.3 * rows)
        grid = [*figure.subplots(rows, COLUMNS, squeeze=False).flat]
        for axes in grid:
            axes.set_axis_off()
        for axes, (title, fields) in zip(grid, masks.items(), strict=False):
            axes.set_axis_on()
            axes.imshow(visible(positions, fields), cmap=ListedColormap(["#ffffff", SERIES[0]]), vmin=0, vmax=1)
            axes.set_title(title, fontsize="medium")
            axes.set_xticks([0, positions - 1], ["0", f"{positions - 1}"])
            axes.set_yticks([0, positions - 1], ["0", f"{positions - 1}"])
            axes.grid(visible=False)
        figure.supxlabel("key")
        figure.supylabel("query")
    return figure


def visible(positions: int, fields: Mapping[str, Any]) -> torch.Tensor:
    """Return bool (positions, positions), True where the query of the row sees the key of the column."""
    config = ModelConfig(context_length=positions, **fields)
    mask = Mask(causal=config.causal, window=config.window, pattern=attention_pattern(config))
    seen = mask.visible(positions, positions, torch.device("cpu"))
    return torch.ones(positions, positions, dtype=torch.bool) if seen is None else seen[0, 0]

"""The architecture of a model: its stages from token ids to logits, and the shape after each stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

from lm.config import ModelConfig
from lm.config_costs import StackShape, stacks
from lm.norm_places import NormPlaces
from lm.position_checks import IN_SCORES
from lm.presets import PRESETS
from pipelines.figures.canvas import SMALL
from pipelines.reporting.svg import INK, PALE, SERIES, SOFT, new_figure, style
from pipelines.training.model_costs import ASSUMED_VOCABULARY

COLOURS = {"embedding": SERIES[4], "norm": PALE, "mixer": SERIES[0], "cross": SERIES[3], "mlp": SERIES[2], "head": INK}
# Sizes in inches.
BOX, COLUMN, LANE, SUM = 2.15, 4.2, 0.45, 0.26  # widths: a box, a stack, residual connections, a sum
LINE, GAP, PAD = 0.19, 0.24, 0.2  # heights of a line of text, between boxes, and inside a box


class Stage(NamedTuple):
    """A stage of the model. A stage of kind "add" is the sum of a residual connection."""

    kind: str
    name: str
    shape: str
    detail: str = ""
    """What the stage has inside: heads and weights, hidden units"""
    opens: bool = False
    """Whether a residual connection begins before this stage"""
    in_block: bool = False

    @property
    def height(self) -> float:
        return SUM if self.kind == "add" else PAD + LINE * (1 + self.detail.count("\n") + bool(self.detail))


def draw_decoder(model: ModelConfig = PRESETS["gpt2"]) -> Figure:
    """Return the stages of a decoder, with pre-norm and post-norm."""
    return _draw(model, "decoder")


def draw_encoder(model: ModelConfig = PRESETS["bert-base"]) -> Figure:
    """Return the stages of an encoder, with pre-norm and post-norm."""
    return _draw(model, "encoder")


def draw_encoder_decoder(model: ModelConfig = PRESETS["transformer-base"]) -> Figure:
    """Return the stages of an encoder-decoder, with pre-norm and post-norm."""
    return _draw(model, "encoder-decoder")


def stages(model: ModelConfig, stack: StackShape) -> list[Stage]:
    """Return the stages of one stack of a model and, if it is the last one, of the head.

    B sequences of T tokens; an encoder-decoder's source has S tokens.
    """
    source = len(stacks(model)) > 1 and not stack.cross
    length = "S" if source else "T"
    hidden = f"(B, {length}, {model.width:,})"
    scaled = model.scaled_embedding or model.positions == "sinusoidal"
    norm = "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"
    found = [
        Stage("embedding", "source ids" if source else "token ids", f"(B, {length})"),
        Stage("embedding", "token embedding", hidden, f"times √{model.width}" if scaled else ""),
    ]
    if model.token_types:
        found.append(Stage("embedding", "+ token types", hidden))
    if model.positions in ("learned", "sinusoidal"):
        found.append(Stage("embedding", f"+ {model.positions} positions", hidden))
    if model.embedding_norm:
        found.append(Stage("norm", norm, hidden))
    for kind, name, detail in _sublayers(model, stack, length):
        places = model.norm_places if kind != "mlp" or model.mlp_norm else NormPlaces()
        if places.before:
            normalized = kind == "mixer" and model.embedding_norm
            found.append(Stage("norm", norm, hidden, "not in the first block" * normalized, opens=True, in_block=True))
        found.append(Stage(kind, name, hidden, detail, opens=not places.before, in_block=True))
        if places.branch:
            found.append(Stage("norm", norm, hidden, in_block=True))
        found.append(Stage("add", "+", hidden, in_block=True))
        if places.after:
            found.append(Stage("norm", norm, hidden, in_block=True))
    if model.norm_places.final:
        found.append(Stage("norm", f"final {norm}", hidden))
    return found if source else [*found, *_head(model, hidden)]


def _sublayers(model: ModelConfig, stack: StackShape, length: str) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and detail of the sub-layers of a block."""
    heads = f"{model.heads} heads of {model.head_features}"
    if model.key_value_heads != model.heads:
        heads += f", {model.key_value_heads} of keys"
    if model.attention_only:
        name = "causal self-attention" if stack.causal else "self-attention"
        turned = "\nrotary positions" if model.positions == "rotary" else ""
        biased = "\nbias by distance" if model.positions in IN_SCORES else ""
        yield "mixer", name, f"{heads}{turned}{biased}\nweights (B, {model.heads}, {length}, {length})"
    else:
        first, *others = model.mixer_pattern
        yield "mixer", *(("mixers by layer", "\n".join(model.mixer_pattern)) if others else (first, ""))
    if stack.cross:
        yield "cross", "cross-attention", f"keys from the encoder\nweights (B, {model.heads}, {length}, S)"
    if model.mlp:
        yield "mlp", f"MLP, {model.activation}", f"hidden (B, {length}, {model.hidden_width:,})"


def _head(model: ModelConfig, hidden: str) -> list[Stage]:
    transform = [Stage("head", "linear, activation, norm", hidden)] if model.architecture == "encoder" else []
    tied = "tied to the embedding" if model.tied_head else ""
    return [*transform, Stage("head", "output matrix", f"(B, T, {model.vocab_size:,})", tied)]


def _draw(model: ModelConfig, architecture: str) -> Figure:
    if model.architecture != architecture:
        raise ValueError(f"the architecture of the model is {model.architecture}, not {architecture}")
    assumed = {"residual": "sequential", "embedding_skips": False, "value_embeddings": 0}
    for field, value in assumed.items():
        if getattr(model, field) != value:
            raise ValueError(f"model.{field} is {getattr(model, field)!r}, but the drawing is for {value!r}")
    if not model.vocab_size:
        model = replace(model, vocab_size=ASSUMED_VOCABULARY)
    panels = [replace(model, norm_position=position) for position in ("pre", "post")]
    columns = [[stages(panel, stack) for stack in stacks(panel)] for panel in panels]
    height = max(_height(stack) for panel in columns for stack in panel)
    width = COLUMN * len(stacks(model))
    with style():
        figure = new_figure(len(panels) * width, height + 0.5)
        for axes, panel, drawn in zip(figure.subplots(1, len(panels)), panels, columns, strict=True):
            axes.set_axis_off()
            axes.set_xlim(0, width)
            axes.set_ylim(height, 0)
            axes.set_aspect("equal")
            axes.set_title(f"{panel.norm_position}-norm", fontsize="medium")
            for number, (stack, shape) in enumerate(zip(drawn, stacks(panel), strict=True)):
                _draw_stack(axes, stack, number * COLUMN, shape.layers)
            if len(drawn) > 1:
                _join(axes, *drawn)
    return figure


def _height(stack: list[Stage]) -> float:
    return sum(stage.height + GAP for stage in stack) - GAP + 0.2


def _middle(left: float) -> float:
    """Return the middle of the boxes of a stack from its left edge."""
    return left + LANE + 0.3 + BOX / 2


def _join(axes: Axes, encoder: list[Stage], decoder: list[Stage]) -> None:
    """Draw the arrow from the last stage of the encoder to the cross-attention of the decoder."""
    start, down = _middle(0), _height(encoder) - 0.15
    index = next(number for number, stage in enumerate(decoder) if stage.kind == "cross")
    cross = 0.05 + sum(stage.height + GAP for stage in decoder[:index]) + decoder[index].height / 2
    look: dict[str, Any] = {"color": COLOURS["cross"], "linewidth": 1.4}
    axes.plot([start, start, COLUMN, COLUMN], [down, down + GAP, down + GAP, cross], **look)
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, **look}
    axes.annotate("", (_middle(COLUMN) - BOX / 2, cross), (COLUMN, cross), arrowprops=arrow)


def _draw_stack(axes: Axes, stack: list[Stage], left: float, layers: int) -> None:
    """Draw a stack from top to bottom. `left` is its left edge."""
    middle, top = _middle(left), 0.05
    opened, block = 0.0, [0.0, 0.0]
    for number, stage in enumerate(stack):
        if number:
            arrow = {"arrowstyle": "-|>", "color": SOFT, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (middle, top), (middle, top - GAP), arrowprops=arrow)
        if stage.in_block and not stack[number - 1].in_block:
            block[0] = top - GAP * 0.7
        if stage.opens:
            opened = top - GAP / 2
        _draw_stage(axes, stage, middle, top)
        if stage.kind == "add":
            lane, y = middle - BOX / 2 - LANE / 2, top + stage.height / 2
            axes.plot([middle, lane, lane, middle - SUM / 2], [opened, opened, y, y], color=SOFT, linewidth=1.0)
        axes.text(middle + BOX / 2 + 0.2, top + stage.height / 2, stage.shape, va="center", fontsize=SMALL, color=INK)
        top += stage.height + GAP
        if stage.in_block:
            block[1] = top - GAP * 0.75
    corner, size = (left + 0.22, block[0]), (LANE + BOX + 0.2, block[1] - block[0])
    axes.add_patch(
        FancyBboxPatch(
            corner, *size, boxstyle="round,pad=0,rounding_size=0.1", fill=False, edgecolor=SOFT, linestyle="--"
        )
    )
    axes.text(left + 0.25, block[0] - 0.05, f"{layers} ×", va="bottom", fontsize=SMALL + 1)


def _draw_stage(axes: Axes, stage: Stage, middle: float, top: float) -> None:
    y = top + stage.height / 2
    look: dict[str, Any] = {"facecolor": "white", "edgecolor": COLOURS.get(stage.kind, INK), "linewidth": 1.8}
    if stage.kind == "add":
        axes.add_patch(Circle((middle, y), SUM / 2, **look))
    else:
        corner, rounded = (middle - BOX / 2, top), "round,pad=0,rounding_size=0.06"
        axes.add_patch(FancyBboxPatch(corner, BOX, stage.height, boxstyle=rounded, **look))
    lines = stage.detail.count("\n") + bool(stage.detail)
    axes.text(middle, y - LINE * lines / 2, stage.name, ha="center", va="center", fontsize=SMALL + 1.5)
    if stage.detail:
        axes.text(middle, y + LINE / 2, stage.detail, ha="center", va="center", fontsize=SMALL, color=SOFT)

"""The plots of a model's introspection, as SVG."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from pipelines.reporting.introspection import Attention, Circuits, Embedding, Inside, Paths
from pipelines.reporting.svg import PAGE, Plot, draw_svg, new_figure, style
from pipelines.reporting.token_labels import KINDS

# The page shows at most this many layers and heads, evenly spaced.
MOST_LAYERS = MOST_HEADS = 12
TITLE_INCHES = 0.22
LABELLED_INCHES = 1.4  # attention maps wider than this have token labels
MOST_ANNOTATED = 64  # with more heads, scores are not written into the cells
PAGE_INCHES = 11.0
LETTER_SIZE = (0.013, 0.03)  # of a letter of a label, as shares of the plot of the embedding
# Points of the embedding are rasterised and cannot follow dark mode: these colours show in both modes.
KIND_COLOURS = ("#2b8cc4", "#d55e00", "#009e73", "#cc79a7", "#c99400", "#56b4e9", "#8a8a8a")


def draw_attention(attention: Attention, name: str = "attention") -> str:
    """Draw a grid of attention maps: a row for each layer, a column for each head, token labels if there is room."""
    layers, heads = (
        _evenly_spaced(n, m) for n, m in zip(attention.weights.shape, (MOST_LAYERS, MOST_HEADS), strict=False)
    )
    tall, wide = len(attention.queries), len(attention.keys)
    side = min(3.0, (PAGE_INCHES - 1.0) / len(heads)) * min(1.0, wide / tall)  # of a map, in width
    # One image of all maps, with gaps: matplotlib needs minutes to lay out a grid of many axes.
    down, right = tall + math.ceil(TITLE_INCHES * wide / side), wide + max(1, wide // 12)
    picture = np.full((down * len(layers), right * len(heads)), np.nan)
    figure = new_figure(side * len(heads) + 1.0, side * len(layers) * down / wide + 1.0)
    axes = figure.subplots()
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            top, left = (row + 1) * down - tall, column * right
            picture[top : top + tall, left : left + wide] = attention.weights[layer, head]
            corner = left - 0.5, top - 0.5
            axes.add_patch(Rectangle(corner, wide, tall, fill=False, edgecolor="#cbd5e0", linewidth=0.6))
            title = f"layer {layer}, head {head}" if side > LABELLED_INCHES else f"{layer}.{head}"
            axes.text(left + (wide - 1) / 2, top - 0.8, title, ha="center", va="bottom", fontsize=9)
    image = axes.imshow(picture, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="none")
    _colour_bar(figure, axes, image, "attention weight")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=2)
    axes.set(xticks=[], yticks=[])
    if side > LABELLED_INCHES:
        size = min(9.0, 66.0 * side / wide)
        across = [column * right + i for column in range(len(heads)) for i in range(wide)]
        along = [(row + 1) * down - tall + i for row in range(len(layers)) for i in range(tall)]
        axes.set_xticks(across, attention.keys * len(heads), rotation=90, fontsize=size, parse_math=False)
        axes.set_yticks(along, attention.queries * len(layers), fontsize=size, parse_math=False)
    return draw_svg(figure, name, attention.title, crop=True)


def draw_scores(scores: dict[str, np.ndarray], name: str = "scores") -> str:
    """Draw a heat map of each score: a row for each layer, a column for each head."""
    layers, heads = next(iter(scores.values())).shape
    figure = new_figure(PAGE_INCHES, 1.3 + min(4.0, 0.36 * layers))
    row = figure.subplots(1, len(scores), squeeze=False)[0]
    for axes, (kind, values) in zip(row, scores.items(), strict=True):
        signed = kind == "copying"
        colours = {"cmap": "RdBu", "vmin": -1.0} if signed else {"cmap": "Blues", "vmin": 0.0}
        _colour_bar(figure, axes, axes.imshow(values, **colours, vmax=1.0, aspect="auto"))
        axes.set_title(kind, fontsize=11)
        axes.set_xlabel("head", fontsize=10)
        axes.set_xticks(_evenly_spaced(heads, 16))
        axes.set_yticks(_evenly_spaced(layers, 16))
        axes.tick_params(length=0, labelsize=9)
        if layers * heads <= MOST_ANNOTATED:
            _write_values(axes, values, most=1.0, digits=2)
    row[0].set_ylabel("layer", fontsize=10)
    return draw_svg(figure, name, "Kinds of heads")


def draw_circuits(circuits: Circuits, name: str = "circuits") -> str:
    """Draw the two circuits of a head between words, from rows to columns."""
    words = [word.word for word in circuits.words]
    figure = new_figure(PAGE_INCHES, 1.4 + 0.34 * len(words))
    panels = {"attends to, one back (QK circuit)": circuits.qk, "raises (OV circuit)": circuits.ov}
    for axes, (title, values) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        _colour_bar(figure, axes, _draw_signed(axes, values, words, words))
        axes.set_title(title, fontsize=11)
        axes.tick_params(axis="x", rotation=90)
    return draw_svg(figure, name, "Circuits of a head")


def draw_paths(paths: Paths, name: str = "paths") -> str:
    """Draw a row for each path, and a column for each pair of a token and its successor."""
    figure = new_figure(PAGE_INCHES, 1.6 + 0.34 * len(paths.names))
    axes = figure.subplots()
    columns = [f"{token} → {following}" for token, following in zip(paths.tokens, paths.following, strict=True)]
    _colour_bar(figure, axes, _draw_signed(axes, paths.terms, paths.names, columns), "logit over the mean")
    axes.tick_params(axis="x", rotation=90)
    _write_values(axes, paths.terms, most=np.abs(paths.terms).max(), digits=1)
    return draw_svg(figure, name, "Logits, path by path")


def _write_values(axes: Axes, values: np.ndarray, *, most: float, digits: int) -> None:
    """Write values into the cells of a heat map whose darkest colour stands for `most`."""
    for (row, column), value in np.ndenumerate(values):
        dark = abs(value) > 0.6 * most
        colour = "white" if dark else "black"
        axes.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=9, color=colour)


def _draw_signed(axes: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> AxesImage:
    """Draw values as colours, white at zero; return the image."""
    most = np.abs(values).max() or 1.0
    image = axes.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="none")
    axes.set_xticks(range(len(columns)), columns, fontsize=9, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=9, parse_math=False)
    axes.tick_params(length=0)
    return image


def _colour_bar(figure: Figure, axes: Axes, image: AxesImage, label: str = "") -> None:
    """Add a colour bar for `image`, beside `axes`."""
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, shrink=0.9)
    bar.set_label(label, fontsize=10)
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)


def draw_embedding(embedding: Embedding, name: str = "embedding") -> str:
    """Draw all tokens along the first two principal components, coloured by kind."""
    figure = new_figure(PAGE_INCHES, 6.0)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for kind, (label, colour) in enumerate(zip(KINDS, KIND_COLOURS, strict=True)):
        x, y = embedding.coordinates[embedding.kinds == kind].T
        if len(x):
            # Thousands of points become one image instead of thousands of shapes.
            axes.scatter(
                x, y, s=9, color=colour, alpha=0.55, linewidths=0, label=f"{label} ({len(x):,})", rasterized=True
            )
    for token in _apart(embedding):
        axes.annotate(
            embedding.labels[token],
            embedding.coordinates[token],
            xytext=(3, 2),
            textcoords="offset points",
            bbox={"facecolor": PAGE, "edgecolor": "none", "alpha": 0.7, "pad": 0.6},
            fontsize=9,
            parse_math=False,
        )
    for number, (axis, share) in enumerate(zip("xy", embedding.shares, strict=True), 1):
        axes.set(**{f"{axis}label": f"principal component {number} ({share:.1%} of the variance)"})
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=2)
    return draw_svg(figure, name, "Embedding")


def _apart(embedding: Embedding) -> list[int]:
    """Return the labelled tokens whose labels do not cover each other; the most frequent ones win."""
    letter = np.ptp(embedding.coordinates, axis=0) * LETTER_SIZE
    chosen: list[int] = []
    for token in embedding.labels:
        right, above = (embedding.coordinates[chosen] - embedding.coordinates[token]).T
        # A label begins at its token, and the left one of two labels can reach the other.
        left = [embedding.labels[other if x < 0 else token] for other, x in zip(chosen, right, strict=True)]
        reach = letter[0] * np.array([*map(len, left)])
        if not ((np.abs(right) < reach) & (np.abs(above) < letter[1])).any():
            chosen.append(token)
    return chosen


def _evenly_spaced(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below `count`, evenly spaced, with the first and the last."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most))})


def inside_plots(inside: Inside, prefix: str = "inside") -> list[Plot]:
    """Return the plots that have data. Their names begin with `prefix`."""
    with style():
        drawn = []
        for number, each in enumerate(inside.attention, 1):
            name = f"{prefix}-attention-{number}"
            text = f"{_ATTENTION} The text: {each.text}"
            drawn.append(Plot(name, each.title, text, draw_attention(each, name)))
        if inside.scores is not None:
            name = f"{prefix}-scores"
            text = _SCORES + (_COPYING if "copying" in inside.scores else "")
            drawn.append(Plot(name, "Kinds of heads", text, draw_scores(inside.scores, name)))
        if inside.paths is not None:
            name = f"{prefix}-paths"
            drawn.append(Plot(name, "Logits, path by path", _PATHS, draw_paths(inside.paths, name)))
        if inside.circuits is not None and inside.circuits.words:
            name = f"{prefix}-circuits"
            title = f"Circuits of head {inside.circuits.head} of layer {inside.circuits.layer}, which copies most"
            drawn.append(Plot(name, title, _CIRCUITS, draw_circuits(inside.circuits, name)))
        name = f"{prefix}-embedding"
        return [*drawn, Plot(name, "Embedding", _EMBEDDING, draw_embedding(inside.embedding, name))]


_ATTENTION = "Which tokens (columns) each token of a short text (rows) attends to. Darker means more."
_PATHS = (
    "The logits of a one-layer attention-only model are a sum over paths: the direct path from a token to the next, "
    "each head, and the biases if any. Blue: a path raises the logit of the actual next token over the mean of all "
    "tokens. Red: it lowers that logit."
)
_CIRCUITS = (
    "Computed from the head's matrices alone. Left: which words each word (rows) attends to at the position before it. "
    "Right: which words get higher logits (blue) or lower ones (red) at positions that attend to the word. "
    "A head that copies is blue along the diagonal."
)
_SCORES = (
    "Mean attention on random tokens that are then repeated: to the position before, to the first occurrence of the "
    "same token, and to the token after that occurrence. An induction head does the last."
)
_COPYING = (
    " Copying: the sum of the eigenvalues of a head's path from token to logits, divided by the sum of their moduli. "
    "At 1 a head raises the logits of the tokens that it attends to; at -1 it lowers them."
)
_EMBEDDING = "Every token along the two directions in which embeddings differ most."

"""The pictures of a model's inside, as SVG."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.reporting.inside import Attention, Circuits, Embedding, Inside, Paths
from pipelines.reporting.svg import PAGE, draw_svg, new_figure, style
from pipelines.reporting.token_labels import KINDS

# A page of very many heads shows some of them, evenly spaced.
MOST_LAYERS = MOST_HEADS = 12
TITLE_INCHES = 0.22
LABELLED_INCHES = 1.4  # a map wider than this has its tokens beside it
MOST_ANNOTATED = 64  # heads with their scores written in
PAGE_INCHES = 11.0
LABEL_SIZE = (0.065, 0.03)  # of a label, as shares of the picture of the embedding
# Points of the embedding are rasterised and cannot follow dark mode: these colours show in both modes.
KIND_COLOURS = ("#3182ce", "#dd6b20", "#38a169", "#805ad5", "#d53f8c", "#319795", "#718096")


def draw_attention(attention: Attention, name: str = "attention") -> str:
    """A grid of attention maps: a row for each layer, a column for each head; with the tokens where there is room."""
    from matplotlib.patches import Rectangle

    layers, heads = (_spaced(n, m) for n, m in zip(attention.weights.shape, (MOST_LAYERS, MOST_HEADS), strict=False))
    tall, wide = len(attention.queries), len(attention.keys)
    side = min(3.0, (PAGE_INCHES - 1.0) / len(heads)) * min(1.0, wide / tall)  # of a map, in width
    # One picture of all maps, with gaps: a grid of many axes takes minutes to lay out.
    down, right = tall + math.ceil(TITLE_INCHES * wide / side), wide + max(1, wide // 12)
    picture = np.full((down * len(layers), right * len(heads)), np.nan)
    figure = new_figure(side * len(heads) + 1.0, side * len(layers) * down / wide + 1.0)
    axes = figure.subplots()
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            top, left = (row + 1) * down - tall, column * right
            picture[top : top + tall, left : left + wide] = attention.weights[layer, head]
            frame = {"fill": False, "edgecolor": "#cbd5e0", "linewidth": 0.6}
            axes.add_patch(Rectangle((left - 0.5, top - 0.5), wide, tall, **frame))
            title = f"layer {layer}, head {head}" if side > LABELLED_INCHES else f"{layer}.{head}"
            axes.text(left + (wide - 1) / 2, top - 0.8, title, ha="center", va="bottom", fontsize=9)
    image = axes.imshow(picture, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="none")
    _colour_bar(figure, axes, image, "attention weight")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=2)
    axes.set(xticks=[], yticks=[])
    if side > LABELLED_INCHES:
        font = {"fontsize": min(9.0, 66.0 * side / wide), "parse_math": False}
        across = [column * right + i for column in range(len(heads)) for i in range(wide)]
        along = [(row + 1) * down - tall + i for row in range(len(layers)) for i in range(tall)]
        axes.set_xticks(across, attention.keys * len(heads), rotation=90, **font)
        axes.set_yticks(along, attention.queries * len(layers), **font)
    return draw_svg(figure, name, attention.title)


def draw_scores(scores: dict[str, np.ndarray], name: str = "scores") -> str:
    """A small table of colours for each score: a row for each layer, a column for each head."""
    layers, heads = next(iter(scores.values())).shape
    figure = new_figure(PAGE_INCHES, 1.3 + min(4.0, 0.36 * layers))
    row = figure.subplots(1, len(scores), squeeze=False)[0]
    for axes, (kind, values) in zip(row, scores.items(), strict=True):
        signed = kind == "copying"
        colours = {"cmap": "RdBu", "vmin": -1.0} if signed else {"cmap": "Blues", "vmin": 0.0}
        _colour_bar(figure, axes, axes.imshow(values, **colours, vmax=1.0, aspect="auto"))
        axes.set_title(kind, fontsize=11)
        axes.set_xlabel("head", fontsize=10)
        axes.set_xticks(_spaced(heads, 16))
        axes.set_yticks(_spaced(layers, 16))
        axes.tick_params(length=0, labelsize=9)
        if layers * heads <= MOST_ANNOTATED:
            _write_values(axes, values, most=1.0, digits=2)
    row[0].set_ylabel("layer", fontsize=10)
    return draw_svg(figure, name, "Kinds of heads")


def draw_circuits(circuits: Circuits, name: str = "circuits") -> str:
    """The two circuits of a head between words, from rows to columns."""
    words = [each.word for each in circuits.words]
    figure = new_figure(PAGE_INCHES, 1.4 + 0.34 * len(words))
    panels = {"attends to, one back (QK circuit)": circuits.qk, "raises (OV circuit)": circuits.ov}
    for axes, (title, values) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        _colour_bar(figure, axes, _draw_signed(axes, values, words, words))
        axes.set_title(title, fontsize=11)
        axes.tick_params(axis="x", rotation=90)
    return draw_svg(figure, name, "Circuits of a head")


def draw_paths(paths: Paths, name: str = "paths") -> str:
    """A row for each path, a column for each token that comes next, over it the one before."""
    figure = new_figure(PAGE_INCHES, 1.6 + 0.34 * len(paths.names))
    axes = figure.subplots()
    columns = [f"{token} → {following}" for token, following in zip(paths.tokens, paths.following, strict=True)]
    _colour_bar(figure, axes, _draw_signed(axes, paths.terms, paths.names, columns), "logit over the mean")
    axes.tick_params(axis="x", rotation=90)
    _write_values(axes, paths.terms, most=np.abs(paths.terms).max(), digits=1)
    return draw_svg(figure, name, "Logits, path by path")


def _write_values(axes: Any, values: np.ndarray, *, most: float, digits: int) -> None:
    """Values into the cells of a picture whose darkest colour stands for `most`."""
    for (row, column), value in np.ndenumerate(values):
        dark = abs(value) > 0.6 * most
        style = {"ha": "center", "va": "center", "fontsize": 9, "color": "white" if dark else "black"}
        axes.text(column, row, f"{value:.{digits}f}", **style)


def _draw_signed(axes: Any, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Any:
    """Draw values as colours, white at zero; return the image."""
    most = np.abs(values).max() or 1.0
    image = axes.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="none")
    axes.set_xticks(range(len(columns)), columns, fontsize=9, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=9, parse_math=False)
    axes.tick_params(length=0)
    return image


def _colour_bar(figure: Any, axes: Any, image: Any, label: str = "") -> None:
    """Add a colour bar for `image`, beside `axes`."""
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, shrink=0.9)
    bar.set_label(label, fontsize=10)
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)


def draw_embedding(embedding: Embedding, name: str = "embedding") -> str:
    """All tokens along the two directions in which they differ most, coloured by kind."""
    figure = new_figure(PAGE_INCHES, 6.0)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for kind, (label, colour) in enumerate(zip(KINDS, KIND_COLOURS, strict=True)):
        x, y = embedding.coordinates[embedding.kinds == kind].T
        if len(x):
            # Thousands of points as one picture of pixels, not as thousands of shapes.
            axes.scatter(
                x, y, s=9, color=colour, alpha=0.55, linewidths=0, label=f"{label} ({len(x):,})", rasterized=True
            )
    background = {"facecolor": PAGE, "edgecolor": "none", "alpha": 0.7, "pad": 0.6}
    for token in _apart(embedding):
        font = {"fontsize": 9, "textcoords": "offset points", "xytext": (3, 2), "parse_math": False}
        axes.annotate(embedding.labels[token], embedding.coordinates[token], bbox=background, **font)
    for number, (axis, share) in enumerate(zip("xy", embedding.shares, strict=True), 1):
        axes.set(**{f"{axis}label": f"principal component {number} ({share:.1%} of the variance)"})
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=2)
    return draw_svg(figure, name, "Embedding")


def _apart(embedding: Embedding) -> list[int]:
    """The tokens with labels that no label before covers, the most frequent first."""
    size = np.ptp(embedding.coordinates, axis=0) * LABEL_SIZE
    chosen: list[int] = []
    for token in embedding.labels:
        distances = np.abs(embedding.coordinates[chosen] - embedding.coordinates[token])
        if not (distances < size).all(axis=1).any():
            chosen.append(token)
    return chosen


def _spaced(count: int, most: int) -> list[int]:
    """At most `most` of the first `count` numbers, evenly spaced, first and last among them."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most))})


def pictures(inside: Inside, prefix: str = "inside") -> list[tuple[str, str, str]]:
    """Return (title, explanation, SVG) of each picture with data; the ids in the SVG begin with `prefix`."""
    with style():
        drawn = [
            (
                each.title,
                f"{_ATTENTION} The text: {' '.join(each.queries)}",
                draw_attention(each, f"{prefix}-attention-{number}"),
            )
            for number, each in enumerate(inside.attention, 1)
        ]
        if inside.scores is not None:
            text = _SCORES + (_COPYING if "copying" in inside.scores else "")
            drawn.append(("Kinds of heads", text, draw_scores(inside.scores, f"{prefix}-scores")))
        if inside.paths is not None:
            drawn.append(("Logits, path by path", _PATHS, draw_paths(inside.paths, f"{prefix}-paths")))
        if inside.circuits is not None and inside.circuits.words:
            title = f"Circuits of head {inside.circuits.head} of layer {inside.circuits.layer}, which copies most"
            drawn.append((title, _CIRCUITS, draw_circuits(inside.circuits, f"{prefix}-circuits")))
        text = "Every token along the two directions in which embeddings differ most."
        return [*drawn, ("Embedding", text, draw_embedding(inside.embedding, f"{prefix}-embedding"))]


_ATTENTION = "Which tokens (columns) each token of a short text (rows) attends to. Darker means more."
_PATHS = (
    "The logits of a one-layer attention-only model are a sum over paths: the direct path from a token to the next, "
    "each head, and the biases where there are any. Blue: how far a path raises the logit of the token that came over "
    "the mean of all tokens. Red: how far it lowers that logit."
)
_CIRCUITS = (
    "Computed from the head's matrices alone. Left: which words each word (rows) attends to at the position before it. "
    "Right: which words get higher logits (blue) or lower ones (red) where the word is attended to. "
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

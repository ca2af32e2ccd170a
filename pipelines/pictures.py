"""The pictures of a model's inside, as SVG."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelines.inside import Attention, Circuits, Embedding, Inside, Paths
from pipelines.plots import COLOURS, draw_svg
from pipelines.token_labels import KINDS

# A page of very many heads shows some of them, evenly spaced.
MOST_LAYERS = MOST_HEADS = 12
TITLE_INCHES = 0.22
LABELLED_INCHES = 1.4  # a map wider than this has its tokens beside it
MOST_ANNOTATED = 64  # heads with their scores written in
PAGE_INCHES = 11.0
LABEL_SIZE = (0.055, 0.024)  # of a label, as shares of the picture of the embedding
KIND_COLOURS = (*COLOURS, "#1a202c")


def draw_attention(attention: Attention) -> str:
    """A grid of attention maps: a row for each layer, a column for each head; with the tokens where there is room."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    layers, heads = (_spaced(n, m) for n, m in zip(attention.weights.shape, (MOST_LAYERS, MOST_HEADS), strict=False))
    tall, wide = len(attention.queries), len(attention.keys)
    side = min(3.0, (PAGE_INCHES - 1.0) / len(heads)) * min(1.0, wide / tall)  # of a map, in width
    # One picture of all maps, with gaps: a grid of many axes takes minutes to lay out.
    down, right = tall + math.ceil(TITLE_INCHES * wide / side), wide + max(1, wide // 12)
    picture = np.full((down * len(layers), right * len(heads)), np.nan)
    figure = Figure(figsize=(side * len(heads) + 1.0, side * len(layers) * down / wide + 1.0), layout="constrained")
    axes = figure.subplots()
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            top, left = (row + 1) * down - tall, column * right
            picture[top : top + tall, left : left + wide] = attention.weights[layer, head]
            frame = {"fill": False, "edgecolor": "#cbd5e0", "linewidth": 0.6}
            axes.add_patch(Rectangle((left - 0.5, top - 0.5), wide, tall, **frame))
            title = f"layer {layer}, head {head}" if side > LABELLED_INCHES else f"{layer}.{head}"
            axes.text(left + (wide - 1) / 2, top - 0.8, title, ha="center", va="bottom", fontsize=8)
    axes.imshow(picture, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="none")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=2)
    axes.set(xticks=[], yticks=[])
    if side > LABELLED_INCHES:
        style = {"fontsize": min(8.0, 62.0 * side / wide), "parse_math": False}
        across = [column * right + i for column in range(len(heads)) for i in range(wide)]
        along = [(row + 1) * down - tall + i for row in range(len(layers)) for i in range(tall)]
        axes.set_xticks(across, attention.keys * len(heads), rotation=90, **style)
        axes.set_yticks(along, attention.queries * len(layers), **style)
    return draw_svg(figure, text="none")


def draw_scores(scores: dict[str, np.ndarray]) -> str:
    """A small table of colours for each score: a row for each layer, a column for each head."""
    from matplotlib.figure import Figure

    layers, heads = next(iter(scores.values())).shape
    figure = Figure(figsize=(PAGE_INCHES, 0.9 + min(4.0, 0.32 * layers)), layout="constrained")
    row = figure.subplots(1, len(scores), squeeze=False)[0]
    for axes, (name, values) in zip(row, scores.items(), strict=True):
        signed = name == "copying"
        axes.imshow(values, cmap="RdBu" if signed else "Blues", vmin=-1.0 if signed else 0.0, vmax=1.0, aspect="auto")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("head", fontsize=8)
        axes.set_xticks(_spaced(heads, 16))
        axes.set_yticks(_spaced(layers, 16))
        axes.tick_params(length=0, labelsize=7)
        if layers * heads <= MOST_ANNOTATED:
            _write_values(axes, values, most=1.0, digits=2)
    row[0].set_ylabel("layer", fontsize=8)
    return draw_svg(figure, text="none")


def draw_circuits(circuits: Circuits) -> str:
    """The two circuits of a head between words, from rows to columns."""
    from matplotlib.figure import Figure

    words = [each.word for each in circuits.words]
    figure = Figure(figsize=(PAGE_INCHES, 1.2 + 0.32 * len(words)), layout="constrained")
    panels = {"attends to, one back (QK circuit)": circuits.qk, "raises (OV circuit)": circuits.ov}
    for axes, (title, values) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        _draw_signed(axes, values, words, words)
        axes.set_title(title, fontsize=9)
        axes.tick_params(axis="x", rotation=90)
    return draw_svg(figure, text="none")


def draw_paths(paths: Paths) -> str:
    """A row for each path, a column for each token that comes next, over it the one before."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_INCHES, 1.6 + 0.34 * len(paths.names)), layout="constrained")
    axes = figure.subplots()
    columns = [f"{token} → {following}" for token, following in zip(paths.tokens, paths.following, strict=True)]
    _draw_signed(axes, paths.terms, paths.names, columns)
    axes.tick_params(axis="x", rotation=90)
    _write_values(axes, paths.terms, most=np.abs(paths.terms).max(), digits=1)
    return draw_svg(figure, text="none")


def _write_values(axes: Any, values: np.ndarray, *, most: float, digits: int) -> None:
    """Values into the cells of a picture whose darkest colour stands for `most`."""
    for (row, column), value in np.ndenumerate(values):
        dark = abs(value) > 0.6 * most
        style = {"ha": "center", "va": "center", "fontsize": 7, "color": "white" if dark else "#1a202c"}
        axes.text(column, row, f"{value:.{digits}f}", **style)


def _draw_signed(axes: Any, values: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Values as colours, white at zero."""
    most = np.abs(values).max() or 1.0
    axes.imshow(values, cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="none")
    axes.set_xticks(range(len(columns)), columns, fontsize=7, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, fontsize=7, parse_math=False)
    axes.tick_params(length=0)


def draw_embedding(embedding: Embedding) -> str:
    """All tokens along the two directions in which they differ most, coloured by kind."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_INCHES, 6.0), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    for kind, (name, colour) in enumerate(zip(KINDS, KIND_COLOURS, strict=True)):
        x, y = embedding.coordinates[embedding.kinds == kind].T
        if len(x):
            # Thousands of points as one picture of pixels, not as thousands of shapes.
            axes.scatter(
                x, y, s=9, color=colour, alpha=0.55, linewidths=0, label=f"{name} ({len(x):,})", rasterized=True
            )
    background = {"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6}
    for token in _apart(embedding):
        style = {"fontsize": 7, "textcoords": "offset points", "xytext": (3, 2), "parse_math": False}
        axes.annotate(embedding.labels[token], embedding.coordinates[token], bbox=background, **style)
    for name, share in zip("xy", embedding.shares, strict=True):
        axes.set(**{f"{name}label": f"principal component {'xy'.index(name) + 1} ({share:.1%} of the variance)"})
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0), markerscale=2)
    return draw_svg(figure, text="none")


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


def pictures(inside: Inside) -> list[tuple[str, str, str]]:
    """(title, explanation, SVG) of each picture that there is data for."""
    drawn = [
        (each.title, f"{_ATTENTION} The text: {' '.join(each.queries)}", draw_attention(each))
        for each in inside.attention
    ]
    if inside.scores is not None:
        text = _SCORES + (_COPYING if "copying" in inside.scores else "")
        drawn.append(("Kinds of heads", text, draw_scores(inside.scores)))
    if inside.paths is not None:
        drawn.append(("Logits, path by path", _PATHS, draw_paths(inside.paths)))
    if inside.circuits is not None and inside.circuits.words:
        title = f"Circuits of head {inside.circuits.head} of layer {inside.circuits.layer}, which copies most"
        drawn.append((title, _CIRCUITS, draw_circuits(inside.circuits)))
    text = "Every token along the two directions in which embeddings differ most."
    return [*drawn, ("Embedding", text, draw_embedding(inside.embedding))]


_ATTENTION = "What each token of a short text (its row) attends to (columns): the darker, the more."
_PATHS = (
    "The logits of a one-layer attention-only model are a sum: how far the direct path, from a token to what follows "
    "it, each head, and biases where there are any, raise the logit of the token that comes next over the mean of all "
    "tokens (blue), or lower it."
)
_CIRCUITS = (
    "Read from the head's matrices alone: what each word (its row) attends to at the position before it, and whose "
    "logits it raises (blue) or lowers where it is attended to. A head that copies is blue along the diagonal."
)
_SCORES = (
    "On random tokens that are then repeated, the mean attention to the position before; to the same token of the "
    "first time; to what came after it then (an induction head: it guesses that it comes again)."
)
_COPYING = (
    " Copying: the sum of the eigenvalues of a head's path from token to logits over that of their moduli; at 1 a head "
    "raises the logits of what it attends to, at -1 it lowers them."
)

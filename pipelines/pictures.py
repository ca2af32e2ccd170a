"""The pictures of a model's inside, as SVG."""

import math

import numpy as np

from pipelines.inside import KINDS, Attention, Embedding, Inside
from pipelines.plots import COLOURS, draw_svg

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

    layers, heads = (_spaced(n, most) for n, most in zip(attention.maps.shape, (MOST_LAYERS, MOST_HEADS), strict=False))
    length = len(attention.tokens)
    side = min(3.0, (PAGE_INCHES - 1.0) / len(heads))
    # One picture of all maps, with gaps: a grid of many axes takes minutes to lay out.
    down, right = length + math.ceil(TITLE_INCHES * length / side), length + max(1, length // 12)
    picture = np.full((down * len(layers), right * len(heads)), np.nan)
    figure = Figure(figsize=(side * len(heads) + 1.0, side * len(layers) * down / length + 1.0), layout="constrained")
    axes = figure.subplots()
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            top, left = (row + 1) * down - length, column * right
            picture[top : top + length, left : left + length] = attention.maps[layer, head]
            frame = {"fill": False, "edgecolor": "#cbd5e0", "linewidth": 0.6}
            axes.add_patch(Rectangle((left - 0.5, top - 0.5), length, length, **frame))
            title = f"layer {layer}, head {head}" if side > LABELLED_INCHES else f"{layer}.{head}"
            axes.text(left + (length - 1) / 2, top - 0.8, title, ha="center", va="bottom", fontsize=8)
    axes.imshow(picture, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="none")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=2)
    axes.set(xticks=[], yticks=[])
    if side > LABELLED_INCHES:
        style = {"fontsize": min(8.0, 62.0 * side / length), "parse_math": False}
        across = [column * right + i for column in range(len(heads)) for i in range(length)]
        along = [(row + 1) * down - length + i for row in range(len(layers)) for i in range(length)]
        axes.set_xticks(across, attention.tokens * len(heads), rotation=90, **style)
        axes.set_yticks(along, attention.tokens * len(layers), **style)
    return draw_svg(figure, text="none")


def draw_scores(attention: Attention) -> str:
    """A small table of colours for each score: a row for each layer, a column for each head."""
    from matplotlib.figure import Figure

    layers, heads = next(iter(attention.scores.values())).shape
    figure = Figure(figsize=(PAGE_INCHES, 0.9 + min(4.0, 0.32 * layers)), layout="constrained")
    row = figure.subplots(1, len(attention.scores), squeeze=False)[0]
    for axes, (name, values) in zip(row, attention.scores.items(), strict=True):
        signed = name == "copying"
        axes.imshow(values, cmap="RdBu" if signed else "Blues", vmin=-1.0 if signed else 0.0, vmax=1.0, aspect="auto")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("head", fontsize=8)
        axes.set_xticks(_spaced(heads, 16))
        axes.set_yticks(_spaced(layers, 16))
        axes.tick_params(length=0, labelsize=7)
        if layers * heads <= MOST_ANNOTATED:
            for (layer, head), value in np.ndenumerate(values):
                dark = abs(value) > 0.6
                style = {"ha": "center", "va": "center", "fontsize": 7, "color": "white" if dark else "#1a202c"}
                axes.text(head, layer, f"{value:.2f}", **style)
    row[0].set_ylabel("layer", fontsize=8)
    return draw_svg(figure, text="none")


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
    drawn = []
    if inside.attention is not None:
        drawn = [
            (
                "Attention",
                "What each token of a short text (its row) attends to (columns): the darker, the more. The text: "
                + " ".join(inside.attention.tokens),
                draw_attention(inside.attention),
            ),
            (
                "Kinds of heads",
                _SCORES + (_COPYING if "copying" in inside.attention.scores else ""),
                draw_scores(inside.attention),
            ),
        ]
    text = "Every token along the two directions in which embeddings differ most."
    return [*drawn, ("Embedding", text, draw_embedding(inside.embedding))]


_SCORES = (
    "On random tokens that are then repeated, the mean attention to the position before; to the same token of the "
    "first time; to what came after it then (an induction head: it guesses that it comes again)."
)
_COPYING = (
    " Copying: the sum of the eigenvalues of a head's path from token to logits over that of their moduli; at 1 a head "
    "raises the logits of what it attends to, at -1 it lowers them."
)

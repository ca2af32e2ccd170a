"""The plots of a report, as SVG."""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lm.metrics.units import NATS_PER_BIT, perplexity
from pipelines.cli.display import perplexity_text, quantity
from pipelines.evaluation.measurements.ngrams import NGrams
from pipelines.evaluation.measurements.predictions import Curves
from pipelines.evaluation.measurements.trained_length import IN_WINDOWS, BeyondTrainedLength
from pipelines.evaluation.results import SplitEvaluation
from pipelines.reporting.subject import Subject, Text, scored_texts
from pipelines.reporting.svg import HEIGHT, INK, PALE, PALER, SERIES, Plot, draw_svg, label_axes, new_axes, style

LINE_STYLES = ("-", "--", "-.", ":")  # distinguish runs without colour
SOURCE_MARKERS = "^vsDPX"  # distinguish the sources of a mixture
WARM_UP = 0.05  # share of the training that the range of the loss axis leaves out
BINS = 24  # of the loss by position
LARGE = 1e15  # larger perplexities are shown as powers of ten
BAND = 2.0  # half-width of the error band in standard errors


def plots(subjects: Sequence[Subject]) -> list[Plot]:
    """Return the plots that have data."""
    with style():
        drawn = [
            _plot("loss", "Loss", _explained_loss(subjects), _draw_loss(subjects)),
            _plot("learning-rate", "Learning rate", _LR, _draw_series(subjects, "lr", "learning rate")),
            _plot("speed", "Speed", _SPEED, _draw_series(subjects, "tokens_per_s", "tokens per second")),
            _plot("position", "Loss by position", _POSITION, _draw_positions(subjects)),
            _plot("beyond", "Beyond the trained length", _BEYOND, _draw_beyond(subjects)),
            *(_plot_bits_per_byte(number, text) for number, text in enumerate(scored_texts(subjects), 1)),
            _plot("reliability", "Reliability", _RELIABILITY, _draw_reliability(subjects)),
        ]
        return [plot for plot in drawn if plot is not None]


def _plot(name: str, title: str, text: str, figure: Figure | None) -> Plot | None:
    return None if figure is None else Plot(name, title, text, draw_svg(figure, name, title))


def _plot_bits_per_byte(number: int, text: Text) -> Plot | None:
    intervals = _INTERVALS if any(any(_interval_around(score.evaluation)) for score in text.scores) else ""
    explanation = _BYTES + (_HATCHED if any(opponent.knows_training for opponent in text.opponents) else "") + intervals
    return _plot(f"bytes-{number}", f"Bits per byte: {text.name}", explanation, _draw_bits_per_byte(text))


def _style(subjects: Sequence[Subject]) -> Iterable[tuple[Subject, str, str]]:
    """Yield each subject with its colour and line style."""
    for number, subject in enumerate(subjects):
        yield subject, SERIES[number % len(SERIES)], LINE_STYLES[number % len(LINE_STYLES)]


def _draw_loss(subjects: Sequence[Subject]) -> Figure | None:
    figure, axes = new_axes()
    shown: list[float] = []
    for subject, colour, line in _style(subjects):
        unit = 1.0 if _is_squared(subject) else math.log(2)
        looks: dict[tuple[str, str], dict[str, Any]] = {
            ("train", "loss"): {"alpha": 0.55, "linewidth": 1.2},
            ("validation", "loss"): {"marker": "o", "markersize": 5, "linewidth": 1.6},
        }
        sources = dict.fromkeys(key for m in subject.metrics for key in m if key.startswith("loss/"))
        for key, marker in zip(sources, itertools.cycle(SOURCE_MARKERS), strict=False):
            looks["validation", key] = {"marker": marker, "markersize": 4, "linewidth": 0.8, "alpha": 0.8}
        for (split, key), look in looks.items():
            points = [(m["tokens"], m[key] / unit) for m in subject.metrics if m["split"] == split and key in m]
            if points:
                label = _label(f"{subject.name}, {split}{key.removeprefix('loss')}")
                axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, label=label, **look)
                after = [bits for tokens, bits in points if tokens >= WARM_UP * points[-1][0]]
                shown += after if len(after) > 1 else [bits for _, bits in points]
    if not shown:
        return None
    room = 0.06 * (max(shown) - min(shown)) or 0.5
    axes.set_ylim(min(shown) - room, max(shown) + room)
    axes.locator_params(axis="x", nbins=5)
    if _of_tokens(subjects):
        _add_perplexities(axes)
    loss = "loss" if any(_is_squared(subject) for subject in subjects) else "bits per target"
    return label_axes(figure, axes, "training tokens", loss)


def _of_tokens(subjects: Sequence[Subject]) -> bool:
    """Return whether all losses are of tokens, so that they have perplexities."""
    return all(subject.run.recipe.loss_is_of_tokens for subject in subjects)


def _is_squared(subject: Subject) -> bool:
    """Return whether the loss is a squared error, which has no bits."""
    head = subject.run.recipe.head
    return head is not None and head.loss == "squared"


def _add_perplexities(axes: Axes) -> None:
    """Add an axis at the right with the perplexity at each tick of the axis in bits."""
    right = axes.secondary_yaxis("right")
    right.yaxis.set_major_formatter(lambda bits, _: _short_perplexity(bits * NATS_PER_BIT))
    right.set_ylabel("perplexity")
    right.spines["right"].set_visible(False)


def _short_perplexity(nats: float) -> str:
    value = perplexity(nats)
    return quantity(value, "").strip() if value is not None and value < LARGE else perplexity_text(nats, ".0e")


def _draw_series(subjects: Sequence[Subject], key: str, label: str) -> Figure | None:
    figure, axes = new_axes()
    for subject, colour, line in _style(subjects):
        points = [(m["tokens"], m[key]) for m in subject.metrics if key in m]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, label=_label(subject.name))
    axes.set_ylim(bottom=0)
    return label_axes(figure, axes, "training tokens", label)


def _draw_positions(subjects: Sequence[Subject]) -> Figure | None:
    """Return the loss by position, averaged in widening bins, with an error band; None without data."""
    figure, axes = new_axes()
    first, last = math.inf, 0.0
    for subject, colour, line in _style(subjects):
        main = subject.most_positions
        bins = loss_by_position(main.curves, main.window, main.stride) if main and main.curves else []
        if not bins:
            continue
        x, bits, errors = zip(*bins, strict=True)
        axes.plot(x, bits, color=colour, linestyle=line, marker=".", label=_label(_with_split(subject)))
        low, high = ([b + sign * BAND * e for b, e in zip(bits, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
        first, last = min(first, x[0]), max(last, x[-1])
    if last > 8 * first:
        axes.set_xscale("log", base=2)
    _add_perplexities(axes)
    return label_axes(figure, axes, "position in the window, tokens", "bits per target")


def _draw_beyond(subjects: Sequence[Subject]) -> Figure | None:
    """Return the loss by position beyond the trained length, a line for each way to read a text; None without data."""
    figure, axes = new_axes()
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for subject in subjects:
        for evaluation in subject.evaluations:
            found = evaluation.find(BeyondTrainedLength)
            if subject.main is None or evaluation.text != subject.main.text or found is None or not found.curves:
                continue
            scaling = f", {evaluation.rotary_scaling}" if evaluation.rotary_scaling not in (None, "none") else ""
            for name, curves in found.curves.items():
                label = _label(f"{subject.name}, {name}{'' if name == IN_WINDOWS else scaling}")
                lines.setdefault(label, loss_by_position(curves, evaluation.window, evaluation.window))
            axes.axvline(found.trained_length, color=INK, linewidth=0.8)
    for number, (label, bins) in enumerate(lines.items()):
        x, values, errors = zip(*bins, strict=True)
        colour, style_of_line = SERIES[number % len(SERIES)], LINE_STYLES[number % len(LINE_STYLES)]
        axes.plot(x, values, color=colour, linestyle=style_of_line, label=label)
        low, high = ([b + sign * BAND * e for b, e in zip(values, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xscale("log", base=2)
    return label_axes(figure, axes, "position in the text, tokens", "bits per token")


def loss_by_position(curves: Curves, window: int, stride: int) -> list[tuple[float, float, float]]:
    """Return (position from 1, mean bits, standard error of the mean in bits) for each bin of positions.

    With a stride below the window, only the first window scores the positions up to `window - stride`. They are left
    out.
    """
    losses, errors = curves.loss_by_position, curves.loss_by_position_error
    scored = [
        (position, nats / math.log(2), (error or 0.0) / math.log(2))
        for position, (nats, error) in enumerate(zip(losses, errors, strict=True), 1)
        if nats is not None and position > window - stride
    ]
    if not scored:
        return []
    first, last = scored[0][0], scored[-1][0]
    edges = [*sorted({round(first * (last / first) ** (step / BINS)) for step in range(BINS)}), last + 1]
    bins: list[tuple[float, float, float]] = []
    for low, high in itertools.pairwise(edges):
        inside = [text for text in scored if low <= text[0] < high]
        if inside:
            positions, bits, deviations = zip(*inside, strict=True)
            error = math.sqrt(sum(deviation**2 for deviation in deviations))
            bins.append((sum(positions) / len(inside), sum(bits) / len(inside), error / len(inside)))
    return bins


def _draw_bits_per_byte(text: Text) -> Figure:
    """Return a bar chart of all evaluations on one text, and of the baselines."""
    first = text.scores[0].evaluation
    per_byte, baselines = first.tokens / first.bytes, first.find(NGrams)
    bars = [
        (name, getattr(baselines, f"{name}_cross_entropy_bits") * per_byte, PALE, "")
        for name in ("unigram", "bigram")
        if baselines
    ]
    bars += [
        (opponent.label, opponent.bits_per_byte, PALER, "//" if opponent.knows_training else "")
        for opponent in text.opponents
    ]
    for score in text.scores:
        colour = SERIES[score.number % len(SERIES)]
        bars.append((_label(score.label), score.evaluation.bits_per_byte, colour, ""))
    figure, axes = new_axes(max(HEIGHT, 0.9 + 0.36 * len(bars)))
    names, values, colours, hatches = zip(*bars, strict=True)
    errors = [(0.0, 0.0)] * (len(bars) - len(text.scores))
    errors += [_interval_around(score.evaluation) for score in text.scores]
    looks = {"ecolor": INK, "elinewidth": 2.5}
    drawn = axes.barh(
        range(len(bars)), values, xerr=list(zip(*errors, strict=True)), color=colours, hatch=hatches, error_kw=looks
    )
    axes.set_yticks(range(len(bars)), names)
    axes.bar_label(drawn, fmt="%.3f", padding=3)
    axes.margins(x=0.16)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("bits per byte")
    return figure


def _interval_around(evaluation: SplitEvaluation) -> tuple[float, float]:
    """Return the distances from the bits per byte to the low and high end of their 95 % interval; 0 without one."""
    value, intervals = evaluation.bits_per_byte, evaluation.intervals
    low, high = (intervals and intervals.bounds.get("bits_per_byte")) or (value, value)
    return max(0.0, value - low), max(0.0, high - value)


def _draw_reliability(subjects: Sequence[Subject]) -> Figure | None:
    figure, axes = new_axes()
    axes.plot([0, 1], [0, 1], color=PALE, linestyle="--", linewidth=1.2)
    for subject, colour, line in _style(subjects):
        curves = (subject.main and subject.main.curves) or Curves()
        bins = [
            (one.confidence, one.accuracy, one.count)
            for one in curves.reliability
            if one.confidence is not None and one.accuracy is not None
        ]
        if bins:
            x, y, counts = zip(*bins, strict=True)
            sizes = [20 + 400 * count / sum(counts) for count in counts]
            axes.plot(x, y, color=colour, linestyle=line, linewidth=1.2)
            axes.scatter(x, y, s=sizes, color=colour, alpha=0.5, label=_label(_with_split(subject)))
    return label_axes(figure, axes, "confidence", "accuracy")


def _with_split(subject: Subject) -> str:
    return f"{subject.name}, {subject.text_name(subject.main)}" if subject.main else subject.name


def _label(name: str) -> str:
    """Escape a run's name for matplotlib, where "$" begins a formula and a label that begins with "_" is hidden."""
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def _explained_loss(subjects: Sequence[Subject]) -> str:
    """Return the explanation of the loss curves, which names runs whose training loss is not a cross-entropy."""
    others = [subject.name for subject in subjects if not subject.run.recipe.train.loss_is_cross_entropy]
    sources = any(key.startswith("loss/") for subject in subjects for m in subject.metrics for key in m)
    explained = (_LOSS if _of_tokens(subjects) else _TASK_LOSS) + (_SOURCES if sources else "")
    return explained + (_NOT_CROSS_ENTROPY.format(" and ".join(others)) if others else "")


_TASK_LOSS = (
    "Loss during training: the cross-entropy in bits per target, the squared error of numbers, or the task's own loss "
    "in bits. The axes do not show the highest losses of the first 5 % of the training."
)
_LOSS = (
    "Cross-entropy in bits per target during training; the right axis shows the perplexity. "
    "The axes do not show the highest losses of the first 5 % of the training, where the loss falls from the logarithm "
    "of the vocabulary size."
)
_SOURCES = (
    " A thin line is the validation loss on one source of a mixture; the line of the validation loss is the mean of "
    "the sources, weighted by their shares."
)
_NOT_CROSS_ENTROPY = (
    " The training loss of {} includes label smoothing or z-loss, so the perplexity holds for the validation loss only."
)
_LR = "Learning rate of each logged step."
_SPEED = "Training tokens per second, without validation and checkpoints."
_POSITION = (
    "Cross-entropy by position in the window: how much a longer context helps. Points are means of bins; the band is "
    "two standard errors, where these were recorded. Positions that only the first window scores are left out."
)
_BEYOND = (
    "Cross-entropy by position in texts that are longer than the trained length, which the vertical line shows. "
    "At once: the model reads the whole text. In windows: it reads windows of the trained length, a quarter of that "
    "length apart. Points are means of bins; the band is two standard errors."
)
_BYTES = "All bars are of the same text; shorter is better."
_INTERVALS = " A line at the end of a bar is its 95 % interval."
_HATCHED = " Hatched: a compressor that is given the training text."
_RELIABILITY = (
    "Accuracy of the first-ranked token against its probability. A calibrated model is on the dashed diagonal. "
    "The area of a circle is the share of tokens in its bin."
)

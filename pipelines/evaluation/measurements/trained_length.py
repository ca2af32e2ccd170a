"""Beyond the trained length: the loss by position of windows that are longer than those of the training.

A model that reads far more tokens than in training may predict worse than one that forgets the oldest. Each text is
read in two ways, and each of its tokens is scored in both:

    at once     one window of the whole text
    in windows  windows of the trained length, a quarter of it apart, as `bytelm generate` reads a long text; a token is
                scored in the first window that predicts it

With the option `sinks`, it is also read token by token with a cache of the trained length that keeps the newest tokens
and the first `sinks` (Xiao et al. 2024), and with one that keeps only the newest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
import torch

from lm.decoding.packed import prepare
from lm.decoding.sinks import SinkCache
from lm.decoding.state import read
from lm.metrics.intervals import interval, resampled_sums
from lm.metrics.predictions import token_nll
from lm.metrics.units import bits
from lm.model import LanguageModel
from lm.position_checks import check_sinks
from lm.task_model import reconfigured
from pipelines.cli.display import Bar
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.confidence import FEWEST_CONTEXTS
from pipelines.evaluation.measurement import Measurement, Result, Section, Table
from pipelines.evaluation.measurements.predictions import Curves
from pipelines.evaluation.planning import EvaluationOptions, window_of
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import windows_per_batch
from pipelines.run.folder import Run
from pipelines.training.batch_loss import target_nats
from pipelines.training.batch_objectives import NextToken

TEXTS = 64  # at most
PARTS = 8  # of a text, in the table
SEED = 0
AT_ONCE, IN_WINDOWS, WITHOUT_SINKS = "at once", "in windows", "without sinks"

Estimate = tuple[float, float, float]
"""A mean with its 95 % interval, of a bootstrap over texts: (mean, low, high), in bits per token."""
Losses = dict[str, np.ndarray]
"""Nats (texts, positions) float64 of each way to read."""


@dataclass(frozen=True)
class Part:
    """The positions `first` to `last` of the texts; 1 is the token after the first."""

    first: int
    last: int
    loss: dict[str, Estimate]
    """Of each way to read"""
    difference: dict[str, Estimate]
    """From reading in windows, of each other way to read"""

    def row(self) -> tuple[str, list[str]]:
        """Return a row of the table."""
        return f"{self.first:,} to {self.last:,}", [f"{mean:.3f}" for mean, _, _ in self.loss.values()]


@dataclass(frozen=True)
class BeyondTrainedLength(Result):
    """The loss of long windows by position, or the reason why there is none."""

    key = "beyond_trained_length"
    section = Section(
        "Beyond the trained length",
        "The loss on texts that are longer than those of the training, by position, in bits per token. At once: the "
        "model reads each text as one window. In windows: it reads windows of the trained length, a quarter of it "
        "apart. With sinks: its cache has the trained length, and keeps the first tokens and the newest; without "
        "sinks, only the newest. Intervals are from a bootstrap over texts.",
    )

    texts: int
    trained_length: int
    parts_of_texts: tuple[Part, ...] = ()
    """A row for each eighth of the positions, and a last row for all positions beyond the trained length"""
    curves: dict[str, Curves] | None = None
    """The mean nats at each position, of each way to read"""
    left_out: str | None = None

    def parts(self) -> list[Table | str]:
        if self.left_out is not None:
            return [self.left_out]
        title = f"bits per token by position, in {self.texts:,} texts"
        beyond, rows = self.parts_of_texts[-1], [part.row() for part in self.parts_of_texts]
        verdicts = [self._verdict(name, estimate) for name, estimate in beyond.difference.items()]
        return [Table(title, "position", [*beyond.loss], rows), *verdicts]

    def _verdict(self, name: str, difference: Estimate) -> str:
        mean, low, high = difference
        length = f"{self.trained_length:,} tokens"
        if self.texts < FEWEST_CONTEXTS:
            return (
                f"Beyond {length}, reading {name} differs from reading in windows of {length} by {mean:+.3f} bits per "
                f"token; {self.texts:,} texts are too few for an interval."
            )
        words = "is worse than" if low > 0 else "is better than" if high < 0 else "is not clearly different from"
        return (
            f"Beyond {length}, reading {name} {words} reading in windows of {length}: {mean:+.3f} bits per token "
            f"(95 %: {low:+.3f} to {high:+.3f})."
        )


@dataclass(frozen=True, kw_only=True)
class OfLongWindows(Measurement):
    """The loss by position beyond the trained length. It is measured if a decoder reads longer windows.

    If the model has a document mask or deleted parts, or the split is too short, the result has only the reason.
    """

    result = BeyondTrainedLength

    sinks: int = 0
    """In a context beyond the trained length, also measure the loss with a cache that keeps this many first tokens
    (attention sinks) and the newest; 0 leaves it out."""

    def check(self, run: Run, options: EvaluationOptions) -> None:
        model, trained = run.trained_recipe.model, run.trained_recipe.model.context_length
        if run.recipe.model.context_length <= trained:
            raise ValueError(
                f"`sinks` is {self.sinks}, which is for texts beyond the trained length of {trained} tokens: give a "
                f"longer `context`, such as {4 * trained}"
            )
        check_sinks(model, self.sinks, trained)

    @property
    def shown(self) -> bool:
        return True

    def measure(self, split: ScoredSplit) -> BeyondTrainedLength | None:
        window, trained = split.plan.windows.window, window_of(split.plan.run.trained_recipe)
        if window <= trained or not isinstance(split.objective, NextToken):
            return None
        if why := _reason_to_leave_out(split, window):
            return BeyondTrainedLength(0, trained, left_out=f"No loss beyond the trained length: {why}.")
        assert isinstance(split.stream, TokenStream)
        texts = min(TEXTS, (split.stream.tokens - 1) // window)
        with Bar("reading long texts", texts * window, "tok") as bar:
            losses = losses_of_texts(split, trained, self.sinks, bar.update)
        return beyond_trained_length(losses, trained)


MEASUREMENT = OfLongWindows


def _reason_to_leave_out(split: ScoredSplit, window: int) -> str | None:
    """Return why a split has no loss of long windows; None if it has one."""
    assert isinstance(split.stream, TokenStream)
    if split.plan.options.without:  # the parts are only absent while the split is scored
        return "parts of the model are deleted"
    if split.model.config.document_mask:
        return "the model has a document mask and does not see earlier documents"
    if split.stream.tokens <= 2 * window:
        return f"the split has {split.stream.tokens:,} tokens, too few for two texts of {window:,} tokens"
    return None


@torch.no_grad()
def losses_of_texts(split: ScoredSplit, trained: int, sinks: int, progress: Callable[[float], None]) -> Losses:
    """Return the losses of up to TEXTS windows of a split, drawn with seed 0.

    `trained`: the trained length; `sinks`: first tokens that a cache keeps, 0 to measure none.
    """
    window, stream = split.plan.windows.window, split.stream
    assert isinstance(stream, TokenStream)
    count = (stream.tokens - 1) // window
    starts = np.sort(np.random.default_rng(SEED).choice(count, min(count, TEXTS), replace=False)) * window
    short = cast("LanguageModel", reconfigured(split.model, split.plan.run.trained_recipe.model))
    kept = {WITHOUT_SINKS: 0, f"with {sinks} sink{'s' * (sinks > 1)}": sinks} if sinks else {}
    losses: dict[str, list[np.ndarray]] = {AT_ONCE: [], IN_WINDOWS: [], **{name: [] for name in kept}}
    together = windows_per_batch(window)
    for first in range(0, len(starts), together):
        chosen = starts[first : first + together]
        losses[AT_ONCE].append(_nats(split.model, stream, chosen, window))
        losses[IN_WINDOWS] += [_nats_in_windows(short, stream, int(start), window, trained) for start in chosen]
        for name, first_tokens in kept.items():
            losses[name].append(_nats_with_sinks(short, stream, chosen, window, trained, first_tokens))
        progress((first + len(chosen)) * window)
    return {name: np.concatenate(parts) for name, parts in losses.items()}


def _nats(model: LanguageModel, stream: TokenStream, starts: np.ndarray, window: int) -> np.ndarray:
    """Return the losses (N, window) of the windows from `starts` (N,) of a stream."""
    batch = NextToken(window).batch(stream, starts)
    nats = target_nats(model, batch, np.ones(batch.targets.shape, bool)).cpu().numpy()
    return nats.reshape(batch.targets.shape)


def _nats_in_windows(model: LanguageModel, stream: TokenStream, start: int, tokens: int, window: int) -> np.ndarray:
    """Return the losses (1, tokens) of a text that is read in windows."""
    offsets = np.array([*range(0, tokens - window, max(1, window // 4)), tokens - window])
    together = windows_per_batch(window)
    parts = [_nats(model, stream, start + offsets[i : i + together], window) for i in range(0, len(offsets), together)]
    nats = np.empty((1, tokens))
    for offset, of_window in reversed([*zip(offsets, np.concatenate(parts), strict=True)]):  # the first one stays
        nats[0, offset : offset + window] = of_window
    return nats


def _nats_with_sinks(
    model: LanguageModel, stream: TokenStream, starts: np.ndarray, tokens: int, capacity: int, sinks: int
) -> np.ndarray:
    """Return the losses (N, tokens) of texts from `starts` (N,), read with a `SinkCache` of `capacity` tokens."""
    batch, prepared = NextToken(tokens).batch(stream, starts), prepare(model, len(starts))
    ids, targets = (torch.from_numpy(each).to(prepared.device) for each in (batch.inputs, batch.targets))
    cache = SinkCache(prepared.stack, len(ids), capacity, dtype=prepared.dtype, device=ids.device, sinks=sinks)
    read(prepared, cache, ids[:, :capacity])
    nats = [_nats(model, stream, starts, capacity)]  # the cache forgets nothing yet
    for step in range(capacity, tokens):
        logits = prepared.logits(read(prepared, cache, ids[:, step : step + 1])).float()
        nats.append(token_nll(logits, targets[:, step]).cpu().numpy()[:, None])
    return np.concatenate(nats, axis=1)


def beyond_trained_length(losses: Losses, trained: int) -> BeyondTrainedLength:
    """Return the result of losses (texts, positions), of which the first `trained` positions are as in training."""
    texts, tokens = losses[IN_WINDOWS].shape
    edges = np.linspace(0, tokens, PARTS + 1).round().astype(int).tolist()
    places = [*pairwise(edges), (trained, tokens)]
    others = [name for name in losses if name != IN_WINDOWS]
    whole = [*losses.values(), *(losses[name] - losses[IN_WINDOWS] for name in others)]
    means = np.array([[bits(1) * nats[:, first:last].mean(axis=1) for nats in whole] for first, last in places])
    columns = means.reshape(-1, texts).T
    drawn = resampled_sums(columns, seed=SEED) / texts
    found = [(float(column.mean()), *interval(draws)) for column, draws in zip(columns.T, drawn.T, strict=True)]
    rows = []
    for (first, last), number in zip(places, range(0, len(found), len(whole)), strict=True):
        of_losses, differences = found[number:][: len(losses)], found[number:][len(losses) : len(whole)]
        loss, difference = dict(zip(losses, of_losses, strict=True)), dict(zip(others, differences, strict=True))
        rows.append(Part(first + 1, last, loss, difference))
    curves = {name: _curves(nats) for name, nats in losses.items()}
    return BeyondTrainedLength(texts, trained, tuple(rows), curves)


def _curves(nats: np.ndarray) -> Curves:
    """Return the mean of losses (texts, positions) at each position, and its standard error."""
    errors = nats.std(axis=0, ddof=1) / np.sqrt(len(nats))
    return Curves(tuple(nats.mean(axis=0).tolist()), tuple(errors.tolist()))

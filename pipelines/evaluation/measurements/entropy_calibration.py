"""Entropy calibration: a model's entropy on texts that it generates, and its loss on real text at the same positions.

A text starts with the first token x_0 of a window of the split. The model generates the rest of the window, sampling
each token at temperature 1. The entropy at position t is

    H_t = E[ -sum_v p(v | x_<t) log2 p(v | x_<t) ]      bits per token, with generated x_1 ... x_(t-1)

which is also the expected surprisal of x_t. For a calibrated model it equals the loss at position t. In practice it
drifts from the loss as the text grows (Braverman et al. 2020; "On the Entropy Calibration of Language Models", 2025).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.decoding.generation import stream as generated
from lm.decoding.packed import prepare
from lm.decoding.sampling import draw
from lm.metrics.intervals import interval, resampled_sums
from lm.metrics.predictions import entropy
from lm.metrics.units import bits
from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.measurement import Measurement, Result, Section, Table
from pipelines.evaluation.planning import EvaluationOptions
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import Stream, windows_per_batch
from pipelines.run.folder import Run
from pipelines.training.batch_loss import target_nats
from pipelines.training.batch_objectives import NextToken

SEED = 0

Progress = Callable[[float], None]


Estimate = tuple[float, float, float]
"""A mean with its 95 % interval, of a bootstrap over windows of the split: (mean, low, high), in bits per token."""


@dataclass(frozen=True)
class Positions:
    """The positions `first` to `last` of the texts; 1 is the token after x_0."""

    first: int
    last: int
    generated: Estimate
    """Entropy on generated texts"""
    validation: Estimate
    """Loss on the real windows"""
    difference: Estimate

    def row(self) -> tuple[str, list[str]]:
        """Return a row of the table."""
        name = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        difference = "{:.3f} ({:.3f} to {:.3f})".format(*self.difference)
        return name, [f"{self.generated[0]:.3f}", f"{self.validation[0]:.3f}", difference]


@dataclass(frozen=True)
class CalibratedEntropy(Result):
    """The entropy calibration of a split, or the reason why there is none."""

    key = "entropy_calibration"
    section = Section(
        "Entropy of generated text",
        "Entropy calibration: the model generates texts at temperature 1, each from the first token of a window of the "
        'split. "Generated text" is the mean entropy of its predictions on these texts, "real text" its mean loss on '
        "the windows themselves. The two are equal for a calibrated model. The interval is from a bootstrap over "
        "windows. All values are bits per token, by position.",
    )

    texts: int
    positions: tuple[Positions, ...] | None
    """A row for each half octave of positions, and a last row for all"""
    left_out: str | None
    tokens: int | None = None
    seed: int | None = None

    def parts(self) -> list[Table | str]:
        if self.positions is None:
            return [self.left_out or ""]
        title = f"bits per token by position, in {self.texts:,} generated texts"
        heads = ["generated text", "real text", "difference, 95 % interval"]
        return [Table(title, "position", heads, [row.row() for row in self.positions])]


@dataclass(frozen=True, kw_only=True)
class EntropyCalibration(Measurement):
    """The entropy of a model on texts that it generates."""

    result = CalibratedEntropy
    shown_by = "entropy_calibration"

    entropy_calibration: int = 0
    """Number of texts that a decoder generates, to compare its entropy on them with its loss on real text; 0 leaves it
    out."""

    def check(self, run: Run, options: EvaluationOptions) -> None:
        texts = self.entropy_calibration
        if texts < 0 or texts == 1:
            raise ValueError(f"`entropy_calibration` is {texts}, but must be at least 2 texts, or 0 to leave it out")

    def measure(self, split: ScoredSplit) -> CalibratedEntropy | None:
        texts, window = self.entropy_calibration, split.plan.windows.window
        if not texts:
            return None
        if why := reason_to_leave_out(split.model.config, split.stream, window):
            return CalibratedEntropy(0, None, why)
        assert isinstance(split.stream, TokenStream)
        with Bar("writing texts", texts * window, "tok") as bar:
            return entropy_calibration(split.model, split.stream, window, texts, progress=bar.update)


MEASUREMENT = EntropyCalibration


def reason_to_leave_out(config: ModelConfig, stream: Stream, window: int) -> str | None:
    """Return why a model or a split has no entropy calibration; None if it has one."""
    if config.architecture != "decoder" or not isinstance(stream, TokenStream):
        return f"no entropy calibration: only decoders have one, and the model's architecture is {config.architecture}."
    if config.document_mask:
        return "no entropy calibration: the model has a document mask and does not see earlier documents."
    if stream.tokens <= 2 * window:  # the bootstrap draws windows
        return f"no entropy calibration: the split has {stream.tokens:,} tokens, but must be longer than two windows."
    return None


@torch.no_grad()
def entropy_calibration(
    model: LanguageModel, stream: TokenStream, window: int, texts: int, progress: Progress = lambda done: None
) -> CalibratedEntropy:
    """Return the calibration on `texts` windows of `window` tokens, drawn with seed 0.

    The split must be longer than two windows.
    """
    windows = (stream.tokens - 1) // window
    rng = np.random.default_rng(SEED)
    starts = np.sort(rng.choice(windows, texts, replace=texts > windows)) * window
    device = next(model.parameters()).device
    sampler = torch.Generator(device).manual_seed(SEED)
    objective = NextToken(window)
    own: list[np.ndarray] = []
    real: list[np.ndarray] = []
    together = windows_per_batch(window)
    for first in range(0, texts, together):
        batch = objective.batch(stream, starts[first : first + together])
        prompts = torch.from_numpy(batch.inputs[:, :1]).to(device)
        steps = []
        for entropies in _entropies(model, prompts, window, sampler):
            steps.append(entropies)
            progress(first * window + len(steps) * len(prompts))
        own.append(torch.stack(steps, dim=-1).cpu().numpy())
        nats = target_nats(model, batch, batch.weights > 0)
        real.append(nats.view(batch.targets.shape).cpu().numpy())
    positions = _rows(bits(1) * np.concatenate(own), bits(1) * np.concatenate(real), starts)
    return CalibratedEntropy(texts, tuple(positions), None, window, SEED)


def half_octaves(window: int) -> list[tuple[int, int]]:
    """Return the first and last position of each bin from 1 to `window`. Bins start at powers of root 2."""
    starts = sorted({round(2 ** (k / 2)) for k in range(64)} & set(range(1, window + 1)))
    return [(first, after - 1) for first, after in pairwise([*starts, window + 1])]


def _entropies(model: LanguageModel, prompts: Tensor, tokens: int, sampler: torch.Generator) -> Iterator[Tensor]:
    """Yield the entropies in nats, (B,), of each step of generating texts that continue `prompts` (B, 1)."""
    entropies: list[Tensor] = []

    def choose(logits: Tensor) -> Tensor:
        entropies.append(entropy(logits))
        return draw(logits, sampler)

    for _ in generated(prepare(model), prompts, tokens, sampler=choose):
        yield entropies[-1]


def _rows(own: np.ndarray, real: np.ndarray, starts: np.ndarray) -> list[Positions]:
    """Return the rows of positions; `own` and `real` (texts, positions) are bits per token.

    `starts` (texts,) are the starts of their windows. The bootstrap draws windows, each with all its texts.
    """
    texts, window = own.shape
    places = [*half_octaves(window), (1, window)]
    means = [
        [of_text[:, first - 1 : last].mean(axis=1) for of_text in (own, real, own - real)] for first, last in places
    ]
    columns = np.array(means).reshape(-1, texts).T
    unit = np.unique(starts, return_inverse=True)[1]
    sums = np.stack([np.bincount(unit, column) for column in (*columns.T, np.ones(texts))], axis=1)
    *drawn, counts = resampled_sums(sums, seed=SEED).T
    estimates = [
        (float(values.mean()), *interval(draws / counts)) for values, draws in zip(columns.T, drawn, strict=True)
    ]
    return [Positions(first, last, *estimates[3 * i : 3 * i + 3]) for i, (first, last) in enumerate(places)]

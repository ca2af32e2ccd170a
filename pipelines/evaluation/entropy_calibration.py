"""Entropy calibration: a model's entropy on texts that it generates, and its loss on real text at the same positions.

A text starts with the first token x_0 of a window of the split. The model generates the rest of the window, sampling
each token at temperature 1. The entropy at position t is

    H_t = E[ -sum_v p(v | x_<t) log2 p(v | x_<t) ]      bits per token, with generated x_1 ... x_(t-1)

which is also the expected surprisal of x_t. For a calibrated model it equals the loss at position t. In practice it
drifts from the loss as the text grows (Braverman et al. 2020; "On the Entropy Calibration of Language Models", 2025).
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lm.analysis.bootstrap import interval, resampled_sums
from lm.analysis.metrics import bits, entropy, token_nll
from lm.config import ModelConfig
from lm.decoding.generation import stream as generated
from lm.decoding.packed import prepare
from lm.decoding.sampling import draw
from lm.model import LanguageModel
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.windows import Stream, windows_per_batch
from pipelines.training.batch import hidden_states
from pipelines.training.objectives import NextToken

SEED = 0
COLUMNS = ("generated", "validation", "difference")

Progress = Callable[[float], None]


def check_entropy_calibration(texts: int) -> None:
    """Raise ValueError for a number of texts that has no interval; 0 leaves the calibration out."""
    if texts < 0 or texts == 1:
        raise ValueError(f"--entropy-calibration is {texts}, but must be at least 2 texts, or 0 to leave it out")


def left_out(why: str) -> dict[str, Any]:
    """Return the entry `entropy_calibration` of a model or split without calibration; `why` is the reason."""
    return {"texts": 0, "positions": None, "left_out": why}


def reason_to_leave_out(config: ModelConfig, stream: Stream, window: int) -> str | None:
    """Return why a model or a split has no entropy calibration; None if it has one."""
    if config.architecture != "decoder" or not isinstance(stream, TokenStream):
        return f"no entropy calibration: only decoders have one, and the model's architecture is {config.architecture}."
    if config.document_mask:
        return "no entropy calibration: the model has a document mask and does not see earlier documents."
    if stream.tokens <= window:
        return f"no entropy calibration: the split has {stream.tokens:,} tokens, but must be longer than a window."
    return None


@torch.no_grad()
def entropy_calibration(
    model: LanguageModel, stream: TokenStream, window: int, texts: int, progress: Progress = lambda done: None
) -> dict[str, Any]:
    """Return the entry `entropy_calibration` of a split: `texts` windows of `window` tokens, drawn with seed 0.

    The split must be longer than a window. `positions` has a row for each half octave of positions and a last row for
    all. A row has its `first` and `last` position (1 is the token after x_0). It also has `generated`, the entropy on
    generated texts, `validation`, the loss on the real windows, and their `difference`, in bits per token. Each is
    [mean, low, high], with the 95 % interval of a bootstrap over texts.
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
        real.append(_losses(model, batch.targets, hidden_states(model, batch, device, batch.weights > 0)))
    positions = _rows(bits(1) * np.concatenate(own), bits(1) * np.concatenate(real))
    return {"texts": texts, "tokens": window, "seed": SEED, "positions": positions, "left_out": None}


def half_octaves(window: int) -> list[tuple[int, int]]:
    """Return the first and last position of each bin from 1 to `window`. Bins start at powers of root 2."""
    starts = sorted({round(2 ** (k / 2)) for k in range(64)} & set(range(1, window + 1)))
    return [(first, after - 1) for first, after in pairwise([*starts, window + 1])]


def _entropies(model: LanguageModel, prompts: Tensor, tokens: int, sampler: torch.Generator) -> Iterator[Tensor]:
    """Yield the entropies in nats, (B,), of each step of generating texts that continue `prompts` (B, 1)."""
    found: list[Tensor] = []

    def choose(logits: Tensor) -> Tensor:
        found.append(entropy(logits))
        return draw(logits, sampler)

    for _ in generated(prepare(model), prompts, tokens, sampler=choose):
        yield found[-1]


def _losses(model: LanguageModel, targets: np.ndarray, hidden: Tensor) -> np.ndarray:
    """Return the loss of each of `targets` (B, P) in nats, (B, P) float64; `hidden` (B P, width) predicts them."""
    rows = torch.from_numpy(targets).to(hidden.device).flatten()
    parts = zip(hidden.split(512), rows.split(512), strict=True)
    nats = torch.cat([token_nll(model.logits(states).float(), ids) for states, ids in parts])
    return nats.double().view(targets.shape).cpu().numpy()


def _rows(own: np.ndarray, real: np.ndarray) -> list[dict[str, Any]]:
    """Return the rows of `positions`; `own` and `real` (texts, positions) are bits per token."""
    texts, window = own.shape
    places = [*half_octaves(window), (1, window)]
    means = [[each[:, first - 1 : last].mean(axis=1) for each in (own, real, own - real)] for first, last in places]
    columns = np.array(means).reshape(-1, texts).T
    drawn = resampled_sums(columns, seed=SEED) / texts
    found = [[float(values.mean()), *interval(draws)] for values, draws in zip(columns.T, drawn.T, strict=True)]
    return [
        {"first": first, "last": last} | dict(zip(COLUMNS, found[3 * i : 3 * i + 3], strict=True))
        for i, (first, last) in enumerate(places)
    ]


HEADS = ("generated text", "real text", "difference, 95 % interval")
DEFINITION = (
    "Entropy calibration: the model generates texts at temperature 1, each from the first token of a window of the "
    'split. "Generated text" is the mean entropy of its predictions on these texts, "real text" its mean loss on the '
    "windows themselves. The two are equal for a calibrated model. The interval is from a bootstrap over texts."
)


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row: its positions and the values below HEADS."""
    name = f"{row['first']}" if row["first"] == row["last"] else f"{row['first']} to {row['last']}"
    own, real = (f"{row[column][0]:.3f}" for column in COLUMNS[:2])
    return name, own, real, "{:.3f} ({:.3f} to {:.3f})".format(*row["difference"])

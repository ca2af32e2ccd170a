"""Pseudo-perplexity: the loss of a masked model at positions that are each masked alone (Salazar et al. 2020)."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from lm.metrics.baselines import Unigram
from lm.metrics.units import perplexity
from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import lone_mask_windows
from pipelines.training.batch_loss import target_nats
from pipelines.training.batch_objectives import MaskedToken
from tokenizer import Tokenizer

PSEUDO_POSITIONS = 2048


@dataclass(frozen=True, kw_only=True)
class PseudoPerplexity(Result):
    """The pseudo-perplexity of a split."""

    pseudo_cross_entropy: float | None = number(
        "pseudo-cross-entropy, nats per token", "Mean nats of up to 2,048 positions, each masked alone.", 4
    )
    pseudo_perplexity: float | None = number(
        "pseudo-perplexity",
        "exp of the pseudo-cross-entropy. Not comparable with a perplexity.",
        2,
        headline=True,
        exp_of="pseudo_cross_entropy",
    )
    unigram_pseudo_perplexity: float | None = number(
        "unigram baseline, pseudo-perplexity", "The unigram baseline at the positions of the pseudo-perplexity.", 2
    )
    pseudo_tokens: int = number("positions masked alone", "Positions in the mean of the pseudo-perplexity.", 0)


@dataclass(frozen=True, kw_only=True)
class OfMaskedModel(Measurement):
    """The pseudo-perplexity of an encoder. It is measured unless parts of the model are deleted."""

    result = PseudoPerplexity

    def measure(self, split: ScoredSplit) -> PseudoPerplexity | None:
        if not (isinstance(split.objective, MaskedToken) and isinstance(split.stream, TokenStream)):
            return None
        if split.plan.options.without:  # the parts are only absent while the split is scored
            return None
        unigram = split.baselines.unigram if split.baselines else None
        with Bar("masking one by one", PSEUDO_POSITIONS, "tok") as bar:
            return pseudo_perplexity(split.model, split.stream, split.objective, split.tokenizer, unigram, bar)


MEASUREMENT = OfMaskedModel


@torch.no_grad()
def pseudo_perplexity(
    model: LanguageModel,
    stream: TokenStream,
    objective: MaskedToken,
    tokenizer: Tokenizer,
    unigram: Unigram | None,
    bar: Bar,
) -> PseudoPerplexity:
    """Return the pseudo-perplexity of a masked model (Salazar et al., 2020), and that of the unigram.

    It is exp of the mean nats of up to `PSEUDO_POSITIONS` tokens, each masked alone in its block. They are drawn with
    seed 0 from the ordinary (not special) tokens in whole blocks.
    """
    whole = stream.blocks * objective.length  # a corpus has more tokens, which fill no block
    special = np.isin(stream.read(0, whole), sorted(tokenizer.special_tokens.values()))
    ordinary = np.flatnonzero(~special)
    size = min(PSEUDO_POSITIONS, len(ordinary))
    chosen = np.sort(np.random.default_rng(0).choice(ordinary, size, replace=False))
    columns = chosen % objective.length
    total = 0.0
    for windows in lone_mask_windows(stream, objective, chosen - columns, columns):
        total += float(target_nats(model, windows.batch, windows.scored).sum())
        bar.update(windows.first + len(windows.scored))
    baseline = None
    if unigram:
        nats = unigram.nll(np.concatenate([stream.read(int(i), 1) for i in chosen]))
        baseline = perplexity(math.fsum(nats) / size)
    return PseudoPerplexity(
        pseudo_cross_entropy=total / size,
        pseudo_perplexity=perplexity(total / size),
        unigram_pseudo_perplexity=baseline,
        pseudo_tokens=size,
    )

"""The loss at masked tokens of a decoder that was also trained to predict masked tokens (GPT-BERT)."""

from dataclasses import dataclass

import numpy as np
import torch

from lm.metrics.units import bits, perplexity
from pipelines.cli.display import Bar
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import windows_per_batch
from pipelines.training.batch_loss import target_nats
from pipelines.training.batch_objectives import NextOrMaskedToken, make_objective, validation_batch
from pipelines.training.masking import Masking


@dataclass(frozen=True)
class MaskedRows(Result):
    """The loss of a split at masked tokens."""

    masked_cross_entropy: float = number(
        "cross-entropy of masked tokens, nats",
        "Mean of -ln p over masked tokens. The model attends to both sides, and the position before a masked token "
        "predicts it. 15 % of the tokens are selected, as for an encoder.",
        4,
    )
    masked_cross_entropy_bits: float = number(
        "cross-entropy of masked tokens, bits", "The same in bits.", 4, headline=True
    )
    masked_perplexity: float | None = number(
        "perplexity of masked tokens",
        "exp of the cross-entropy of masked tokens in nats.",
        2,
        exp_of="masked_cross_entropy",
    )
    bits_per_masked_byte: float | None = number(
        "bits per byte of masked tokens",
        "Total bits of the masked tokens, divided by their bytes. It is not a code length.",
        4,
    )
    masked_tokens: int = number("masked tokens", "Tokens in the cross-entropy of masked tokens.", 0)


@dataclass(frozen=True, kw_only=True)
class OfMaskedRows(Measurement):
    """The loss at masked tokens, for runs with `train.masked_rows`.

    It is not measured if parts of the model are deleted, or if no token is masked.
    """

    result = MaskedRows

    @torch.no_grad()
    def measure(self, split: ScoredSplit) -> MaskedRows | None:
        run, stream = split.plan.run, split.stream
        if not run.recipe.train.masked_rows or split.plan.options.without or not isinstance(stream, TokenStream):
            return None
        window, model = split.plan.windows.window, run.recipe.model
        masks = Masking(rows=1.0)
        objective = make_objective("next-token", window, split.tokenizer, model.document_mask, run.facts, masks)
        assert isinstance(objective, NextOrMaskedToken)
        nats, targets = _scored(split, stream, objective)
        if not len(nats):
            return None
        per_byte = None
        if split.tokenizer.is_lossless and (size := int(split.tokenizer.token_byte_lengths[targets].sum())):
            per_byte = bits(float(nats.sum()) / size)
        mean = float(nats.mean())
        return MaskedRows(mean, bits(mean), perplexity(mean), per_byte, len(nats))


MEASUREMENT = OfMaskedRows


def _scored(split: ScoredSplit, stream: TokenStream, objective: NextOrMaskedToken) -> tuple[np.ndarray, np.ndarray]:
    """Return -ln p (N,) of the masked tokens of a stream, float64, and their ids (N,)."""
    nats, targets = [np.empty(0)], [np.empty(0, np.int64)]
    stream = TokenStream(stream.chunks(), objective.length)  # the blocks of the dataset may have another length
    rows = windows_per_batch(objective.length)
    with Bar("masked tokens", stream.tokens, "tok") as bar:
        for first in range(0, stream.blocks, rows):
            batch = validation_batch(stream, objective, first, rows)
            chosen = batch.weights > 0
            if chosen.any():
                nats.append(target_nats(split.model, batch, chosen).cpu().numpy())
                targets.append(batch.targets[chosen])
            bar.update((first + len(chosen)) * objective.length)
    return np.concatenate(nats), np.concatenate(targets)

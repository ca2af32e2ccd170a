"""The scores of a model on the windows of a split."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from lm.metrics.predictions import PredictionAccumulator, divergences, token_nll
from lm.model import LanguageModel
from pipelines.cli.display import Bar
from pipelines.evaluation.documents import known_byte_lengths
from pipelines.evaluation.measurement import Observer
from pipelines.evaluation.ngrams import Baselines, BaselineScores
from pipelines.evaluation.split import Chunk
from pipelines.evaluation.token_scores import TokenScores, join, scores_of
from pipelines.evaluation.windows import Windows
from pipelines.training.batch import hidden_states, logits_in_parts
from tokenizer import Tokenizer

DIVERGENCES = ("kl_bits", "reverse_kl_bits", "js_bits")


@torch.no_grad()
def score(
    model: LanguageModel,
    windows: Iterator[Windows],
    tokenizer: Tokenizer,
    baselines: Baselines | None,
    *,
    window: int,
    other: LanguageModel | None = None,
    observers: Sequence[Observer] = (),
    names: tuple[str, str] = ("the run", "the other run"),
    bar: Bar,
) -> tuple[dict[str, Any], TokenScores]:
    """Return the numbers of evaluation.json for one split (see `pipelines.evaluation.numbers`), and each token's score.

    `other` is a model to measure the divergence from. `observers` see all logits. `names` are the names of both models.
    Raises ValueError with the name if the logits of a model are not finite.
    """
    device = next(model.parameters()).device
    # An imported model can have more entries than its tokenizer. They are never targets.
    lengths = torch.zeros(model.config.vocab_size, dtype=torch.int32)
    lengths[: tokenizer.vocab_size] = torch.tensor(known_byte_lengths(tokenizer))
    predictions = PredictionAccumulator(len(lengths), lengths, window)
    baseline_scores = BaselineScores(baselines) if baselines else None
    divergence_sums = [0.0, 0.0, 0.0]
    tokens: list[TokenScores] = []
    done = 0
    for each in windows:
        batch = each.batch
        rows, columns = np.nonzero(each.scored)
        hidden = hidden_states(model, batch, each.scored)
        other_hidden = hidden_states(other, batch, each.scored) if other else None
        chunks: tuple[list[torch.Tensor], ...] = ([], [], [])
        for part, logits in logits_in_parts(model, hidden):
            places = batch.targets[rows[part], columns[part]], columns[part]
            targets, positions = (torch.from_numpy(array).to(device) for array in places)
            nats, correct = predictions.update(logits, targets, positions)
            _check_finite(nats, names[0])
            indices = each.indices[rows[part], columns[part]]
            for observer in observers:
                observer.update(Chunk(hidden[part], logits, targets, nats, indices))
            chunks[0].append(nats)
            chunks[1].append(correct)
            if other is not None and other_hidden is not None:
                other_logits = other.logits(other_hidden[part]).float()
                found = divergences(logits, other_logits)
                divergence_sums = [
                    total + float(each_pair.sum()) for total, each_pair in zip(divergence_sums, found, strict=True)
                ]
                other_nats = token_nll(other_logits, targets)
                _check_finite(other_nats, names[1])
                chunks[2].append(nats - other_nats)
        if len(rows):
            tokens.append(scores_of(each, rows, columns, *chunks))
        if baseline_scores:
            baseline_scores.update(each.previous[rows, columns], batch.targets[rows, columns])
        done += len(rows)
        bar.update(done)
    numbers = predictions.result() | (baseline_scores.result() if baseline_scores else {})
    if other is not None:
        scored = max(1, numbers["tokens"])
        numbers |= {name: total / scored for name, total in zip(DIVERGENCES, divergence_sums, strict=True)}
    return numbers, join(tokens)


def _check_finite(nats: torch.Tensor, name: str) -> None:
    """Raise ValueError if losses (N,) of the model `name` are NaN, as they are if a logit is not finite."""
    if bool(nats.isnan().any()):
        raise ValueError(
            f"{name}: the model's logits are not finite: its training diverged, choose an earlier `checkpoint`"
        )

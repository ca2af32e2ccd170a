"""The pass of a model over the windows of a split: the score of each token, and what observers sum up."""

import time
from collections.abc import Mapping
from dataclasses import fields
from typing import TypeVar

import numpy as np
import torch

from lm.config import SELECTED
from lm.metrics.predictions import PredictionAccumulator
from pipelines.cli.display import Bar, duration, quantity, say
from pipelines.evaluation.documents import known_byte_lengths
from pipelines.evaluation.measurement import Observer
from pipelines.evaluation.split import Chunk, ScoredSplit, Split
from pipelines.evaluation.windows import TokenScores, windows_over
from pipelines.run.folder import Run
from pipelines.training.batch_loss import hidden_states, logits_in_parts

K = TypeVar("K")
MEASURED_SECONDS = 1.0  # after which the time of a pass is known
LONG_SECONDS = 10.0  # of a pass whose time is worth a message


@torch.no_grad()
def score(
    split: Split, observers: Mapping[K, Observer] | None = None, failures: dict[K, ValueError] | None = None
) -> ScoredSplit:
    """Return a split with the scores of its tokens; `observers` see all logits.

    An observer that raises ValueError sees no more of them, and its error is added to `failures` under its name.
    Raises ValueError if no position is scored, or if the logits of the model are not finite.
    """
    windows, total = windows_over(split.stream, split.objective, split.plan.windows)
    model, device = split.model, next(split.model.parameters()).device
    # An imported model can have more entries than its tokenizer. They are never targets.
    lengths = torch.zeros(model.config.vocab_size, dtype=torch.int32)
    lengths[: split.tokenizer.vocab_size] = torch.tensor(known_byte_lengths(split.tokenizer))
    predictions = PredictionAccumulator(len(lengths), lengths, split.objective.positions)
    watching, failed = dict(observers or {}), {} if failures is None else failures
    tokens: list[TokenScores] = []
    done, forecast = 0, _Forecast(f"scoring {split.name}", total or split.stream.tokens * SELECTED)
    with Bar(f"scoring {split.name}", total, "tok") as bar:
        for batch in windows:
            rows, columns = np.nonzero(batch.scored)
            hidden = hidden_states(model, batch.batch, batch.scored)
            for part, logits in logits_in_parts(model, hidden):
                at = rows[part], columns[part]
                targets, positions = (torch.from_numpy(a).to(device) for a in (batch.batch.targets[at], columns[part]))
                nats, correct = predictions.update(logits, targets, positions)
                check_finite(nats, split.plan.run)
                tokens.append(batch.scores(*at, nats.cpu().numpy(), correct.cpu().numpy()))
                _show(Chunk(batch, batch.indices[at], hidden[part], logits, targets, nats), watching, failed)
            done += len(rows)
            bar.update(done)
            forecast.update(done)
    whole = {field.name: getattr(split, field.name) for field in fields(split)}
    return ScoredSplit(**whole, predictions=predictions.result(), tokens=TokenScores.join(tokens))


class _Forecast:
    """The time of a long pass, printed once, as soon as the speed is known."""

    def __init__(self, task: str, total: float) -> None:
        self._task, self._total = task, total
        self._warm: tuple[int, float] | None = None
        self._is_known = False

    def update(self, done: int) -> None:
        """Set the tokens scored so far; the first windows warm up and are not measured."""
        now = time.perf_counter()
        self._warm = self._warm or (done, now)
        seconds = now - self._warm[1]
        if self._is_known or seconds < MEASURED_SECONDS:
            return
        self._is_known = True
        rate = (done - self._warm[0]) / seconds
        if rate and self._total / rate > LONG_SECONDS:
            takes = f"{self._task} takes about {duration(self._total / rate)}, at {quantity(rate, 'tok')}/s"
            say(f"{takes} (measured over the first windows)")


def _show(chunk: Chunk, observers: dict[K, Observer], failures: dict[K, ValueError]) -> None:
    """Show a chunk to `observers`, and move the errors of observers that fail to `failures`."""
    for name, observer in list(observers.items()):
        try:
            observer.update(chunk)
        except ValueError as error:
            failures[name] = error
            del observers[name]


def check_finite(nats: torch.Tensor, run: Run) -> None:
    """Raise ValueError if losses (N,) of `run` are NaN, as they are if a logit is not finite."""
    if bool(nats.isnan().any()):
        raise ValueError(
            f"{run.folder}: the model's logits are not finite: its training diverged, choose an earlier `checkpoint` "
            "or another run"
        )

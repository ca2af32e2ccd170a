"""Numbers of texts or of pairs of texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, Literal, Self

import numpy as np

from corpora.rows import Row
from lm.head_config import HeadConfig, Pooling, chosen_pooling
from lm.metrics.baselines import Ridge
from lm.metrics.labels import pearson, spearman
from pipelines.evaluation.measurement import Result, number
from pipelines.tasks.examples import Encoded
from pipelines.tasks.task import Example, Learned, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array

TEXTS = (("text",), ("sentence",), ("sentence1", "sentence2"), ("text1", "text2"))
NUMBERS = ("score", "value", "rating", "label")


@dataclass(frozen=True, kw_only=True)
class RegressionNumbers(Result):
    """The errors and correlations of predicted numbers."""

    rmse: float = number(
        "root mean squared error", "Square root of the mean squared error, in the unit of the target.", 4, headline=True
    )
    mean_absolute_error: float = number(
        "mean absolute error", "Mean of the absolute error, in the unit of the target.", 4
    )
    pearson: float | None = number(
        "Pearson correlation",
        "Linear correlation of targets and predictions; undefined if all of either are equal.",
        4,
        headline=True,
        default=None,
    )
    spearman: float | None = number(
        "Spearman correlation",
        "Pearson correlation of the ranks; equal values have their mean rank.",
        4,
        headline=True,
        default=None,
    )

    @classmethod
    def of(cls, targets: Array, predictions: Array) -> "RegressionNumbers":
        """Return the errors and correlations of targets and predictions, (N,) float64."""
        errors = predictions - targets
        return cls(
            rmse=float(np.sqrt((errors**2).mean())),
            mean_absolute_error=float(np.abs(errors).mean()),
            pearson=pearson(targets, predictions),
            spearman=spearman(targets, predictions),
        )

    def sentences(self, tokens: int) -> list[str]:
        if self.pearson is not None:
            return []
        return ["The correlations are undefined, because all targets or all predictions are equal."]


@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """Numbers of texts, or of pairs of texts."""

    name = "regression"
    usual = tuple((*texts, target) for texts, target in product(TEXTS, NUMBERS))
    kinds = (RegressionNumbers,)
    better = "lowest"

    pooling: Pooling | Literal["auto"] = "auto"
    """Input of the head. first or last: this position. mean: the mean over all positions. auto: mean for encoders,
    otherwise last"""
    center: bool = True
    """Subtract the mean of the training numbers. The export of a decoder without biases needs `center=False`"""
    mean: Annotated[float, Learned] = 0.0
    """Mean of the training targets; 0 without `center`"""
    deviation: Annotated[float, Learned] = 1.0
    """Root mean square of the training targets minus `mean`. The model learns (target - mean) / deviation"""

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        names = self.names
        texts = tuple(row.text(name) for name in names[:-1])
        if not texts[0]:
            return None
        return Example(row, texts, _number(row, names[-1]) if labelled else None)

    def learn(self, examples: Sequence[Example]) -> Self:
        targets = np.array([example.target for example in examples])
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(targets.mean()) if self.center else 0.0
            deviation = float(np.sqrt(((targets - mean) ** 2).mean()))
        if (targets == targets[0]).all() or not deviation:
            raise ValueError(f"all examples have the number {examples[0].target:g}: give some with another")
        if not math.isfinite(deviation):
            raise ValueError("the numbers are too large: divide them by a constant")
        return replace(self, mean=mean, deviation=deviation)

    def head(self, architecture: str) -> HeadConfig:
        pooling = chosen_pooling(self.pooling, architecture)
        return HeadConfig(kind="sequence", pooling=pooling, loss="squared")

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        texts = reader.ids_of_each([example.inputs for example in examples])
        given = [self.mean if example.target is None else example.target for example in examples]
        targets = ((np.array(given) - self.mean) / self.deviation).astype(np.float32)[:, None]
        return [reader.sequence(ids, target, i) for i, (ids, target) in enumerate(zip(texts, targets, strict=True))]

    def results(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        return [RegressionNumbers.of(_targets(examples), self._undo(outputs))]

    def baselines(
        self, training: Sequence[Example], examples: Sequence[Example], reader: TextReader
    ) -> dict[str, Result]:
        texts, others = (reader.joined_ids([example.inputs for example in part]) for part in (training, examples))
        targets = _targets(examples)
        ridge = Ridge.fit(texts, _targets(training), reader.tokenizer.vocab_size)
        return {
            "ridge regression on tokens": RegressionNumbers.of(targets, ridge.predict(others)),
            "training mean": RegressionNumbers.of(targets, np.full(len(targets), _targets(training).mean())),
        }

    def predictions(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        return [{"prediction": float(value)} for value in self._undo(outputs)]

    def summary(self, example: Example, fields: dict[str, Any]) -> str:
        return super().summary(example, {"prediction": f"{fields['prediction']:.4g}"})

    def _undo(self, outputs: Sequence[Array]) -> Array:
        """Return predictions (N,) float64 in the unit of the target. Outputs are N arrays (1, 1)."""
        values: Array = np.stack(outputs)[:, 0, 0].astype(np.float64) * self.deviation + self.mean
        return values


def _targets(examples: Sequence[Example]) -> Array:
    return np.array([example.target for example in examples], np.float64)


def _number(row: Row, name: str) -> float:
    """Return a finite number, given as a number or as text. Raises ValueError for anything else."""
    value = row.value(name, "a number", int, float, str)
    try:
        parsed = float(value)
    except (ValueError, OverflowError):
        parsed = math.nan
    if not math.isfinite(parsed):
        raise ValueError(f'"{name}" in {row.place} is {value!r:.60}, not a finite number: fix it')
    return parsed


TASK = Regression

"""Labels of texts or of pairs of texts, one each or several."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np

from corpora.rows import Row
from lm.head_config import HeadConfig, Pooling, chosen_pooling
from lm.metrics.baselines import NaiveBayes
from lm.metrics.labels import (
    by_label,
    calibration_error,
    f1_scores,
    log_softmax,
    macro_f1,
    matthews,
    micro_f1,
    most_confused,
    share_interval,
)
from pipelines.evaluation.measurement import Result, Section, Table, number
from pipelines.tasks.examples import Encoded
from pipelines.tasks.task import Example, Learned, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array

Label = str | int
SHOWN_MISTAKES = 10
SHOWN_LABELS = 40


@dataclass(frozen=True, kw_only=True)
class ClassNumbers(Result):
    """The numbers of a classifier of texts with one or several labels each."""

    accuracy: float = number(
        "accuracy",
        "Share of texts whose likeliest label is right; with several labels each, whose labels are all right.",
        4,
        headline=True,
    )
    accuracy_low: float = number("accuracy, low end", "Low end of the 95 % interval of the accuracy (Wilson).", 4)
    accuracy_high: float = number("accuracy, high end", "High end of the 95 % interval of the accuracy (Wilson).", 4)
    macro_f1: float = number("macro F1", "Unweighted mean of F1 over the labels that occur.", 4, headline=True)
    micro_f1: float | None = number(
        "micro F1",
        "F1 over all pairs of a text and a label. With one label each it equals the accuracy.",
        4,
        default=None,
    )
    matthews: float | None = number(
        "Matthews correlation", "Correlation of labels and predictions; 0 for a constant prediction.", 4, default=None
    )
    label_nats: float = number(
        "cross-entropy, nats per text", "Mean of -ln p, where p is the probability of the right label or labels.", 4
    )
    label_calibration: float | None = number(
        "calibration error of labels",
        "Expected gap between confidence and accuracy of the likeliest label, over 15 equal bins of confidence.",
        4,
        default=None,
    )

    def sentences(self, tokens: int) -> list[str]:
        return [
            f"The 95 % interval of the accuracy is {self.accuracy_low:.1%} to {self.accuracy_high:.1%}, over texts."
        ]


@dataclass(frozen=True)
class LabelScores(Result):
    """F1 of each label."""

    key = only = "labels"
    section = Section("Labels", "F1 = 2 TP / (2 TP + FP + FN). Texts: the texts with the label.")

    labels: dict[str, tuple[int, float | None]]
    """Number of texts with the label, and its F1; None if no text has the label and it is never predicted"""

    def parts(self) -> list[Table | str]:
        rows = [
            (label, [f"{texts:,}", "–" if f1 is None else f"{f1:.3f}"])
            for label, (texts, f1) in list(self.labels.items())[:SHOWN_LABELS]
        ]
        return [Table("F1 by label", "Label", ["texts", "F1"], rows)]


@dataclass(frozen=True)
class Mistake:
    """Number of texts with one label for which another label was predicted."""

    label: Label
    predicted: Label
    times: int


@dataclass(frozen=True)
class Confusions(Result):
    """The most frequent mistakes."""

    key = only = "confusions"
    section = Section("Mistakes", "The most frequent pairs of a label and another that the model gave instead.")

    confusions: tuple[Mistake, ...]

    def parts(self) -> list[Table | str]:
        rows = [(str(one.label), [str(one.predicted), f"{one.times:,}"]) for one in self.confusions]
        return [Table("Most frequent mistakes", "Label", ["taken for", "times"], rows, text=True)] if rows else []


@dataclass(frozen=True, kw_only=True)
class Classes(Task):
    """Labels of texts, or of pairs of texts. A column of lists gives each text several labels, or none."""

    name = "classes"
    usual = (
        ("text", "label"),
        ("sentence", "label"),
        ("sentence1", "sentence2", "label"),
        ("premise", "hypothesis", "label"),
        ("question1", "question2", "is_duplicate"),
        ("question", "sentence", "label"),
        ("text", "labels"),
    )
    kinds = (ClassNumbers, LabelScores, Confusions)

    pooling: Pooling | Literal["auto"] = "auto"
    """Input of the head. first or last: this position. mean: the mean over all positions. auto: mean for encoders,
    otherwise last. Pretraining does not train the first position to represent the text"""
    balance: bool = False
    """Weight the labels in the loss by the inverse of their frequency"""
    labels: Annotated[tuple[Label, ...], Learned] = ()
    several: Annotated[bool, Learned] = False
    class_weights: Annotated[tuple[float, ...], Learned] = ()

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        names = self.names
        texts = tuple(row.text(name) for name in names[:-1])
        if not texts[0]:
            return None
        if not labelled:
            return Example(row, texts)
        label = row.value(names[-1], "a label: a string, a whole number, or a list of them", str, int, list)
        if isinstance(label, list) and not all(isinstance(one, (str, int)) for one in label):
            raise ValueError(f'"{names[-1]}" in {row.place} is {label!r:.60}, not a list of labels: fix it')
        if names[-1] == "gold_label" and label == "-":  # MNLI: the annotators disagree
            return None
        return Example(row, texts, label)

    def classes(self, example: Example) -> tuple[Label, ...]:
        return tuple(_labels_of(example))

    def learn(self, examples: Sequence[Example]) -> Self:
        several = isinstance(examples[0].target, list)
        first: dict[type, Example] = {}
        for example in examples:
            for label in _labels_of(example):
                first.setdefault(type(label), example)
            if len(first) > 1 or isinstance(example.target, list) != several:
                one = next(iter(first.values()), examples[0])
                raise ValueError(
                    f"labels are of two kinds: {one.target!r:.60} in {one.row.place} and {example.target!r:.60} in "
                    f"{example.row.place}: make all strings, all whole numbers, or all lists of one of them"
                )
        labels = sorted({label for example in examples for label in _labels_of(example)})
        if len(labels) < (1 if several else 2):
            raise ValueError(
                f"all examples have the label {labels[0]!r}: give some with another"
                if labels
                else "no example has a label: give some with one"
            )
        learned = replace(self, labels=tuple(labels), several=several, class_weights=())
        if not self.balance:
            return learned
        if several:
            raise ValueError("`balance` is for one label each: leave it out")
        counts = np.bincount(learned._indices(examples), minlength=len(labels))
        weights = len(examples) / (len(labels) * counts)
        return replace(learned, class_weights=tuple(float(weight) for weight in weights))

    def check(self, examples: Sequence[Example]) -> None:
        """Raise ValueError for an example with an unknown label, or with a list of labels if the others have one."""
        wanted = "a list of labels" if self.several else "one label"
        for example in examples:
            if isinstance(example.target, list) != self.several:
                raise ValueError(
                    f"{example.row.place} has {example.target!r:.60}, but each training example has {wanted}: give "
                    f"{wanted} here too"
                )
        super().check(examples)

    def head(self, architecture: str) -> HeadConfig:
        pooling = chosen_pooling(self.pooling, architecture)
        loss: Literal["binary", "cross-entropy"] = "binary" if self.several else "cross-entropy"
        weights = self.class_weights
        return HeadConfig(kind="sequence", outputs=len(self.labels), pooling=pooling, loss=loss, class_weights=weights)

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        texts = reader.ids_of_each([example.inputs for example in examples])
        pairs = enumerate(zip(texts, self._targets(examples), strict=True))
        return [reader.sequence(ids, target, i) for i, (ids, target) in pairs]

    def results(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        if self.several:
            scores = np.stack(outputs)[:, :, 0]
            targets, said = self._targets(examples) > 0, scores > 0
            return [self._several(scores, targets), *self._by_label(targets, said)]
        logits = np.stack(outputs)[:, 0]
        targets, said = self._indices(examples), logits.argmax(axis=1)
        mistakes = [
            Mistake(self.labels[t], self.labels[p], n) for t, p, n in most_confused(targets, said, SHOWN_MISTAKES)
        ]
        return [self._single(logits, targets), *self._by_label(targets, said), Confusions(tuple(mistakes))]

    def baselines(
        self, training: Sequence[Example], examples: Sequence[Example], reader: TextReader
    ) -> dict[str, Result]:
        if self.several:
            frequencies = np.clip(self._targets(training).mean(axis=0), 1e-6, 1 - 1e-6)
            constant = np.log(frequencies / (1 - frequencies))
            return {
                "label frequencies": self._several(np.tile(constant, (len(examples), 1)), self._targets(examples) > 0)
            }
        sides = [reader.joined_ids([example.inputs for example in part]) for part in (training, examples)]
        labels, targets = self._indices(training), self._indices(examples)
        bayes = NaiveBayes.fit(sides[0], labels, len(self.labels), reader.tokenizer.vocab_size)
        frequent = np.log(np.bincount(labels, minlength=len(self.labels)) / len(labels))
        return {
            "naive Bayes": self._single(bayes.log_posteriors(sides[1]), targets),
            "most frequent label": self._single(np.tile(frequent, (len(targets), 1)), targets),
        }

    def predictions(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        if self.several:
            chances = [1 / (1 + np.exp(-scores[:, 0].astype(np.float64))) for scores in outputs]
            return [
                {
                    "prediction": [label for label, p in zip(self.labels, row, strict=True) if p > 0.5],
                    "probabilities": by_label(self.labels, row),
                }
                for row in chances
            ]
        rows = [np.exp(log_softmax(logits[0])) for logits in outputs]
        return [
            {
                "prediction": self.labels[int(row.argmax())],
                "probability": float(row.max()),
                "probabilities": by_label(self.labels, row),
            }
            for row in rows
        ]

    def _indices(self, examples: Iterable[Example]) -> Array:
        """Return the index of each label, (N,) int64."""
        places = {label: place for place, label in enumerate(self.labels)}
        return np.array([places[example.target] for example in examples], np.int64)

    def _targets(self, examples: Sequence[Example]) -> Array:
        """Return label indices (N, 1) int64; for several labels each, (N, L) float32. Without a target, all are 0."""
        places = {label: place for place, label in enumerate(self.labels)}
        if not self.several:
            return np.array([[places.get(example.target, 0)] for example in examples], np.int64)
        targets = np.zeros((len(examples), len(self.labels)), np.float32)
        for row, example in zip(targets, examples, strict=True):
            row[[places[label] for label in example.target or ()]] = 1
        return targets

    def _single(self, logits: Array, targets: Array) -> ClassNumbers:
        logs, said = log_softmax(logits), logits.argmax(axis=1)
        correct = said == targets
        low, high = share_interval(float(correct.mean()), len(targets))
        return ClassNumbers(
            accuracy=float(correct.mean()),
            accuracy_low=low,
            accuracy_high=high,
            macro_f1=macro_f1(targets, said, len(self.labels)),
            matthews=matthews(targets, said, len(self.labels)),
            label_nats=float(-logs[np.arange(len(targets)), targets].mean()),
            label_calibration=calibration_error(np.exp(logs.max(axis=1)), correct),
        )

    def _several(self, scores: Array, targets: Array) -> ClassNumbers:
        said = scores > 0
        exact = float((said == targets).all(axis=1).mean())
        low, high = share_interval(exact, len(targets))
        losses = np.logaddexp(0, np.where(targets, -scores, scores).astype(np.float64))
        return ClassNumbers(
            accuracy=exact,
            accuracy_low=low,
            accuracy_high=high,
            macro_f1=macro_f1(targets, said, len(self.labels)),
            micro_f1=micro_f1(targets, said),
            label_nats=float(losses.sum(axis=1).mean()),
        )

    def _by_label(self, targets: Array, said: Array) -> list[Result]:
        scores = f1_scores(targets, said, len(self.labels))
        counts = targets.sum(axis=0) if self.several else np.bincount(targets, minlength=len(self.labels))
        named = zip(self.labels, counts, scores, strict=True)
        return [LabelScores({str(label): (int(n), None if np.isnan(f1) else float(f1)) for label, n, f1 in named})]


def _labels_of(example: Example) -> list[Label]:
    if isinstance(example.target, list):
        return list(example.target)
    return [example.target]


TASK = Classes

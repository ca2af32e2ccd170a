"""Multiple choice: the right one of several answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, Self

import numpy as np

from corpora.rows import Row
from lm.head_config import HeadConfig, Pooling, chosen_pooling
from lm.metrics.labels import calibration_error, log_softmax, share_interval
from pipelines.evaluation.measurement import Result, number
from pipelines.tasks.examples import ABSENT, Encoded, batch_of
from pipelines.tasks.task import Example, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array

QUESTIONS = (("question",), ("context",), ("query",), ("sent1", "sent2"), ("context", "question"))
CHOICES = ("choices", "endings", "ending", "choice")
ANSWERS = ("label", "answer", "gold", "answerKey")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, kw_only=True)
class ChoiceNumbers(Result):
    """The numbers of a multiple-choice model."""

    choice_accuracy: float = number("accuracy", "Share of examples whose likeliest choice is right.", 4, headline=True)
    choice_accuracy_low: float = number(
        "accuracy, low end", "Low end of the 95 % interval of the accuracy (Wilson).", 4
    )
    choice_accuracy_high: float = number(
        "accuracy, high end", "High end of the 95 % interval of the accuracy (Wilson).", 4
    )
    chance: float = number("accuracy by chance", "Mean of 1 / C, where C is the number of choices of an example.", 4)
    choice_nats: float = number(
        "cross-entropy, nats per example", "Mean of -ln p, where p is the probability of the right choice.", 4
    )
    choice_calibration: float = number(
        "calibration error of choices",
        "Expected gap between confidence and accuracy of the likeliest choice, over 15 equal bins of confidence.",
        4,
    )

    @classmethod
    def of(cls, logits: Sequence[Array], answers: Array) -> "ChoiceNumbers":
        """Return the numbers of N examples from the logits (C,) of their choices and the right `answers` (N,)."""
        logs = [log_softmax(row) for row in logits]
        said = np.array([row.argmax() for row in logs])
        correct = said == answers
        low, high = share_interval(float(correct.mean()), len(correct))
        return cls(
            choice_accuracy=float(correct.mean()),
            choice_accuracy_low=low,
            choice_accuracy_high=high,
            chance=float(np.mean([1 / len(row) for row in logs])),
            choice_nats=float(-np.mean([row[answer] for row, answer in zip(logs, answers, strict=True)])),
            choice_calibration=calibration_error(np.exp([row.max() for row in logs]), correct),
        )

    def sentences(self, tokens: int) -> list[str]:
        return [
            f"The 95 % interval of the accuracy is {self.choice_accuracy_low:.1%} to {self.choice_accuracy_high:.1%}, "
            f"over examples; by chance it would be {self.chance:.1%}."
        ]


@dataclass(frozen=True)
class Question:
    """A question with its choices. `pairs` are the texts that the model reads for each choice."""

    text: str
    choices: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Choices(Task):
    """The right one of several choices. Rows have a question and a list of choices, or columns ending0, ending1..."""

    name = "choices"
    architectures = ("encoder", "decoder")
    usual = tuple((*question, choices, answer) for question, choices, answer in product(QUESTIONS, CHOICES, ANSWERS))
    kinds = (ChoiceNumbers,)

    pooling: Pooling | Literal["auto"] = "auto"
    """Input of the head. first or last: this position. mean: the mean over all positions. auto: mean for encoders,
    otherwise last"""

    def choose_columns(self, fields: Iterable[str]) -> Self:
        present = {one for name in fields for one in (name, name.rstrip("0123456789"))}
        known = [names for names in self.usual if present.issuperset(names)]
        return self if self.columns else replace(self, columns=max(known, key=len, default=self.usual[0]))

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        *questions, choices, answer = self.names
        texts = [row.text(name) for name in questions]
        if not texts[0]:
            return None
        given, names = _choices(row, choices)
        # The second text of a question is the beginning of each choice: SWAG's sent2, or a question about a context.
        begun = [" ".join(filter(None, [*texts[1:], choice])) for choice in given]
        question = Question(" ".join(filter(None, texts)), given, tuple((texts[0], choice) for choice in begun))
        return Example(row, question, _answer(row, answer, given, names) if labelled else None)

    def rows_of_texts(self, texts: Sequence[str]) -> list[Row]:
        *questions, choices, _ = self.names
        if len(texts) < len(questions) + 2:
            raise ValueError(f"{len(texts)} texts are given: give {' and '.join(questions)}, and two choices or more")
        named = dict(zip(questions, texts, strict=False))
        return [Row("the texts", {**named, choices: list(texts[len(questions) :])})]

    def key(self, example: Example) -> str:
        return repr(example.inputs.pairs)

    def head(self, architecture: str) -> HeadConfig:
        pooling = chosen_pooling(self.pooling, architecture)
        return HeadConfig(kind="choice", pooling=pooling)

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        pairs = iter(reader.ids_of_each([pair for example in examples for pair in example.inputs.pairs]))
        return [
            _stacked(
                [reader.sequence(next(pairs), np.zeros(1, np.int64), i) for _ in example.inputs.choices],
                example.target or 0,
            )
            for i, example in enumerate(examples)
        ]

    def results(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        return [ChoiceNumbers.of(_own(outputs, examples), _answers(examples))]

    def baselines(
        self, training: Sequence[Example], examples: Sequence[Example], reader: TextReader
    ) -> dict[str, Result]:
        answers, trained = _answers(examples), _answers(training)
        most = max(len(example.inputs.choices) for example in (*training, *examples))
        frequencies = np.bincount(trained, minlength=most) + 1.0  # add-one smoothing
        right = sum(_longest(example) == answer for example, answer in zip(training, trained, strict=True))
        confidence = (right + 1) / (len(training) + 2)
        longest = []
        for example in examples:
            count = len(example.inputs.choices)
            most_likely = max(confidence, 1.001 / count)  # the longest remains the choice
            chances = np.full(count, (1 - most_likely) / (count - 1))
            chances[_longest(example)] = most_likely
            longest.append(np.log(chances))
        positions = [np.log(frequencies[: len(example.inputs.choices)]) for example in examples]
        return {
            "longest choice": ChoiceNumbers.of(longest, answers),
            "most frequent position": ChoiceNumbers.of(positions, answers),
        }

    def predictions(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        rows = [np.exp(log_softmax(logits)) for logits in _own(outputs, examples)]
        return [
            {
                "prediction": int(row.argmax()),
                "predicted_choice": example.inputs.choices[int(row.argmax())],
                "probability": float(row.max()),
                "probabilities": row.tolist(),
            }
            for example, row in zip(examples, rows, strict=True)
        ]

    def summary(self, example: Example, fields: dict[str, Any]) -> str:
        said = f"{fields['predicted_choice']} {fields['probability']:.0%}"
        return super().summary(replace(example, inputs=example.inputs.text), {"prediction": said})


def _stacked(rows: list[Encoded], answer: int) -> Encoded:
    """Return one example (C, T) from the rows of its C choices."""
    batch = batch_of(rows)
    present = np.ones(batch.inputs.shape, bool) if batch.present is None else batch.present
    return Encoded(
        ids=np.where(present, batch.inputs, ABSENT),
        types=batch.types,
        targets=np.array([answer]),
        origin=rows[0].origin,
        cut=any(row.cut for row in rows),
    )


def _own(outputs: Sequence[Array], examples: Sequence[Example]) -> list[Array]:
    """Return the logits of each example's choices, without the logits of padding."""
    return [row[0, : len(example.inputs.choices)] for row, example in zip(outputs, examples, strict=True)]


def _answers(examples: Sequence[Example]) -> Array:
    return np.array([example.target for example in examples], np.int64)


def _longest(example: Example) -> int:
    """Return the index of the choice with the most characters; of equal choices, the first."""
    return int(np.argmax([len(choice) for choice in example.inputs.choices]))


def _choices(row: Row, name: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the choices of a row, and their names if they have any: {"text": [...], "label": ["A", ...]}.

    The choices are a list, or the columns `name`0, `name`1 and so on. The last of these columns may be empty.
    """
    given: list[Any]
    names: list[Any] = []
    numbered = [field for field in row.fields if field.removeprefix(name).isdecimal() and field.startswith(name)]
    if numbered and name not in row.fields:
        given = [row.text(field) for field in sorted(numbered, key=lambda field: int(field.removeprefix(name)))]
        while given and not given[-1]:
            given.pop()
    else:
        value: Any = row.value(name, "a list of choices", list, dict)
        if isinstance(value, dict):
            value, label = value.get("text"), value.get("label")
            names = label if isinstance(label, list) else []
        given = value if isinstance(value, list) else [None]
    if not all(isinstance(choice, str) and choice for choice in given):
        raise ValueError(f'"{name}" in {row.place} is {given!r:.60}, not a list of texts, none of them empty: fix it')
    if len(given) < 2 or len(names) not in (0, len(given)):
        counts = f"{len(given)} choices" + (f" and {len(names)} labels" if names else "")
        raise ValueError(f'"{name}" in {row.place} has {counts}: give two choices or more, and as many labels or none')
    return tuple(given), [str(one) for one in names]


def _answer(row: Row, name: str, choices: tuple[str, ...], names: list[str]) -> int:
    """Return the index of the right choice. The row gives an index from 0, a letter, a name or the text.

    Raises ValueError if the answer matches no choice, or several choices.
    """
    value = row.value(name, "an answer: a number, a letter, or the text of a choice", int, str)
    places = range(len(choices))
    if isinstance(value, int):
        meant = {value}.intersection(places)
    else:
        by_letter = list(LETTERS[: len(choices)])
        by_number = [str(place) for place in places]
        ways = [list(choices), *([names] if names else [by_letter, by_number])]
        meant = {place for way in ways for place, spelling in enumerate(way) if spelling == value.strip()}
    if len(meant) != 1:
        which = "means several" if meant else "means none"
        letters = f"a letter from A to {LETTERS[min(len(choices), 26) - 1]}"
        spelled = f"one of the labels {', '.join(names)}" if names else letters
        plain = " without quotes" if names else ""  # a string is a label or a text
        raise ValueError(
            f'"{name}" in {row.place} is {value!r:.60}, which {which} of the {len(choices)} choices: give 0 to '
            f"{len(choices) - 1}{plain}, {spelled}, or the text of a choice"
        )
    return meant.pop()


TASK = Choices

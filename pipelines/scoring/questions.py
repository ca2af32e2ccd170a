"""Multiple choice with examples before each question, in the format of lm-evaluation-harness.

A question is read as its text, a blank and a choice. White space at the end of the text or at the start of the choice
replaces the blank. Each of its examples is a question with its right choice, and a
blank line follows it. The examples of question i, from 0, are drawn with `random.Random(1234 + i)`, so they do not
depend on other questions; lm-evaluation-harness draws those of all questions from one `Random(1234)`.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm.warn import warn
from pipelines.cli.verbs import checks_arguments
from pipelines.run.loaded_run import LoadedRun
from pipelines.scoring.continuations import continuation, predict_endings
from pipelines.scoring.options import check_options
from pipelines.tasks.choices import Choices
from pipelines.tasks.data import ExampleFiles
from pipelines.tasks.task import Example
from pipelines.training.batch import Array

BLANK, BETWEEN = " ", "\n\n"
SEED = 1234
AT_ONCE = 64  # questions, so that the predictions of long contexts do not fill memory


@dataclass(frozen=True)
class Share:
    """The share of right answers."""

    value: float
    error: float | None
    """Standard error of the mean, sqrt(p (1 - p) / (N - 1)); None for one question"""


@dataclass(frozen=True)
class QuestionScores:
    """The scores of the choices of N questions."""

    shots: int
    """Examples before each question"""
    start_ids: tuple[int, ...]
    """Ids that the model reads before each question"""
    questions: tuple[Example, ...]
    examples: tuple[tuple[int, ...], ...]
    """Numbers of the examples before each question, from 0, in their order"""
    log_probabilities: tuple[Array, ...]
    """ln p of the choices (C,) of each question, in nats"""
    cut: int
    """Questions cut at the beginning to fit the context: first their examples, then their own text"""

    @property
    def answers(self) -> Array:
        """Return the number of the likeliest choice of each question; of equal choices, the first: (N,) int64."""
        return np.array([row.argmax() for row in self.log_probabilities])

    @property
    def answers_per_character(self) -> Array:
        """Return the number of the choice with the highest ln p per character: (N,) int64."""
        pairs = zip(self.log_probabilities, self.questions, strict=True)
        return np.array([(row / [len(choice) for choice in one.inputs.choices]).argmax() for row, one in pairs])

    @property
    def accuracy(self) -> Share:
        """Return the accuracy by ln p: acc in lm-eval."""
        return self._share(self.answers)

    @property
    def accuracy_per_character(self) -> Share:
        """Return the accuracy by ln p per character: acc_norm in lm-eval."""
        return self._share(self.answers_per_character)

    @property
    def chance(self) -> float:
        """Return the accuracy by chance: the mean of 1 / C."""
        return float(np.mean([1 / len(row) for row in self.log_probabilities]))

    def to_json(self) -> dict[str, Any]:
        """Return the accuracies, the settings and the scores of all questions."""
        return {
            "questions": len(self.questions),
            "shots": self.shots,
            "seed": SEED,
            "start_ids": list(self.start_ids),
            "acc": self.accuracy.value,
            "acc_stderr": self.accuracy.error,
            "acc_norm": self.accuracy_per_character.value,
            "acc_norm_stderr": self.accuracy_per_character.error,
            "chance": self.chance,
            "cut": self.cut,
            "rows": self.rows(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each question."""
        columns = self.questions, self.examples, self.log_probabilities, self.answers, self.answers_per_character
        return [
            {
                "place": question.row.place,
                "examples": list(examples),
                "log_probabilities": row.tolist(),
                "target": question.target,
                "answer": int(answer),
                "answer_per_character": int(normalized),
            }
            for question, examples, row, answer, normalized in zip(*columns, strict=True)
        ]

    def _share(self, answers: Array) -> Share:
        right = np.array([one.target for one in self.questions]) == answers
        value, count = float(right.mean()), len(right)
        return Share(value, math.sqrt(value * (1 - value) / (count - 1)) if count > 1 else None)


@checks_arguments
def score_questions(
    run: LoadedRun, paths: Sequence[Path], *, shots: int = 0, start: bool = True, columns: tuple[str, ...] = ()
) -> QuestionScores:
    """Return the scores of the choices of questions, with examples before each question.

    Question and choice are encoded as by `rank_choices`. A text that is too long is cut at its beginning. Raises
    ValueError for a run other than a decoder, for rows that are no questions, and for too few questions.

    Args:
        run: A run that `load_run` returned, of a decoder.
        paths: Files of questions, in the format of the task "choices".
        shots: Number of examples before each question: other questions of the files with their answers.
        start: Whether the model first reads the start token from training; lm-eval reads none.
        columns: Fields of a question, of its choices and of its answer; default: the usual names.
    """
    check_options(run.config.model, start=start, questions=True)
    if shots < 0:
        raise ValueError(f"`shots` is {shots}, but must not be negative")
    _, _, questions = ExampleFiles(data=(), test=tuple(paths)).read(Choices(columns=columns))
    before = run.around.before if start else ()
    examples = list(drawn_examples(questions, shots))
    scores: list[Array] = []
    cut = 0
    for first in range(0, len(questions), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        contexts = [
            _context(questions, one, of_one) for one, of_one in zip(questions[part], examples[part], strict=True)
        ]
        read = [
            [
                continuation(run, context, _ending(one, choice), before, f'"{choice:.40}" of {one.row.place}')
                for choice in one.inputs.choices
            ]
            for one, context in zip(questions[part], contexts, strict=True)
        ]
        for question, of_one in zip(questions[part], read, strict=True):
            if not all(choice.first for choice in of_one):
                raise ValueError(
                    f"the question in {question.row.place} is blank, and no start token precedes its choices: remove "
                    "the row"
                )
        cut += sum(any(choice.is_cut for choice in of_one) for of_one in read)
        made = iter(predict_endings(run, [(choice.ids, choice.first) for of_one in read for choice in of_one]))
        scores += [np.array([math.fsum(next(made).log_probabilities) for _ in of_one]) for of_one in read]
    if cut:
        warn(f"{cut:,} of {len(questions):,} questions were cut at the beginning to fit the context")
    return QuestionScores(shots, tuple(before), tuple(questions), tuple(examples), tuple(scores), cut)


def drawn_examples(questions: Sequence[Example], shots: int) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of the examples before each question: never the question itself, nor an equal one.

    Raises ValueError if there are too few.
    """
    equal: dict[str, list[int]] = defaultdict(list)
    for number, question in enumerate(questions):
        equal[repr(question.inputs)].append(number)
    for number, question in enumerate(questions):
        left_out = equal[repr(question.inputs)]
        others = len(questions) - len(left_out)
        if shots > others:
            raise ValueError(f"`shots` is {shots}, but {question.row.place} has only {others:,} others: lower it")
        drawn = random.Random(SEED + number).sample(range(others), shots)
        yield tuple(_without(place, left_out) for place in drawn)


def _without(place: int, left_out: Sequence[int]) -> int:
    """Return the number of the question at `place` among those that are not `left_out`, which is in order."""
    for number in left_out:
        place += place >= number
    return place


def _context(questions: Sequence[Example], question: Example, examples: Sequence[int]) -> str:
    """Return the text before the choices of a question."""
    shown = [questions[number] for number in examples]
    told = (f"{one.inputs.text.rstrip()}{_ending(one, one.inputs.choices[one.target])}{BETWEEN}" for one in shown)
    return "".join([*told, question.inputs.text.rstrip()])


def _ending(question: Example, choice: str) -> str:
    """Return a choice after the white space at the end of its question, or after a blank if neither has any."""
    text = question.inputs.text
    space = text[len(text.rstrip()) :]
    return (space or BLANK * (not choice[0].isspace())) + choice

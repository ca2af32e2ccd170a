"""The facts of a report about a run: its training, its evaluations and its samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipelines.run.evaluation_file import Evaluation
from pipelines.run.folder import Run


@dataclass(frozen=True)
class Subject:
    """A run as the page shows it, under a `name` that no other run of the page has."""

    run: Run
    name: str
    metrics: list[dict[str, Any]]
    evaluations: list[Evaluation]
    parameters: int
    samples: list[dict[str, str]] = field(default_factory=list)
    passage: Any = None  # a `pipelines.reporting.passage.Passage`
    tokenizer: Any = None  # a `pipelines.reporting.vocabulary_facts.VocabularyFacts`
    inside: Any = None  # a `pipelines.reporting.inside.Inside`

    @property
    def imported(self) -> bool:
        return "imported_from" in self.run.facts

    @property
    def tokens_seen(self) -> int:
        """Training tokens so far."""
        return max((m["tokens"] for m in self.metrics), default=0)

    @property
    def seconds(self) -> float:
        """Seconds of training, without validation and checkpoints."""
        return max((m["time_s"] for m in self.metrics), default=0.0)

    @property
    def speed(self) -> float:
        """Training tokens per second."""
        return self.tokens_seen / self.seconds if self.seconds else 0.0

    @property
    def main(self) -> Evaluation | None:
        """The evaluation that the page opens with: the newest on the validation split, or else on any."""
        return next(
            (each for each in self.evaluations if each.split == "validation"), next(iter(self.evaluations), None)
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers of the `main` evaluation."""
        return self.main.numbers if self.main else {}

    @property
    def most_positions(self) -> Evaluation | None:
        """The evaluation of the same text as `main` that scores the most positions of the window."""
        if self.main is None:
            return None
        same = [each for each in self.evaluations if each.text == self.main.text]
        return max(same, key=lambda each: each.numbers.get("stride", 0))

    @property
    def compressors(self) -> dict[str, dict[str, float]]:
        """Bits per byte of compressors on the text of `main`, from any evaluation of it."""
        same = [each for each in self.evaluations if self.main and each.text == self.main.text]
        return {name: bits for each in same for name, bits in each.numbers.get("compressors", {}).items()}


class Score(NamedTuple):
    """One evaluation of a run in bits per byte; `number` is the place of the run on the page."""

    number: int
    label: str
    numbers: dict[str, Any]


class Text(NamedTuple):
    """A text that models were scored on: a split of a dataset."""

    split: str
    scores: list[Score]
    compressors: dict[str, dict[str, float]]


def scored_texts(subjects: Sequence[Subject]) -> list[Text]:
    """Return every text with a score in bits per byte, in the order of the subjects."""
    texts: dict[tuple[str, Any], Text] = {}
    for number, subject in enumerate(subjects):
        for each in subject.evaluations:
            if each.numbers.get("bits_per_byte") is not None and each.numbers.get("bytes"):
                text = texts.setdefault(each.text, Text(each.split, [], {}))
                text.scores.append(Score(number, label_of(subject, each), each.numbers))
                text.compressors.update(each.numbers.get("compressors", {}))
    return list(texts.values())


def label_of(subject: Subject, evaluation: Evaluation) -> str:
    """Return the run's name, with the settings in which its evaluations on the same text differ."""
    siblings = [each for each in subject.evaluations if each.text == evaluation.text]
    settings = [
        f"{name.replace('_', ' ')} {value}"
        for name in ("stride", "min_context", "dtype", "checkpoint", "against")
        if len({_setting(each, name) for each in siblings}) > 1 and (value := _setting(evaluation, name)) is not None
    ]
    return ", ".join([subject.name, *settings])


def _setting(evaluation: Evaluation, name: str) -> Any:
    return evaluation.numbers.get(name, evaluation.measured.get(name))

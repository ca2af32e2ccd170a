"""The subjects of a report: runs with their training, evaluations, samples and introspection."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lm.model import LanguageModel
from pipelines.cli.waiting import doing
from pipelines.evaluation.measurement import Opponent
from pipelines.evaluation.results import SPLITS, Evaluation, SplitEvaluation
from pipelines.reporting.introspection import Inside, look_inside
from pipelines.reporting.passage import Passage, passage_of
from pipelines.reporting.samples import Sample, samples_of
from pipelines.reporting.tokenizer_facts import TokenizerFacts, tokenizer_facts
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model
from pipelines.run.retention import checkpoint_folders


@dataclass(frozen=True)
class Subject:
    """A run of the page, under a `name` that is unique on the page. The first of `evaluations` is the main one."""

    run: Run
    name: str
    metrics: list[dict[str, Any]]
    evaluations: list[SplitEvaluation]
    parameters: int
    tokenizer: TokenizerFacts
    samples: list[Sample]
    passage: Passage | None
    inside: Inside | None

    @property
    def imported(self) -> bool:
        return "imported_from" in self.run.facts

    @property
    def of_task(self) -> bool:
        """Whether the main evaluation is that of a task of fine-tuning."""
        return self.main is not None and self.main.task is not None

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
    def main(self) -> SplitEvaluation | None:
        """The evaluation that the page opens with, see `Evaluation.main`."""
        return next(iter(self.evaluations), None)

    def text_name(self, evaluation: SplitEvaluation) -> str:
        """Return the name of the text of an evaluation, see `SplitEvaluation.text_name`."""
        return evaluation.text_name(self.run.facts["dataset_fingerprint"])

    def text_in_words(self, evaluation: SplitEvaluation) -> str:
        """Return the text of an evaluation, such as "validation split", "test split of other/data" or "book.txt"."""
        name, split = self.text_name(evaluation), evaluation.split
        return name.replace(split, f"{split} split", 1) if split.partition("/")[0] in SPLITS else name

    @property
    def most_positions(self) -> SplitEvaluation | None:
        """The evaluation of the same text as `main` that scores the most positions of the window."""
        if self.main is None or self.of_task:
            return None
        same = [
            evaluation
            for evaluation in self.evaluations
            if evaluation.text == self.main.text and evaluation.window == self.main.window
        ]
        return max(same, key=lambda evaluation: evaluation.stride)

    @property
    def opponents(self) -> list[Opponent]:
        """Other codes of the text of `main`, from any evaluation of that text."""
        return opponents_of(
            [evaluation for evaluation in self.evaluations if self.main and evaluation.text == self.main.text]
        )


def subject_of(run: Run, samples: bool = True, inside: bool = True, name: str | None = None) -> Subject:
    """Return the subject of a run, under the run's name or `name`.

    `samples` includes samples and a passage; `inside` includes the introspection of the model.
    """
    # Read the files first, so that a damaged one is reported before the model is loaded.
    metrics, evaluation = run.metrics(), Evaluation.read(run.folder)
    evaluations = evaluation.all if evaluation else []
    if evaluation and (main := evaluation.main(run.facts["dataset_fingerprint"])):
        evaluations = [main, *(one for one in evaluations if one is not main)]
    model = load_model(run, checkpoint=_evaluated(run, evaluations), needs="float64").model
    doing(f"looking at {run.name}")
    language = model if isinstance(model, LanguageModel) else None  # other models predict no tokens
    return Subject(
        run,
        name or run.name,
        metrics,
        evaluations,
        sum(p.numel() for p in model.parameters()),
        tokenizer_facts(run),
        samples_of(run, language) if samples and language else [],
        passage_of(run, language) if samples and language else None,
        look_inside(run, language) if inside and language else None,
    )


def _evaluated(run: Run, evaluations: Sequence[SplitEvaluation]) -> str:
    """Return the checkpoint of the main evaluation, or "newest" if it is the newest or no longer exists."""
    older = {folder.name for folder in checkpoint_folders(run.folder)[:-1]}
    name = evaluations[0].measured.checkpoint if evaluations else ""
    return name.removeprefix("step-") if name in older else "newest"


def opponents_of(evaluations: Sequence[SplitEvaluation]) -> list[Opponent]:
    """Return other codes of a text, from all its evaluations; the oldest of each name."""
    others = [other for evaluation in evaluations for result in evaluation.results for other in result.opponents()]
    return list({other.name: other for other in others}.values())


class Score(NamedTuple):
    """One evaluation of a run in bits per byte. `number` is the position of the run on the page."""

    number: int
    label: str
    evaluation: SplitEvaluation


class Text(NamedTuple):
    """A text that runs were scored on."""

    name: str
    scores: list[Score]
    opponents: list[Opponent]
    """Other codes of the text"""


def scored_texts(subjects: Sequence[Subject]) -> list[Text]:
    """Return every text with a score in bits per byte, in the order of the subjects."""
    texts: dict[tuple[str, Any], Text] = {}
    for number, subject in enumerate(subjects):
        for evaluation in subject.evaluations:
            if evaluation.bits_per_byte is not None and evaluation.bytes:
                text = texts.setdefault(evaluation.text, Text(subject.text_in_words(evaluation), [], []))
                text.scores.append(Score(number, label_of(subject, evaluation), evaluation))
                text.opponents.extend(other for other in opponents_of([evaluation]) if other not in text.opponents)
    return list(texts.values())


def label_of(subject: Subject, evaluation: SplitEvaluation) -> str:
    """Return the run's name, and the settings in which its evaluations of the same text differ."""
    siblings = [other for other in subject.evaluations if other.text == evaluation.text]
    settings = [
        f"{name.replace('_', ' ')} {value}"
        for name in ("window", "rotary_scaling", "stride", "min_context", "dtype", "checkpoint", "against")
        if len({sibling.settings.get(name) for sibling in siblings}) > 1
        and (value := evaluation.settings.get(name)) is not None
    ]
    return ", ".join([subject.name, *settings])

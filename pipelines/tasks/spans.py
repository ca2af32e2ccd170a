"""Answers to questions as spans of a context, as in SQuAD."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np

from corpora.rows import Row
from corpora.squad_files import is_squad_file, read_squad
from lm.head_config import HeadConfig
from lm.metrics.answers import answer_f1, best_threshold, exact_match, normalized
from lm.metrics.labels import share_interval
from pipelines.evaluation.answer_results import AnswerNumbers
from pipelines.evaluation.measurement import Result
from pipelines.tasks.examples import ABSENT, Encoded
from pipelines.tasks.task import Example, Learned, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.tasks.windows import TokenText, answer_windows
from pipelines.training.batch import Array

BEST = 20  # starts, and ends, that are combined
_SENTENCE = re.compile(r"[^.!?]+[.!?]*")


@dataclass(frozen=True)
class Answer:
    """The best span of a context, characters `start` to `end - 1`. Its score is the sum of two logits.

    `no_answer` is the score of the first position: the lowest over the windows.
    """

    start: int = 0
    end: int = 0
    score: float = -np.inf
    no_answer: float = np.inf

    @property
    def margin(self) -> float:
        """The score of the span minus the score of no answer."""
        return self.score - self.no_answer


@dataclass(frozen=True, kw_only=True)
class Spans(Task):
    """Answers to questions, as parts of a context. Examples without an answer teach the model to give none.

    The answer has the highest sum of the logits of its first and last token (Devlin et al. 2019, 4.2 and 4.3).
    """

    name = "spans"
    architectures = ("encoder",)
    usual = (("question", "context", "answers"),)
    kinds = (AnswerNumbers,)

    stride: int = 128
    """Tokens from the start of a window to the start of the next, as in BERT, at most the length of a window. (In
    transformers, stride means the overlap of two windows)"""
    question_length: int = 64
    """Maximum tokens of a question, at most half of the context"""
    answer_length: int = 30
    """Maximum tokens of an answer"""
    threshold: float | Literal["auto"] = "auto"
    """An answer needs a score above the score of no answer plus this threshold, if some training examples have no
    answer. auto: the threshold with the highest F1 on the held-out examples"""
    unanswerable: Annotated[bool, Learned] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("stride", "question_length", "answer_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is {getattr(self, name)}, but must be at least 1")

    # Reading

    def read(self, path: Path) -> Iterator[Row]:
        yield from read_squad(path) if is_squad_file(path) else super().read(path)

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        question_name, context_name, answers_name = self.names
        question, context = row.text(question_name), row.text(context_name)
        if not question and not context:
            return None
        if not labelled:
            return Example(row, (question, context))
        return Example(row, (question, context), tuple(_answers(row, answers_name, context)))

    def key(self, example: Example) -> str:
        """Return the context: all questions about a context stay together."""
        return str(example.inputs[1])

    def learn(self, examples: Sequence[Example]) -> Self:
        if not any(example.target for example in examples):
            raise ValueError("no example has an answer: give some with one")
        return replace(self, unanswerable=not all(example.target for example in examples))

    # The model

    def head(self, architecture: str) -> HeadConfig:
        return HeadConfig(kind="span")

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        room = reader.room(2)
        if room < 2:
            raise ValueError(f"the model reads {max(0, room)} tokens of a question and a context: take a larger one")
        questions = reader.ids([example.inputs[0] for example in examples])
        contexts: dict[str, TokenText] = {}
        encoded = []
        for origin, (example, question) in enumerate(zip(examples, questions, strict=True)):
            text = example.inputs[1]
            if text not in contexts:
                contexts[text] = TokenText(*reader.tokenizer.encode_with_offsets(text, disallowed_special=()))
            kept = reader.cut(question, min(self.question_length, room // 2))
            first = example.target[0] if example.target else None
            answer = first and (first[0], first[0] + len(first[1]))
            windows = answer_windows(kept, contexts[text], answer, origin, reader, self.stride)
            encoded += [replace(one, cut=True) for one in windows] if len(kept) < len(question) else windows
        return encoded

    # Results

    def tuned(self, results: Sequence[Result]) -> Self:
        found = next((one.answer_threshold for one in results if isinstance(one, AnswerNumbers)), None)
        return self if self.threshold != "auto" or found is None else replace(self, threshold=found)

    def results(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        answers = self._answers(outputs, encoded, examples)
        texts = [_text(one, example) for one, example in zip(answers, examples, strict=True)]
        if not self.unanswerable:
            return [replace(_numbers(texts, examples), windows=len(encoded))]
        margins = np.array([one.margin for one in answers])
        answerable = np.isfinite(margins)  # an empty context has no span
        margins[~answerable] = margins[answerable].min(initial=0.0)
        threshold = self.threshold
        if threshold == "auto":
            golds = [_golds(example) for example in examples]
            answered = np.array([answer_f1(text, gold) for text, gold in zip(texts, golds, strict=True)])
            threshold = best_threshold(margins, answered, np.array([answer_f1("", gold) for gold in golds]))
        said = [text if margin > threshold else "" for text, margin in zip(texts, margins, strict=True)]
        return [
            replace(
                _numbers(said, examples),
                windows=len(encoded),
                answer_threshold=threshold,
                threshold_tuned_here=self.threshold == "auto",
            )
        ]

    def baselines(
        self, training: Sequence[Example], examples: Sequence[Example], reader: TextReader
    ) -> dict[str, Result]:
        baselines: dict[str, Result] = {
            "sentence with most words of the question": _numbers([_nearest_sentence(one) for one in examples], examples)
        }
        if self.unanswerable:
            baselines["no answer"] = _numbers([""] * len(examples), examples)
        return baselines

    def predictions(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        threshold = 0.0 if self.threshold == "auto" else self.threshold
        fields = []
        for one, example in zip(self._answers(outputs, encoded, examples), examples, strict=True):
            given = one.end > one.start and (not self.unanswerable or one.margin > threshold)
            fields.append(
                {
                    "prediction": _text(one, example) if given else "",
                    "start": one.start if given else None,
                    "end": one.end if given else None,
                    "margin": one.margin if np.isfinite(one.margin) else None,
                }
            )
        return fields

    def summary(self, example: Example, fields: dict[str, Any]) -> str:
        return f"{' '.join(fields['prediction'].split()) or 'no answer'}: {' '.join(example.inputs[0].split())[:60]}"

    def _answers(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Answer]:
        """Return the best answer of each example over all its windows."""
        answers = [Answer()] * len(examples)
        for logits, one in zip(outputs, encoded, strict=True):
            known, found = answers[one.origin], best_answer(logits, one, self.answer_length)
            best = found if found.score > known.score else known
            answers[one.origin] = replace(best, no_answer=min(known.no_answer, found.no_answer))
        return [_stripped(one, example.inputs[1]) for one, example in zip(answers, examples, strict=True)]


def best_answer(logits: Array, window: Encoded, longest: int) -> Answer:
    """Return the best span of at most `longest` context tokens, from the BEST starts and the BEST ends.

    logits (2, T): logits of the first and of the last token. They may end with padding.
    """
    assert window.places is not None
    no_answer = float(logits[0, 0] + logits[1, 0])
    context = np.flatnonzero(window.places[:, 0] != ABSENT)
    starts, ends = (context[np.argsort(-side[context], kind="stable")[:BEST]] for side in logits)
    lengths = ends[None, :] - starts[:, None] + 1
    scores = logits[0, starts][:, None] + logits[1, ends][None, :]
    scores = np.where((lengths >= 1) & (lengths <= longest), scores, -np.inf)
    if not np.isfinite(scores).any():
        return Answer(no_answer=no_answer)
    start, end = np.unravel_index(int(scores.argmax()), scores.shape)
    first, last = window.places[starts[start]], window.places[ends[end]]
    return Answer(int(first[0]), int(last[1]), float(scores[start, end]), no_answer)


def _answers(row: Row, name: str, context: str) -> Iterator[tuple[int, str]]:
    """Yield (start, text) of each answer. A field has {"text": [...], "answer_start": [...]}, or a list of objects.

    A wrong start, as in some examples of SQuAD, is moved to the nearest occurrence of the text.
    """
    value = row.value(name, "answers: an object or a list", dict, list)
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise ValueError(
                f'"{name}" in {row.place} is {value!r:.60}: give "text" and "answer_start", two lists of one length'
            )
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    for one in value:
        match one:
            case {"text": str(text), "answer_start": int(start)}:
                yield _located(text.strip(), start, row, name, context)
            case _:
                raise ValueError(
                    f'"{name}" in {row.place} has {one!r:.60}: give "text" and a whole number "answer_start"'
                )


def _located(text: str, start: int, row: Row, name: str, context: str) -> tuple[int, str]:
    if text and context[max(0, start) :].startswith(text):
        return max(0, start), text
    places = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)] if text else []
    if not places:
        raise ValueError(f'the answer {text!r:.60} in "{name}" in {row.place} is not in the context: fix it')
    return min(places, key=lambda place: abs(place - start)), text


def _stripped(answer: Answer, context: str) -> Answer:
    """Return an answer without surrounding white space. BPE tokens include white space."""
    text = context[answer.start : answer.end]
    start = answer.start + len(text) - len(text.lstrip())
    return replace(answer, start=start, end=max(start, start + len(text.strip())))


def _text(answer: Answer, example: Example) -> str:
    context: str = example.inputs[1]
    return context[answer.start : answer.end]


def _golds(example: Example) -> list[str]:
    return [text for _, text in example.target]


def _nearest_sentence(example: Example) -> str:
    """Return the sentence of the context with the most words of the question; of equal sentences, the first."""
    question, context = example.inputs
    words = set(normalized(question).split())
    sentences = _SENTENCE.findall(context) or [""]
    best: str = max(sentences, key=lambda sentence: len(words & set(normalized(sentence).split())))
    return best.strip()


def _numbers(said: Sequence[str], examples: Sequence[Example]) -> AnswerNumbers:
    golds = [_golds(example) for example in examples]
    exact = np.array([exact_match(text, gold) for text, gold in zip(said, golds, strict=True)])
    f1 = np.array([answer_f1(text, gold) for text, gold in zip(said, golds, strict=True)])
    answerable = np.array([bool(gold) for gold in golds])
    low, high = share_interval(float(exact.mean()), len(exact))
    both = answerable.any() and not answerable.all()
    return AnswerNumbers(
        answer_f1=float(f1.mean()),
        exact_match=float(exact.mean()),
        exact_match_low=low,
        exact_match_high=high,
        has_answer_f1=float(f1[answerable].mean()) if both else None,
        has_answer_exact_match=float(exact[answerable].mean()) if both else None,
        no_answer_accuracy=float(exact[~answerable].mean()) if both else None,
    )


TASK = Spans

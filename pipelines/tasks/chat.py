"""Conversations: a language model learns to answer."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from corpora.rows import Row
from lm.config import ModelConfig
from lm.metrics.labels import share_interval
from lm.metrics.units import bits_per_byte
from lm.position_checks import UNBOUNDED
from lm.warn import warn
from pipelines.evaluation.measurement import Result, number
from pipelines.files import read_bytes
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.tasks.examples import Encoded
from pipelines.tasks.task import Adapted, Example, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array
from tokenizer import Tokenizer

if TYPE_CHECKING:
    from pipelines.chat.template import ChatTemplate
    from pipelines.run.folder import Run
    from pipelines.run.predictor import Predictor

CONVERSATIONS = ("messages", "conversations")
"""Names of columns that hold lists of messages"""
RELATIVE = ("rotary", *UNBOUNDED)
"""Kinds of positions for which a conversation's loss does not depend on its place in a row"""
RELATIVE_PATTERNS = ("none", "dilated", "strided")
"""Sparse patterns of attention for which it does not either"""


@dataclass(frozen=True, kw_only=True)
class AnswerNumbers(Result):
    """How well a model predicts the answers of held-out conversations."""

    bits_per_byte: float | None = number(
        "bits per byte of answers",
        "Bits of all tokens of answers, also of the ends of turns, divided by the bytes of the answers' text.",
        4,
        headline=True,
    )
    accuracy: float = number(
        "accuracy", "Share of tokens of answers to which the model gave the highest probability.", 4, headline=True
    )
    exact: float | None = number(
        "exact answers",
        "Share of answers whose every token, with the end of the turn, has the highest probability: greedy decoding "
        "gives exactly these answers.",
        4,
        headline=True,
    )
    exact_low: float | None = number("exact answers, low end", "Low end of the 95 % interval (Wilson).", 4)
    exact_high: float | None = number("exact answers, high end", "High end of the 95 % interval (Wilson).", 4)
    cross_entropy: float = number(
        "cross-entropy, nats per token", "Mean of -ln p over the tokens of answers and the ends of turns.", 4
    )
    tokens: int = number("tokens scored", "Tokens of answers, with the ends of turns.", 0)
    bytes: int = number("bytes scored", "Bytes of the answers' text.", 0)
    answers: int = number("answers", "Answers that were scored whole.", 0)
    ended: float | None = number(
        "answers that end",
        "Share of the answers, written greedily, that end by themselves within half of the context.",
        4,
        default=None,
    )

    def sentences(self, tokens: int) -> list[str]:
        if self.exact_low is None or self.exact_high is None:
            return []
        return [f"The 95 % interval of exact answers is {self.exact_low:.1%} to {self.exact_high:.1%}."]


@dataclass(frozen=True)
class Output:
    """The output of a model for a conversation."""

    scores: Array
    """(P, 2) float32: nats of each target, and 1 if the target was ranked first"""
    ended: bool | None = None
    """Whether the first answer, generated greedily, ends by itself; None if no answer was generated"""


@dataclass(frozen=True, kw_only=True)
class Chat(Task):
    """Answers of conversations, for bytelm chat. Rows have messages, or a prompt and its completion."""

    name = "chat"
    architectures = ("decoder",)
    usual = (
        ("messages",),
        ("conversations",),
        ("instruction", "input", "output"),
        ("instruction", "output"),
        ("prompt", "completion"),
    )
    kinds = (AnswerNumbers,)
    better = "lowest"
    used_by = "chat"
    compared_with = ("before", "scratch")
    settings = FinetuneConfig(epochs=3)

    truncate: Literal["right", "left"] = "right"
    """Part of a long conversation that is cut. right: its end. left: its oldest turns, but not its system message"""
    template: str = ""
    """File of a Jinja chat template, as in transformers. Default: the template of the run, otherwise ChatML"""
    pack: bool = True
    """Put several conversations into one row, without attention between them. Needs a model with attention and relative
    positions"""
    write: int = 0
    """Number of held-out conversations whose first answer an evaluation generates, to count answers that end"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.write < 0:
            raise ValueError(f"`write` is {self.write}, but must not be negative")

    # Reading

    def choose_columns(self, fields: Mapping[str, Any]) -> Self:
        """Return the task with its `columns`. Rows of instructions may have an `input`, even if the first has none."""
        task = super().choose_columns(fields)
        without_input = not self.columns and task.columns == ("instruction", "output")
        return replace(task, columns=("instruction", "input", "output")) if without_input else task

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        from pipelines.chat.messages import Message, conversation_of, text_or_messages  # --help does not need it

        names = self.names
        if len(names) == 1:
            value = row.value(names[0], "a list of messages", list)
            messages = conversation_of(value, f'"{names[0]}" in {row.place}')
        else:
            empty = [name for name in names if name == "input" and row.fields.get(name) is None]
            sides = ["" if name in empty else text_or_messages(row, name) for name in names]
            question, answer = sides[:-1], sides[-1]
            texts = [side for side in question if isinstance(side, str)]
            asked = (Message("user", "\n\n".join(filter(None, texts))),) if len(texts) == len(question) else question[0]
            said = (Message("assistant", answer),) if isinstance(answer, str) else answer
            messages = (*asked, *said)
        if not messages:
            return None
        if all(message.role != "assistant" for message in messages):
            raise ValueError(f"{row.place} has no answer: give a message with the role assistant")
        return Example(row, messages)

    def rows_of_texts(self, texts: Sequence[str]) -> list[Row]:
        return [Row(f"text {n}", {CONVERSATIONS[0]: [{"role": "user", "content": t}]}) for n, t in enumerate(texts, 1)]

    def key(self, example: Example) -> str:
        """Return the messages before the first answer, so that all answers to them stay together."""
        first = next(place for place, message in enumerate(example.inputs) if message.role == "assistant")
        return repr([tuple(message) for message in example.inputs[:first]])

    # The model

    def adapt(self, run: "Run", tok: Tokenizer) -> Adapted[Self]:
        from pipelines.chat.template import CHATML, ChatTemplate
        from pipelines.run.text_ids import special_ids, text_ids

        around = text_ids(run, tok)
        text = _template_text(self.template) if self.template else run.facts.get("chat_template", CHATML)
        wanted = ChatTemplate.of(text, tok, around).special_tokens()
        grown = tok.add_special_tokens([one for one in wanted if one not in tok.special_tokens])
        end = grown.special_tokens[ChatTemplate.of(text, grown, around).end_of_turn()]
        ids = {name: i for name, i in special_ids(run.facts, grown).items() if i is not None}
        ids["eos_token_id"] = [end, *(i for i in around.stops if i != end)]
        return Adapted(replace(self, template=text), {"special_ids": ids, "chat_template": text}, grown)

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        """Return the conversations that have an answer within the context. A warning counts the others."""
        from pipelines.chat.template import ChatTemplate

        template = ChatTemplate.of(self.template, reader.tokenizer, reader.around)
        found = [self._encoded(example, number, template, reader) for number, example in enumerate(examples)]
        kept = [one for one in found if one is not None]
        if not kept:
            raise ValueError(
                f"no conversation has an answer within the context of {reader.model.context_length:,} tokens: shorten "
                "them, or give `truncate='left'`"
            )
        if len(kept) < len(found):
            warn(
                f"{len(found) - len(kept):,} of {len(found):,} conversations have no answer within the context of "
                f"{reader.model.context_length:,} tokens and are left out",
            )
        return kept

    def arrange(self, encoded: list[Encoded], model: ModelConfig) -> list[Encoded]:
        relative = model.positions in RELATIVE and model.attention_pattern in RELATIVE_PATTERNS
        if not (self.pack and model.attention_only and relative):
            return encoded
        return [
            packed([encoded[i] for i in row]) for row in best_fit([e.tokens for e in encoded], model.context_length)
        ]

    def _encoded(self, example: Example, number: int, template: "ChatTemplate", reader: TextReader) -> Encoded | None:
        """Return a conversation whose targets are the tokens of answers; None without an answer in the context.

        `extra` is (2,): the bytes of the answers, and 1 if the last answer is cut.
        """
        from pipelines.chat.messages import fitting

        most = reader.model.context_length + 1  # the last token is a target only
        try:
            made = template.encode(example.inputs)
            cut = len(made.ids) > most
            if cut and self.truncate == "left":
                made = template.encode(fitting(example.inputs, lambda kept: len(template.encode(kept).ids) <= most))
        except ValueError as error:
            raise ValueError(f"{example.row.place}: {error}") from None
        ids, answers = made.ids[:most], made.answers[1:most]
        if not answers.any():
            return None
        extra = made.sizes[1:most].sum(), made.answers[most : most + 1].any()
        return Encoded(
            ids=ids[:-1],
            targets=ids[1:],
            weights=answers.astype(np.float32),
            extra=np.array(extra, np.float32),
            origin=number,
            cut=cut,
        )

    # Results

    def outputs(
        self,
        predictor: "Predictor",
        encoded: Sequence[Encoded],
        labelled: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> list[Output]:
        from pipelines.run.task_outputs import task_outputs  # imports torch

        ended = self._ended(predictor, encoded[: self.write]) + [None] * len(encoded[self.write :])
        scores = task_outputs(predictor.model, encoded, progress)
        return [Output(*one) for one in zip(scores, ended, strict=True)]

    def results(
        self, outputs: Sequence[Output], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        scored = [one.weights > 0 for one in encoded if one.weights is not None]
        pairs = list(zip((one.scores for one in outputs), scored, strict=True))
        nats, first = (np.concatenate([scores[here, i] for scores, here in pairs]).astype(np.float64) for i in range(2))
        size = sum(int(one.extra[0]) for one in encoded if one.extra is not None)
        cut = [one.extra is not None and bool(one.extra[1]) for one in encoded]
        exact = [right for (o, here), end in zip(pairs, cut, strict=True) for right in _exact(o[:, 1], here, end)]
        low, high = share_interval(sum(exact) / len(exact), len(exact)) if exact else (None, None)
        ended = [one.ended for one in outputs if one.ended is not None]
        return [
            AnswerNumbers(
                bits_per_byte=bits_per_byte(float(nats.sum()), size),
                accuracy=float(first.mean()),
                exact=sum(exact) / len(exact) if exact else None,
                exact_low=low,
                exact_high=high,
                cross_entropy=float(nats.mean()),
                tokens=len(nats),
                bytes=size,
                answers=len(exact),
                ended=sum(ended) / len(ended) if ended else None,
            )
        ]

    def _ended(self, predictor: "Predictor", encoded: Sequence[Encoded]) -> list[bool | None]:
        """Return for each conversation whether the model's first answer ends by itself."""
        if not encoded:
            return []
        from lm.model import LanguageModel
        from pipelines.generation.targets import continued_prompts
        from pipelines.run.text_ids import known_ids

        model, reader = predictor.model, predictor.reader
        assert isinstance(model, LanguageModel)
        prompts = [one.prompt for one in encoded]
        most, allowed = reader.model.context_length // 2, known_ids(reader.tokenizer, model)
        found = continued_prompts(model, prompts, reader.around, allowed, tokens=most)
        return [len(answer) < most for answer in found]


def best_fit(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Return rows of item indices. The `lengths` of the items in a row sum to at most `room`.

    Best-fit decreasing: from the longest item on, each goes into the fullest row that still has room.
    """
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (room left, row), sorted
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = bisect_left(free, (lengths[item], -1))
        left, row = free.pop(place) if place < len(free) else (room, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(item)
        insort(free, (left - lengths[item], row))
    return rows


def packed(parts: Sequence[Encoded]) -> Encoded:
    """Return several examples as one row. `segments` are the indices of the examples."""
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "targets", "weights")}
    segments = np.repeat(np.arange(len(parts)), [len(part.ids) for part in parts])
    size = np.sum([part.extra for part in parts if part.extra is not None], axis=0)
    return Encoded(**joined, segments=segments, extra=size, origin=parts[0].origin, cut=any(p.cut for p in parts))


def _exact(first: Array, scored: Array, cut: bool) -> Iterable[bool]:
    """Yield for each answer whether all its tokens are ranked first. `cut`: the last answer is cut and left out."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], scored.astype(np.int8), [0]))))
    for start, end in edges.reshape(-1, 2).tolist():
        if not (cut and end == len(scored)):
            yield bool(first[start:end].all())


def _template_text(given: str) -> str:
    """Return the text of a template. `given` is the text itself, or the name of a file."""
    if "{{" in given or "{%" in given:
        return given
    try:
        return read_bytes(Path(given)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"`template` is {given}, which cannot be read ({error}): give a Jinja file") from None


TASK = Chat

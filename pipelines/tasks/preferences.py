"""The chosen one of two answers (DPO)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np

from corpora.rows import Row
from lm.metrics.labels import share_interval
from pipelines.cli.display import say
from pipelines.evaluation.measurement import Result, number
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.tasks.answer_pairs import AnswerPair, conversation_pair, encoded_pair
from pipelines.tasks.examples import Encoded
from pipelines.tasks.task import Adapted, Example, Learned, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array
from pipelines.training.batch_objectives import require_special_tokens
from tokenizer import END_OF_TEXT, SEP, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from lm.task_model import TrainedModel
    from pipelines.chat.messages import Conversation
    from pipelines.run.answer_scores import Scores
    from pipelines.run.folder import Run
    from pipelines.run.predictor import Predictor


@dataclass(frozen=True, kw_only=True)
class PreferenceNumbers(Result):
    """The numbers of a model on pairs of answers. The reference is the run that training started from."""

    preference_accuracy: float | None = number(
        "right pairs",
        "Share of pairs whose chosen answer has the higher reward, beta ln(p / p of the reference); a tie counts 1/2.",
        4,
        headline=True,
        default=None,
    )
    preference_low: float | None = number(
        "right pairs, low end", "Low end of the 95 % interval (Wilson).", 4, default=None
    )
    preference_high: float | None = number(
        "right pairs, high end", "High end of the 95 % interval (Wilson).", 4, default=None
    )
    preference_loss: float | None = number(
        "loss, nats per pair",
        "Mean of -ln sigmoid(reward of the chosen answer - reward of the rejected one); ln 2 before training.",
        4,
        headline=True,
        default=None,
    )
    reward_margin: float | None = number(
        "reward margin", "Mean reward of the chosen answer minus that of the rejected one.", 4, default=None
    )
    reference_kl_bits: float | None = number(
        "KL, bits per token",
        "Mean of D(p || p of the reference) over the tokens of both answers: how far training has moved the model.",
        4,
        headline=True,
        default=None,
    )
    chosen_nats: float | None = number(
        "ln p of chosen",
        "Mean log-probability of a chosen answer with its end, in nats. It may fall while rejected ones fall more.",
        3,
        headline=True,
        default=None,
    )
    chosen_nats_before: float | None = number("ln p of chosen before", "The same of the reference.", 3, default=None)
    rejected_nats: float | None = number(
        "ln p of rejected", "Mean log-probability of a rejected answer with its end, in nats.", 3, default=None
    )
    rejected_nats_before: float | None = number(
        "ln p of rejected before", "The same of the reference.", 3, default=None
    )


@dataclass(frozen=True, kw_only=True)
class Preferences(Task):
    """Pairs of a chosen and a rejected answer (DPO). The reference is the run that training starts from."""

    name = "preferences"
    architectures = ("decoder",)
    usual = (("prompt", "chosen", "rejected"), ("chosen", "rejected"))
    kinds = (PreferenceNumbers,)
    compared_with = ()
    empty = "begins an example without two different answers: give them"
    used_by = "generate"
    settings = FinetuneConfig(epochs=1, lr=1e-4, dropout=0.0)

    beta: float = 0.1
    """Strength of the pull towards the reference. A smaller beta lets the model move further"""
    separator: bool = False
    """Put <|sep|> between prompt and answer, as in the task text-to-text"""
    truncate: Literal["right", "left", "middle"] = "left"
    """Where a prompt is cut if prompt and answer do not fit in the context"""
    template: Annotated[str, Learned] = ""
    """Chat template of the run; empty if there is none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta > 0:
            raise ValueError(f"`beta` is {self.beta}, but must be above 0")

    # Reading

    @property
    def input_names(self) -> tuple[str, ...]:
        return self.names

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        """Return the prompt, the chosen and the rejected answer; None without two different answers.

        Each is a text. With a chat template, each is a conversation. Without a column of prompts, the prompt is the
        shared beginning of both answers. A prompt is ignored if two conversations repeat it in their shared beginning.
        """
        from pipelines.chat.messages import text_or_messages  # --help does not need it

        *prompts, chosen, rejected = (text_or_messages(row, name, required=False) for name in self.names)
        if prompts and not _is_repeated(prompts[0], chosen, rejected):
            prompt = prompts[0]
        elif isinstance(chosen, str) != isinstance(rejected, str):
            raise ValueError(f"{row.place} has a text and a list of messages: give two of one kind")
        else:
            prompt = _shared_start(chosen, rejected)
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        sides: tuple[Any, ...] = prompt, chosen, rejected
        if not self.template:
            sides = tuple(map(_as_text, sides))
        else:
            sides = (_as_messages(prompt, "user"), *(_as_messages(side, "assistant") for side in sides[1:]))
            if any(answer and all(one.role != "assistant" for one in answer) for answer in sides[1:]):
                raise ValueError(f"{row.place} has an answer without a message of the assistant: give one")
        return Example(row, sides) if all(sides[1:]) and sides[1] != sides[2] else None

    def key(self, example: Example) -> str:
        """Return the prompt, so that all its answers stay together. Without a prompt, return the answers."""
        return repr(example.inputs[0] or example.inputs)

    # The model

    def adapt(self, run: "Run", tok: Tokenizer) -> Adapted[Self]:
        """Return the task with the chat template of `run`. With `separator`, rows are texts without a template."""
        return Adapted(replace(self, template="" if self.separator else run.chat_template), {}, tok)

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        around = reader.around
        if not around.stops:
            require_special_tokens(f"the task {self.name}", (END_OF_TEXT,), around.special)
        if self.separator:
            require_special_tokens("`separator`", (SEP,), around.special)
        before = [] if self.template else list(around.before)
        between = [around.special[SEP]] if self.separator else []
        whole = reader.model.context_length + 1 - len(before) - len(between)  # the last token is a target only
        pairs = self._conversations(examples, reader, whole) if self.template else self._texts(examples, reader)
        encoded = []
        for origin, (pair, example) in enumerate(zip(pairs, examples, strict=True)):
            room = whole if before or between or pair.prompt else whole - 1
            most = room - min(len(pair.prompt), room // 2)
            answers = [(ids[:most], scored[:most]) for ids, scored in pair.answers]
            if not all(any(scored) for _, scored in answers):
                raise ValueError(f"{example.row.place} has no answer within the context of the model: shorten it")
            kept = reader.cut(pair.prompt, room - max(len(ids) for ids, _ in answers))
            # The first token of an answer needs one before it.
            start = [*before, *kept, *between] or [around.stops[0]]
            cut = pair.cut or len(kept) < len(pair.prompt) or any(len(ids) > most for ids, _ in pair.answers)
            encoded.append(encoded_pair(start, answers, origin, cut))
        return encoded

    def _texts(self, examples: Sequence[Example], reader: TextReader) -> Iterator[AnswerPair]:
        for prompt, *answers in reader.ids_of_each([example.inputs for example in examples]):
            ends = [[*ids, reader.around.stops[0]] for ids in answers]
            yield AnswerPair(prompt, [(ids, [True] * len(ids)) for ids in ends])

    def _conversations(self, examples: Sequence[Example], reader: TextReader, room: int) -> Iterator[AnswerPair]:
        from pipelines.chat.template import ChatTemplate

        template = ChatTemplate.of(self.template, reader.tokenizer, reader.around)
        for example in examples:
            try:
                pair = conversation_pair(template, example.inputs, room if self.truncate == "left" else None)
            except ValueError as error:
                raise ValueError(f"{example.row.place}: {error}") from None
            yield pair

    def prepare(self, encoded: list[Encoded], start: "Callable[[], TrainedModel]") -> list[Encoded]:
        """Return the pairs with ln p of their answers under the reference, so only one model stays in memory."""
        from pipelines.run.answer_scores import with_reference  # imports torch

        return with_reference(encoded, start())

    def loss(self, reader: TextReader) -> "Callable[..., Tensor]":
        from pipelines.training.logit_losses import summed_preference_loss  # imports torch

        return partial(summed_preference_loss, beta=self.beta)

    # Results

    def outputs(
        self,
        predictor: "Predictor",
        encoded: Sequence[Encoded],
        labelled: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> list["Scores"]:
        from pipelines.run.answer_scores import answer_scores, reference_of  # imports torch

        try:
            reference = reference_of(predictor.run, predictor.model)
        except ValueError as error:
            if not labelled:
                raise ValueError(f"a preference needs the run that the model started from: {error}") from None
            say(f"numbers that need the reference are left out: {error}")
            reference = None
        return answer_scores(predictor.model, reference, encoded, progress)

    def results(
        self, outputs: Sequence["Scores"], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        own = np.array([one.own for one in outputs])
        after = {"chosen_nats": float(own[:, 0].mean()), "rejected_nats": float(own[:, 1].mean())}
        before = np.array([one.reference for one in outputs if one.reference is not None])
        if not len(before):
            return [PreferenceNumbers(**after)]
        margins = self._margins(outputs)
        kl = sum(one.kl_bits for one in outputs) / sum(one.tokens for one in outputs)
        return [
            PreferenceNumbers(
                **_share_preferred(margins),
                preference_loss=float(np.logaddexp(0, -margins).mean()),
                reward_margin=float(margins.mean()),
                reference_kl_bits=kl,
                chosen_nats_before=float(before[:, 0].mean()),
                rejected_nats_before=float(before[:, 1].mean()),
                **after,
            )
        ]

    def baselines(
        self, training: Sequence[Example], examples: Sequence[Example], reader: TextReader
    ) -> dict[str, Result]:
        sizes = np.array([[len(_as_text(answer)) for answer in example.inputs[1:]] for example in examples])
        longer = sizes[:, 0] - sizes[:, 1]
        return {
            "the longer answer": PreferenceNumbers(**_share_preferred(longer)),
            "the shorter answer": PreferenceNumbers(**_share_preferred(-longer)),
        }

    def predictions(
        self, outputs: Sequence["Scores"], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        names = self.names[-2:]
        return [
            {"prediction": names[int(margin < 0)], "reward_margin": float(margin)} for margin in self._margins(outputs)
        ]

    def summary(self, example: Example, fields: dict[str, Any]) -> str:
        return super().summary(replace(example, inputs=tuple(map(_as_text, example.inputs))), fields)

    def _margins(self, outputs: Sequence["Scores"]) -> Array:
        """Return the reward margin of each pair, chosen minus rejected, float64 (N,)."""
        ratios = np.array([one.own - one.reference for one in outputs if one.reference is not None])
        margins: Array = self.beta * (ratios[:, 0] - ratios[:, 1])
        return margins


def _share_preferred(margins: Array) -> dict[str, float]:
    """Return the share of margins above 0 and its interval, by field of PreferenceNumbers."""
    share = float((np.sign(margins) + 1).mean() / 2)
    low, high = share_interval(share, len(margins))
    return {"preference_accuracy": share, "preference_low": low, "preference_high": high}


# Texts and messages


def _as_text(side: "str | Conversation") -> str:
    """Return a text, or the messages as a text: `user: Hello` and an empty line."""
    return side if isinstance(side, str) else "".join(f"{role}: {content}\n\n" for role, content in side)


def _as_messages(side: "str | Conversation", role: Literal["user", "assistant"]) -> "Conversation":
    """Return messages, or a text as a message of `role`; no message for an empty text."""
    from pipelines.chat.messages import Message

    if not isinstance(side, str):
        return side
    return (Message(role, side),) if side else ()


def _is_repeated(prompt: Any, chosen: Any, rejected: Any) -> bool:
    """Return whether the shared beginning of two conversations has a prompt: its messages first, or its text."""
    if not prompt or any(isinstance(side, str) for side in (chosen, rejected)):
        return False
    shared = _shared_start(chosen, rejected)
    if not isinstance(prompt, str):
        return bool(shared[: len(prompt)] == prompt)
    return any(one.role == "user" and one.content == prompt for one in shared)


def _shared_start(chosen: Any, rejected: Any) -> Any:
    """Return the shared beginning of both answers, in whole messages or whole words."""
    pairs = enumerate(zip(chosen, rejected, strict=False))
    size = next((place for place, (one, other) in pairs if one != other), min(len(chosen), len(rejected)))
    shared = chosen[:size]
    return shared[: max(0, shared.rfind(" "), shared.rfind("\n"))] if isinstance(shared, str) else shared


TASK = Preferences

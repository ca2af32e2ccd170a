"""The chosen one of two answers (DPO)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from corpora.rows import Row
from lm.metrics.labels import share_interval
from pipelines.cli.display import say
from pipelines.evaluation.measurement import Result, number
from pipelines.recipes.config import FinetuneConfig
from pipelines.tasks.examples import ABSENT, Encoded
from pipelines.tasks.task import Example, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array
from pipelines.training.batch_objectives import require_special_tokens
from tokenizer import END_OF_TEXT, SEP

if TYPE_CHECKING:
    from torch import Tensor

    from lm.task_model import TrainedModel
    from pipelines.run.answer_scores import Scores
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
    from_random = False
    used_by = "generate"
    settings = FinetuneConfig(epochs=1, lr=1e-4, dropout=0.0)

    beta: float = 0.1
    """Strength of the pull towards the reference. A smaller beta lets the model move further"""
    separator: bool = False
    """Put <|sep|> between prompt and answer, as in the task text-to-text"""
    truncate: Literal["right", "left", "middle"] = "left"
    """Where a prompt is cut if prompt and answer do not fit in the context"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta > 0:
            raise ValueError(f"`beta` is {self.beta}, but must be above 0")

    # Reading

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        """Return the prompt, the chosen and the rejected answer; None without two different answers.

        Without a column of prompts, the prompt is the shared beginning of both answers.
        """
        names = self.columns or self.usual[0]
        *prompts, chosen, rejected = (_side(row, name) for name in names)
        if prompts:
            prompt = prompts[0]
        elif isinstance(chosen, str) != isinstance(rejected, str):
            raise ValueError(f"{row.place} has a text and a list of messages: give two of one kind")
        else:
            prompt = _shared_start(chosen, rejected)
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
        texts = tuple(side if isinstance(side, str) else "".join(side) for side in (prompt, chosen, rejected))
        return Example(row, texts) if all(texts[1:]) and texts[1] != texts[2] else None

    def rows_of_texts(self, texts: Sequence[str]) -> list[Row]:
        names = self.columns or self.usual[0]
        if len(texts) % len(names):
            raise ValueError(f"{len(texts)} texts are given, but an example has {len(names)}: {' and '.join(names)}")
        groups = zip(*[iter(texts)] * len(names), strict=True)
        return [Row(f"text {n}", dict(zip(names, group, strict=True))) for n, group in enumerate(groups, 1)]

    def key(self, example: Example) -> str:
        """Return the prompt, so that all its answers stay together. Without a prompt, return the answers."""
        return repr(example.inputs[0] or example.inputs)

    # The model

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        around = reader.around
        if not around.stops:
            require_special_tokens(f"the task {self.name}", (END_OF_TEXT,), around.special)
        if self.separator:
            require_special_tokens("`separator`", (SEP,), around.special)
        between = [around.special[SEP]] if self.separator else []
        room = reader.model.context_length + 1 - max(1, len(around.before) + len(between))
        texts = [reader.ids(side) for side in zip(*(example.inputs for example in examples), strict=True)]
        encoded = []
        for origin, (prompt, *answers) in enumerate(zip(*texts, strict=True)):
            most = room - min(len(prompt), room // 2)
            ends = [[*answer, around.stops[0]][:most] for answer in answers]
            kept = reader.cut(prompt, room - max(map(len, ends)))
            # The first token of an answer needs one before it.
            start = [*around.before, *kept, *between] or [around.stops[0]]
            cut = len(kept) < len(prompt) or any(len(answer) >= most for answer in answers)
            encoded.append(_pair(start, ends, origin, cut))
        return encoded

    def prepare(self, encoded: list[Encoded], start: "Callable[[], TrainedModel]") -> list[Encoded]:
        """Return the pairs with ln p of their answers under the reference, so only one model stays in memory."""
        from pipelines.run.answer_scores import with_reference  # imports torch

        return with_reference(encoded, start())

    def loss(self) -> "Callable[..., Tensor]":
        from pipelines.training.logit_losses import summed_preference_loss  # imports torch

        return partial(summed_preference_loss, beta=self.beta)

    # Results

    def outputs(
        self,
        predictor: "Predictor",
        encoded: Sequence[Encoded],
        labelled: bool,
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
        longer = np.array([len(chosen) - len(rejected) for _, chosen, rejected in (one.inputs for one in examples)])
        return {
            "the longer answer": PreferenceNumbers(**_share_preferred(longer)),
            "the shorter answer": PreferenceNumbers(**_share_preferred(-longer)),
        }

    def predictions(
        self, outputs: Sequence["Scores"], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        names = (self.columns or self.usual[0])[-2:]
        return [
            {"prediction": names[int(margin < 0)], "reward_margin": float(margin)} for margin in self._margins(outputs)
        ]

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


def _pair(start: list[int], answers: list[list[int]], origin: int, cut: bool) -> Encoded:
    """Return two rows with the same start and different answers. The weights of all answer tokens sum to 1."""
    length = len(start) + max(map(len, answers)) - 1
    ids, targets = np.full((2, length), ABSENT, np.int64), np.zeros((2, length), np.int64)
    weights = np.zeros((2, length), np.float32)
    for row, answer in enumerate(answers):
        joined, end = [*start, *answer], len(start) + len(answer) - 1
        ids[row, :end], targets[row, :end] = joined[:-1], joined[1:]
        weights[row, len(start) - 1 : end] = 1 / sum(map(len, answers))
    return Encoded(ids=ids, targets=targets, weights=weights, origin=origin, cut=cut)


# Texts and messages


def _side(row: Row, name: str) -> str | list[str]:
    """Return a text, or each message as a text: `user: Hello`."""
    value: Any = row.value(name, "a text, or a list of messages", str, list, type(None))
    if not isinstance(value, list):
        return row.text(name)
    for message in value:
        known = isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not known:
            raise ValueError(
                f'"{name}" in {row.place} has {message!r:.60}, not a message: give {{"role": ..., "content": ...}}'
            )
    return [f"{message['role']}: {message['content']}\n\n" for message in value]


def _shared_start(chosen: Any, rejected: Any) -> Any:
    """Return the shared beginning of both answers, in whole messages or whole words."""
    pairs = enumerate(zip(chosen, rejected, strict=False))
    size = next((place for place, (one, other) in pairs if one != other), min(len(chosen), len(rejected)))
    shared = chosen[:size]
    return shared[: max(0, shared.rfind(" "), shared.rfind("\n"))] if isinstance(shared, str) else shared


TASK = Preferences

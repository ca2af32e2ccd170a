"""Two answers to one prompt: the ids that a model reads, and which of them count in the loss. Imports no torch."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from pipelines.chat.messages import Conversation, fitting
from pipelines.chat.template import ChatTemplate, Encoding
from pipelines.tasks.examples import ABSENT, Encoded


class AnswerPair(NamedTuple):
    """The ids of a prompt, and of each of two answers with a mask of the ids that count."""

    prompt: Sequence[int]
    answers: Sequence[tuple[Sequence[int], Sequence[bool]]]
    cut: bool = False
    """Whether messages of the prompt were left out"""


def conversation_pair(
    template: ChatTemplate, conversations: tuple[Conversation, Conversation, Conversation], room: int | None
) -> AnswerPair:
    """Return a prompt, its chosen and its rejected answer. The assistant's tokens after the prompt count.

    These include the special tokens that end its turns. If prompt and answer have more than `room` tokens, the oldest
    turns of the prompt are left out. Raises ValueError if the template fails.
    """
    prompt, *endings = conversations

    @cache
    def whole(kept: Conversation) -> list[Encoding]:
        return [template.encode((*kept, *answer)) for answer in endings]

    kept = prompt if room is None else fitting(prompt, lambda some: all(len(one.ids) <= room for one in whole(some)))
    both = whole(kept)
    earlier = 0  # tokens up to the last answer in the prompt
    if any(message.role == "assistant" for message in kept):
        before = template.encode(kept)
        earlier = int(np.flatnonzero(before.answers).max(initial=-1)) + 1
        if not all(np.array_equal(one.ids[:earlier], before.ids[:earlier]) for one in both):
            raise ValueError("the chat template writes earlier messages differently when others follow")
    places = [earlier + np.flatnonzero(one.answers[earlier:]) for one in both]
    if not all(map(len, places)):
        raise ValueError("the chat template writes no answer of the assistant")
    shared = min(int(place[0]) for place in places)
    first, second = (one.ids[:shared] for one in both)
    shared = int(np.flatnonzero(np.append(first != second, True))[0])
    answers = []
    for one, place in zip(both, places, strict=True):
        end = int(place[-1]) + 1
        scored = np.isin(np.arange(shared, end), place)
        answers.append((one.ids[shared:end].tolist(), scored.tolist()))
    return AnswerPair(first[:shared].tolist(), answers, len(kept) < len(prompt))


def encoded_pair(
    start: list[int], answers: Sequence[tuple[Sequence[int], Sequence[bool]]], origin: int, cut: bool
) -> Encoded:
    """Return two rows with the same start and different answers. The weights of all scored tokens sum to 1."""
    length = len(start) + max(len(ids) for ids, _ in answers) - 1
    ids, targets = np.full((2, length), ABSENT, np.int64), np.zeros((2, length), np.int64)
    weights = np.zeros((2, length), np.float32)
    for row, (answer, scored) in enumerate(answers):
        joined, end = [*start, *answer], len(start) + len(answer) - 1
        ids[row, :end], targets[row, :end] = joined[:-1], joined[1:]
        weights[row, len(start) - 1 : end] = np.array(scored) / sum(sum(counted) for _, counted in answers)
    return Encoded(ids=ids, targets=targets, weights=weights, origin=origin, cut=cut)

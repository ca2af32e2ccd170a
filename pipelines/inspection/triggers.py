"""Triggers: the positions of a text at which a unit or a feature is strongest, with their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lm.introspection.unit_activity import UnitActivity
from pipelines.evaluation.measurement import Table
from pipelines.inspection.words import Words

CONTEXT, SHOWN = 8, 48  # tokens before a trigger, and characters of a trigger in a table


@dataclass(frozen=True)
class Trigger:
    """A position at which a unit is strongest."""

    before: tuple[str, ...]
    """The tokens up to the position, including the one at the position"""
    next: str
    """The next token of the text"""
    activation: float


def triggers_of(
    activity: UnitActivity, unit: int, inputs: np.ndarray, following: np.ndarray, words: Words
) -> tuple[Trigger, ...]:
    """Return where a unit is strongest, without positions of activation 0.

    `inputs` (windows, T) has the ids of the text, and `following` (windows, T) the next ids.
    """
    found = []
    values, positions = (part[:, unit].tolist() for part in (activity.strongest, activity.positions))
    for value, position in zip(values, positions, strict=True):
        row, column = divmod(position, inputs.shape[1])
        before = inputs[row, max(0, column - CONTEXT) : column + 1].tolist()
        if value:
            found.append(Trigger(words.of(before), words.of([int(following[row, column])])[0], value))
    return tuple(found)


def trigger_table(title: str, triggers: tuple[Trigger, ...]) -> Table:
    """Return the triggers as a table."""
    rows = [(f"{one.activation:+.2f}", ["".join(one.before)[-SHOWN:], one.next]) for one in triggers]
    return Table(title, "activation", ["trigger", "next"], rows, text=True)

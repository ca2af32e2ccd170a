"""Entities in sequences of tags, and their precision, recall and F1 as conlleval counts them (Tjong Kim Sang 2000).

A tag is O, or a position and a type: B-PER begins an entity, I-PER is inside one. S and U mark an entity of one word,
E and L the last word of one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

OUTSIDE = "O"
_IOB2 = {"S": "B", "U": "B", "E": "I", "L": "I"}
_POSITIONED = re.compile("[BIESLU](-.+)?")


class Entity(NamedTuple):
    """Words `start` to `end - 1`, of one type."""

    kind: str
    start: int
    end: int


def marks_entities(tags: Iterable[str]) -> bool:
    """Return whether tags mark entities: each is O or has a position, and one begins or continues an entity."""
    distinct = set(tags) - {OUTSIDE}
    return all(map(_POSITIONED.fullmatch, distinct)) and any(tag[0] in "BI" for tag in distinct)


def iob2(tags: Sequence[str]) -> list[str]:
    """Return the tags of a sentence in IOB2, where each entity begins with B. The entities stay the same.

    In IOB1, B only separates an entity from one of the same type before it. An entity begins at B, S or U, at a new
    type, after E, S, L or U, and after O.
    """
    result = []
    before, ended = OUTSIDE, True
    for tag in tags:
        if tag == OUTSIDE:
            result.append(tag)
        else:
            place, kind = _IOB2.get(tag[0], tag[0]), tag[1:]
            begins = place == "B" or ended or before[1:] != kind
            result.append(("B" if begins else "I") + kind)
        before, ended = tag, tag[0] in "OESLU"
    return result


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a sentence, in their order; the type of B and I without a type is _."""
    found: list[Entity] = []
    for place, tag in enumerate(iob2(tags)):
        if tag[0] == "B":
            found.append(Entity(tag[2:] or "_", place, place + 1))
        elif tag[0] == "I":
            found[-1] = found[-1]._replace(end=place + 1)
    return found


@dataclass(frozen=True)
class EntityScores:
    """Numbers of entities: of gold, predicted, and those in both with type, start and end."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """correct / predicted; 0 if none is predicted."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """correct / gold; 0 if there is none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """2 correct / (gold + predicted); 0 if there are none."""
        return 2 * self.correct / (self.gold + self.predicted) if self.gold + self.predicted else 0.0


def entity_scores(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> tuple[EntityScores, dict[str, EntityScores]]:
    """Return the scores of all entities of sentences, and those of each type, by its name."""
    counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
    for sides in zip(gold, predicted, strict=True):
        true, said = (set(entities(tags)) for tags in sides)
        for counter, found in zip(counts, (true, said, true & said), strict=True):
            counter.update(entity.kind for entity in found)
    kinds = sorted(counts[0].keys() | counts[1].keys())
    by_kind = {kind: EntityScores(*(counter[kind] for counter in counts)) for kind in kinds}
    return EntityScores(*(counter.total() for counter in counts)), by_kind

"""Targets that a model writes for sources or prompts of ids, in batches of similar lengths."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from lm.decoding.beam import beam_search
from lm.decoding.generation import generate
from lm.decoding.packed import prepare
from lm.decoding.state import pad_left, pad_right
from lm.model import LanguageModel
from pipelines.evaluation.measurements.translation import SOURCES, sources_at_once
from pipelines.run.text_ids import TextIds

Texts = Sequence[Sequence[int]]


def searched_targets(
    model: LanguageModel,
    sources: Texts,
    around: TextIds,
    allowed: torch.Tensor | None,
    *,
    tokens: int,
    beams: int,
    length_penalty: float,
    progress: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """Return the likeliest target of each source that beam search finds, without its end.

    `sources` are ids that an encoder reads, with the ids around a text; `allowed`: see `known_ids`.
    """
    prepared, best = prepare(model), _Found(len(sources), around, progress)
    assert around.start is not None
    for rows in _batches(sources, sources_at_once(beams)):
        source, present = pad_right([sources[row] for row in rows], prepared.device)
        found = beam_search(
            prepared,
            source,
            start_id=around.start,
            end_ids=around.stops,
            max_new_tokens=tokens,
            beams=beams,
            length_penalty=length_penalty,
            source_present=present,
            allowed=allowed,
        )
        best.add(rows, [hypotheses[0].ids for hypotheses in found])
    return best.targets


def continued_prompts(
    model: LanguageModel,
    prompts: Texts,
    around: TextIds,
    allowed: torch.Tensor | None,
    *,
    tokens: int,
    progress: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """Return the likeliest next tokens of each prompt of a decoder, one after another, up to the first end."""
    prepared, best = prepare(model), _Found(len(prompts), around, progress)
    for rows in _batches(prompts, SOURCES):
        ids, present = pad_left([prompts[row] for row in rows], prepared.device)
        new = generate(prepared, ids, tokens, present=present, temperature=0.0, allowed=allowed, stop_ids=around.stops)
        best.add(rows, new.tolist())
    return best.targets


class _Found:
    """Targets that arrive in any order."""

    def __init__(self, count: int, around: TextIds, progress: Callable[[int], None] | None) -> None:
        self.targets: list[list[int]] = [[]] * count
        self._stops, self._progress, self._done = frozenset(around.stops), progress, 0

    def add(self, rows: Sequence[int], targets: Texts) -> None:
        for row, ids in zip(rows, targets, strict=True):
            end = next((place for place, token in enumerate(ids) if token in self._stops), len(ids))
            self.targets[row] = list(ids[:end])
        self._done += len(rows)
        if self._progress:
            self._progress(self._done)


def _batches(texts: Texts, size: int) -> Iterator[list[int]]:
    """Yield the numbers of the texts of each batch."""
    order = np.argsort([len(text) for text in texts], kind="stable").tolist()
    return (order[first : first + size] for first in range(0, len(order), size))

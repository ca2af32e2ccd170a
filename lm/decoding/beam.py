"""Beam search: the likeliest target of a source, looked for among several that grow side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.decoding.generation import encode_source
from lm.decoding.packed import InferenceModel, prepare
from lm.decoding.sampling import only
from lm.decoding.state import DecodeState
from lm.model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A target, without its start; its end is the last id, unless it ran out of tokens."""

    ids: tuple[int, ...]
    score: float
    """ln p(ids | source) / len(ids) ** length_penalty."""


@torch.inference_mode()
def beam_search(
    model: LanguageModel | InferenceModel,
    source: Tensor,
    *,
    start_id: int,
    end_ids: Sequence[int],
    max_new_tokens: int,
    beams: int = 4,
    length_penalty: float = 1.0,
    early_stop: bool = True,
    source_present: Tensor | None = None,
    allowed: Tensor | None = None,
    use_cache: bool = True,
) -> list[list[Hypothesis]]:
    """The best targets found for each source (B, S) int64, at most `beams` of them, best first.

    The `beams` likeliest unfinished targets each grow by every token; of all those, the `beams` likeliest that do not
    end, in one of `end_ids`, are kept, and those that end are finished if they are among the `beams` likeliest. A
    target y has the score
    ln p(y | source) / |y|^a, with |y| its tokens, the end included, and a = `length_penalty`: 0 prefers short targets,
    1 takes the mean of a token. (Wu et al. 2016, equation 14, divide by ((5 + |y|) / 6)^a instead.) A source is done
    when `beams` targets have ended; without `early_stop` only when no unfinished one can still come before them,
    however long. What is unfinished after `max_new_tokens` is taken as it is. Sources are right-padded where
    `source_present` (B, S) bool is False; none changes what is found for another. Targets have only ids for which
    `allowed` (V,) bool is True, all probability being theirs. Raises ValueError for a model that
    reads no source, or fewer than one beam or token.
    """
    if beams < 1 or max_new_tokens < 1:
        raise ValueError(f"beams is {beams} and max_new_tokens is {max_new_tokens}: give at least 1 of each")
    model = prepare(model)
    cross_cache = encode_source(model, source, source_present)
    starts = torch.full((len(source) * beams, 1), start_id, device=source.device)
    state = DecodeState(model, starts, room=max_new_tokens, cross_cache=cross_cache, use_cache=use_cache)
    rules = _Rules(beams, frozenset(end_ids), max_new_tokens, length_penalty, early_stop)
    searches = [_Search(rules) for _ in range(len(source))]
    growing, count = searches, (1 + len(rules.end_ids)) * beams  # enough, however many of them end
    for _ in range(max_new_tokens):
        found = _candidates(state, growing, count, allowed)
        parents = [search.grow(candidates) for search, candidates in zip(growing, found, strict=True)]
        kept = [row for row, search in enumerate(growing) if not search.done]
        if not kept:
            break
        rows = [row * beams + beam for row in kept for beam in parents[row]]
        if len(kept) < len(growing):
            cross_cache.select(torch.tensor(kept, device=source.device))
            growing = [growing[row] for row in kept]
        if rows != list(range(len(state.window))):
            state.select(torch.tensor(rows, device=source.device))
        state.append(torch.tensor([text[-1] for search in growing for text in search.texts], device=source.device))
    return [search.finished for search in searches]


@dataclass(frozen=True)
class _Rules:
    beams: int
    end_ids: frozenset[int]
    max_new_tokens: int
    length_penalty: float
    early_stop: bool

    def score(self, log_probability: float, length: int) -> float:
        return log_probability / length**self.length_penalty


class _Search:
    """The targets of one source: `texts` that grow, likeliest first, and those `finished`, best first."""

    def __init__(self, rules: _Rules) -> None:
        self.rules = rules
        self.texts: list[tuple[int, ...]] = [()] * rules.beams
        # all beams begin alike: only one may go on
        self.log_probabilities = [0.0] + [-math.inf] * (rules.beams - 1)
        self.finished: list[Hypothesis] = []
        self.done = False

    def grow(self, candidates: list[tuple[float, int, int]]) -> list[int]:
        """Go on with the best candidates (log-probability, beam, token), which come likeliest first; the beams that
        they grew from."""
        rules = self.rules
        length = len(self.texts[0]) + 1
        last = length == rules.max_new_tokens
        kept: list[tuple[float, int, int]] = []
        for rank, (log_probability, beam, token) in enumerate(candidates):
            ended = token in rules.end_ids or last
            if not ended:
                kept.append((log_probability, beam, token))
            elif rank < rules.beams and log_probability > -math.inf:
                ids = (*self.texts[beam], token)
                self.finished.append(Hypothesis(ids=ids, score=rules.score(log_probability, length)))
        self.finished = sorted(self.finished, key=lambda hypothesis: -hypothesis.score)[: rules.beams]
        kept = kept[: rules.beams]
        self.texts = [(*self.texts[beam], token) for _, beam, token in kept]
        self.log_probabilities = [log_probability for log_probability, _, _ in kept]
        self.done = last or self._nothing_better_can_come()
        return [beam for _, beam, _ in kept]

    def _nothing_better_can_come(self) -> bool:
        rules = self.rules
        if len(self.finished) < rules.beams:
            return self.log_probabilities[0] == -math.inf
        if rules.early_stop:
            return True
        # tokens only lower a log-probability; by how much it is divided grows with the length
        farthest = rules.max_new_tokens if rules.length_penalty > 0 else len(self.texts[0])
        return rules.score(self.log_probabilities[0], farthest) <= self.finished[-1].score


def _candidates(
    state: DecodeState, growing: list[_Search], count: int, allowed: Tensor | None
) -> list[list[tuple[float, int, int]]]:
    """For each search its `count` likeliest one-token continuations."""
    logits = only(state.logits().float(), allowed)
    before = torch.tensor([search.log_probabilities for search in growing], device=logits.device)
    entries = logits.shape[-1]
    total = before.unsqueeze(-1) + torch.log_softmax(logits, dim=-1).view(*before.shape, entries)
    best = total.flatten(1).topk(min(count, total[0].numel()), dim=-1)
    return [
        [(value, *divmod(index, entries)) for value, index in zip(values, indices, strict=True)]
        for values, indices in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]

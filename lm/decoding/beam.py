"""Beam search for the likeliest targets of sources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm.decoding.generation import encode_source
from lm.decoding.packed import InferenceModel, prepare
from lm.decoding.sampling import keep_allowed
from lm.decoding.state import DecodeState
from lm.model import LanguageModel

Extension = tuple[float, int, int]
"""Log-probability of the whole target, the beam that it extends, and its new token."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A target without its start id. It ends with an end id, unless it reached the most tokens."""

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
    """Return the best targets of each source (B, S) int64, at most `beams`, best first.

    Each step extends the `beams` unfinished targets by every token. The `beams` likeliest extensions that do not end in
    one of `end_ids` continue; an extension that ends is finished if it is among the `beams` likeliest of all.

    The score of a target y is ln p(y | source) / |y|^a with a = `length_penalty` and |y| its tokens, end included: 0
    prefers short targets, 1 takes the mean per token. (Wu et al. 2016, equation 14, divide by ((5 + |y|) / 6)^a.)

    A source is done when `beams` targets have finished; without `early_stop`, when no unfinished target can still beat
    them at any length. Targets that are unfinished after `max_new_tokens` count as finished. Sources are padded on the
    right where `source_present` (B, S) bool is False, and do not affect one another. The ids for which `allowed` (V,)
    bool is True share all probability. Raises ValueError for a model without sources, and below one beam or token.
    """
    if beams < 1 or max_new_tokens < 1:
        raise ValueError(f"beams is {beams} and max_new_tokens is {max_new_tokens}: give at least 1 of each")
    model = prepare(model)
    cross_cache = encode_source(model, source, source_present)
    assert cross_cache is not None, "the source is not optional"
    starts = torch.full((len(source) * beams, 1), start_id, device=source.device)
    state = DecodeState(model, starts, room=max_new_tokens, cross_cache=cross_cache, use_cache=use_cache)
    rules = _Rules(beams, frozenset(end_ids), max_new_tokens, length_penalty, early_stop)
    searches = [_Search(rules) for _ in range(len(source))]
    growing, count = searches, (1 + len(rules.end_ids)) * beams  # enough, even if every beam can end in each end id
    for _ in range(max_new_tokens):
        extensions = _extensions(state, growing, count, allowed)
        parents = [search.grow(best) for search, best in zip(growing, extensions, strict=True)]
        unfinished = [row for row, search in enumerate(growing) if not search.done]
        if not unfinished:
            break
        rows = [row * beams + beam for row in unfinished for beam in parents[row]]
        if len(unfinished) < len(growing):
            cross_cache.select(torch.tensor(unfinished, device=source.device))
            growing = [growing[row] for row in unfinished]
        if rows != list(range(len(state.window))):
            state.select(torch.tensor(rows, device=source.device))
        state.append(torch.tensor([ids[-1] for search in growing for ids in search.targets], device=source.device))
    return [search.finished for search in searches]


@dataclass(frozen=True)
class _Rules:
    beams: int
    end_ids: frozenset[int]
    max_new_tokens: int
    length_penalty: float
    early_stop: bool

    def score(self, log_probability: float, length: int) -> float:
        divisor: float = length**self.length_penalty
        return log_probability / divisor


class _Search:
    """The search for one source: unfinished `targets`, likeliest first, and `finished` ones, best first."""

    def __init__(self, rules: _Rules) -> None:
        self.rules = rules
        self.targets: list[tuple[int, ...]] = [()] * rules.beams
        # All beams start the same, so only the first may grow.
        self.log_probabilities = [0.0] + [-math.inf] * (rules.beams - 1)
        self.finished: list[Hypothesis] = []
        self.done = False

    def grow(self, extensions: list[Extension]) -> list[int]:
        """Grow by the best extensions, given likeliest first; return the beam that each new target extends."""
        rules = self.rules
        length = len(self.targets[0]) + 1
        last = length == rules.max_new_tokens
        unfinished: list[Extension] = []
        for rank, (log_probability, beam, token) in enumerate(extensions):
            if not (last or token in rules.end_ids):
                unfinished.append((log_probability, beam, token))
            elif rank < rules.beams and log_probability > -math.inf:
                ids = (*self.targets[beam], token)
                self.finished.append(Hypothesis(ids=ids, score=rules.score(log_probability, length)))
        self.finished = sorted(self.finished, key=lambda hypothesis: -hypothesis.score)[: rules.beams]
        unfinished = unfinished[: rules.beams]
        self.targets = [(*self.targets[beam], token) for _, beam, token in unfinished]
        self.log_probabilities = [log_probability for log_probability, _, _ in unfinished]
        self.done = last or self._finished_are_best()
        return [beam for _, beam, _ in unfinished]

    def _finished_are_best(self) -> bool:
        rules = self.rules
        if len(self.finished) < rules.beams:
            return self.log_probabilities[0] == -math.inf
        if rules.early_stop:
            return True
        # More tokens lower a log-probability, but a positive penalty divides it by more.
        longest = rules.max_new_tokens if rules.length_penalty > 0 else len(self.targets[0])
        return rules.score(self.log_probabilities[0], longest) <= self.finished[-1].score


def _extensions(
    state: DecodeState, growing: list[_Search], count: int, allowed: Tensor | None
) -> list[list[Extension]]:
    """Return the `count` likeliest one-token extensions of each search, likeliest first."""
    logits = keep_allowed(state.logits().float(), allowed)
    log_probabilities = torch.tensor([search.log_probabilities for search in growing], device=logits.device)
    entries = logits.shape[-1]
    steps = torch.log_softmax(logits, dim=-1).view(*log_probabilities.shape, entries)
    total = log_probabilities.unsqueeze(-1) + steps
    best = total.flatten(1).topk(min(count, total[0].numel()), dim=-1)
    return [
        [(value, *divmod(index, entries)) for value, index in zip(values, indices, strict=True)]
        for values, indices in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]

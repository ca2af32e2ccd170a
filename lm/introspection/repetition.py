"""How well a model repeats random tokens that it has just read, as only induction heads let it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lm.introspection.inference import inference_mode
from lm.metrics.units import bits
from lm.model import LanguageModel


@dataclass(frozen=True)
class Repetition:
    """Predictions of random tokens that occur twice in a row, without the first of each copy."""

    first_bits: float
    """Mean surprisal of the first copy, bits per token"""
    second_bits: float
    """Mean surprisal of the second copy: it can be known"""
    second_mass: float
    """Mean probability of the repeated token in the second copy"""
    chance: float
    """Probability of a token in a uniform draw"""


def repeated_tokens(ids: Tensor, generator: torch.Generator, *, length: int, sequences: int) -> Tensor:
    """Return (sequences, 2 length) ids: tokens drawn from `ids` (N,), twice in a row.

    A sequence repeats no token before its second half if N is large enough.
    """
    pool = ids.repeat(-(-length // len(ids)))
    once = torch.stack([pool[torch.randperm(len(pool), generator=generator)[:length]] for _ in range(sequences)])
    return once.repeat(1, 2)


def repetition(
    model: LanguageModel, generator: torch.Generator, *, ids: Tensor, length: int = 32, sequences: int = 16
) -> Repetition:
    """Return how well a decoder predicts `sequences` of `length` tokens of `ids` (N,) that are repeated once.

    Raises ValueError for another architecture, and if twice the length exceeds the context.
    """
    if model.config.architecture != "decoder":
        raise ValueError(f"model.architecture is {model.config.architecture!r}, but repetition needs a decoder")
    read = repeated_tokens(ids, generator, length=length, sequences=sequences).to(model.embedding.weight.device)
    with inference_mode(model):
        log_probabilities = model.logits(model(read[:, :-1])).double().log_softmax(dim=-1)
    of_next = log_probabilities.gather(-1, read[:, 1:, None]).squeeze(-1)  # (sequences, 2 length - 1)
    first, second = of_next[:, : length - 1], of_next[:, length:]
    return Repetition(bits(-first.mean().item()), bits(-second.mean().item()), second.exp().mean().item(), 1 / len(ids))

"""What a measurement is given: a split, the logits of the model while it scores the split, and the scored split."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from lm.model import LanguageModel
from pipelines.evaluation.confidence import Sampling
from pipelines.evaluation.core import Interval
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.ngrams import Baselines
from pipelines.evaluation.planning import Plan
from pipelines.evaluation.token_scores import TokenScores
from pipelines.evaluation.windows import Objective, Stream
from tokenizer import Tokenizer


class Chunk(NamedTuple):
    """N scored positions."""

    hidden: Tensor
    """(N, width)"""
    logits: Tensor
    """float32 (N, V)"""
    targets: Tensor
    """int64 (N,)"""
    nats: Tensor
    """float64 (N,): -ln p of the targets"""
    indices: np.ndarray
    """int64 (N,): places in the stream, -1 if the targets are not a part of a stream"""


@dataclass(frozen=True)
class Split:
    """A split of a dataset, with the model that scores it."""

    plan: Plan
    name: str
    stream: Stream
    model: LanguageModel
    tokenizer: Tokenizer
    objective: Objective
    baselines: Baselines | None


@dataclass(frozen=True)
class ScoredSplit(Split):
    """A split with the score of each of its tokens."""

    tokens: TokenScores
    text: StreamText | None
    """The documents of a stream, None for pairs"""
    sampling: Sampling | None
    """The units that the bootstrap draws, None for a text that is too short"""
    is_code: bool
    """Whether the loss is a code length, so that the split has bits per byte"""
    intervals: dict[str, Interval | None]
    """Intervals of numbers; a measurement adds its own"""

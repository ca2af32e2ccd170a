"""A split after the pass of the model: what a measurement is given."""

from dataclasses import dataclass

from lm.model import LanguageModel
from pipelines.evaluation.confidence import Sampling
from pipelines.evaluation.core import Interval
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.ngrams import Baselines
from pipelines.evaluation.planning import Plan
from pipelines.evaluation.token_scores import TokenScores
from pipelines.evaluation.windows import Objective, Stream
from tokenizer import Tokenizer


@dataclass(frozen=True)
class ScoredSplit:
    """A split of a dataset, with the score of each of its tokens."""

    plan: Plan
    name: str
    stream: Stream
    model: LanguageModel
    tokenizer: Tokenizer
    objective: Objective
    baselines: Baselines | None
    tokens: TokenScores
    text: StreamText | None
    """The documents of a stream, None for pairs"""
    sampling: Sampling | None
    """The units that the bootstrap draws, None for a text that is too short"""
    is_code: bool
    """Whether the loss is a code length, so that the split has bits per byte"""
    intervals: dict[str, Interval | None]
    """The intervals of numbers; a measurement adds those of its own"""

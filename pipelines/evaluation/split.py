"""The input of a measurement: a split, the logits of the model while it scores the split, and the scored split."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipelines.cli.waiting import doing
from pipelines.dataset.document_records import RecordedDocuments, read_documents
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation.confidence import Interval, Sampling, sampling_of
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.documents import StreamText, text_of_stream
from pipelines.evaluation.planning import Plan
from pipelines.evaluation.windows import Objective, Stream, TokenScores, Windows
from pipelines.training.batch_objectives import Corruption, MaskedToken
from tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from lm.model import LanguageModel
    from pipelines.evaluation.measurements.ngrams import Baselines
    from pipelines.evaluation.measurements.trained_text import TrainedText, TrainingText
    from pipelines.run.loaded_run import Trained


class Chunk(NamedTuple):
    """N scored positions of a batch of windows."""

    windows: Windows
    indices: np.ndarray
    """int64 (N,): places in the stream, -1 if the targets are not a part of a stream"""
    hidden: Tensor
    """(N, width)"""
    logits: Tensor
    """float32 (N, V)"""
    targets: Tensor
    """int64 (N,)"""
    nats: Tensor
    """float64 (N,): -ln p of the targets"""


@dataclass(frozen=True)
class Split:
    """A split of a dataset, with the model that scores it."""

    plan: Plan
    name: str
    stream: Stream
    trained: Trained
    tokenizer: Tokenizer
    objective: Objective
    baselines: Baselines | None
    training_text: TrainingText
    other: Split | None
    """The split of the run to compare with: the same stream, if the tokenizer is the same"""

    @property
    def model(self) -> LanguageModel:
        return self.trained.model

    @property
    def separator(self) -> int | None:
        """The id before each document of a stream, None without one."""
        dataset = self.plan.dataset
        separator: int | None = dataset.separator if isinstance(dataset, CorpusText) else dataset.info["separator"]
        return separator

    @cached_property
    def recorded(self) -> RecordedDocuments | None:
        """The record of the documents, if the dataset has one."""
        dataset = self.plan.dataset
        if isinstance(dataset, CorpusText):
            return dataset.splits[self.name].recorded
        return read_documents(dataset.folder / self.name, dataset.info["splits"][self.name])

    @cached_property
    def text(self) -> StreamText | None:
        """The documents of a stream, None for pairs."""
        if not isinstance(self.stream, TokenStream):
            return None
        doing("finding the documents")
        dataset = self.plan.dataset
        mean = dataset.bytes_per_token(self.name) if isinstance(dataset, TokenDataset) else 0.0
        return text_of_stream(self.stream, self.tokenizer, self.separator, self.recorded, mean)

    @cached_property
    def trained_text(self) -> TrainedText:
        """The part of the split that the run was also trained on."""
        return self.training_text.share(self.stream, self.text)

    @property
    def per_byte(self) -> str:
        """The key of the model's bits per byte."""
        if isinstance(self.objective, MaskedToken):
            return "masked_bits_per_byte"
        return "bits_per_byte" if self.tokenizer.is_lossless else "bits_per_original_byte"


@dataclass(frozen=True)
class ScoredSplit(Split):
    """A split with the score of each of its tokens."""

    tokens: TokenScores
    predictions: dict[str, Any]
    """The means over all tokens, by `PredictionAccumulator`"""
    intervals: dict[str, Interval | None] = field(default_factory=dict)
    """Intervals of numbers; a measurement adds its own"""

    @cached_property
    def sizes(self) -> np.ndarray | None:
        """The bytes (N,) of the scored tokens, None if unknown."""
        if isinstance(self.objective, Corruption):
            return None
        if self.text is not None:
            return np.asarray(self.text.sizes[self.tokens.indices])
        lossless = self.tokenizer.is_lossless
        return np.asarray(self.tokenizer.token_byte_lengths[self.tokens.targets]) if lossless else None

    @cached_property
    def sampling(self) -> Sampling | None:
        """The units that the bootstrap draws, None for a text that is too short."""
        return sampling_of(self.tokens, self.text, self.plan.windows.window)

    @property
    def is_code(self) -> bool:
        """Whether the loss divided by the bytes is bits per byte of the text or of the original."""
        return self.sizes is not None and not isinstance(self.objective, MaskedToken)

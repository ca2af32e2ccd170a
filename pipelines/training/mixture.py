"""Mixtures: the datasets of a run with their weights, and the order in which they give blocks. Imports no torch."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from corpora.object_store import AnyPath
from pipelines.cli.display import quantity
from pipelines.cli.waiting import doing
from pipelines.dataset.pair_dataset import PairDataset
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.dataset.stored import local_copy
from pipelines.files import distinct_names
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run
from pipelines.run.sources import Sources
from pipelines.training.batch import Array

Dataset = TokenDataset | PairDataset


class Mixture:
    """The datasets that a run reads. A plain dataset is a mixture of one.

    Raises ValueError, naming two folders, unless all datasets have the same tokenizer, block length and separator.
    """

    def __init__(self, datasets: Sequence[Dataset], weights: Sequence[int] = (1,)) -> None:
        self.datasets, self.weights = list(datasets), list(weights)
        self.first = self.datasets[0]
        """The first dataset; all have the same tokenizer, block length and separator"""
        self.names = distinct_names([dataset.place for dataset in datasets])
        for other in self.datasets[1:]:
            _check_alike(self.first, other)

    @property
    def shares(self) -> dict[str, float]:
        """The share of each source in the blocks of the run, by name."""
        return {name: weight / sum(self.weights) for name, weight in zip(self.names, self.weights, strict=True)}

    def splits(self, name: str) -> list[TokenStream]:
        """Return a split of each dataset of blocks."""
        return [dataset.split(name) for dataset in self.datasets if isinstance(dataset, TokenDataset)]

    @property
    def fingerprint(self) -> str:
        """The fingerprint of a plain dataset, or the SHA-256 of all weights and fingerprints in order."""
        parts = [[weight, dataset.fingerprint] for weight, dataset in zip(self.weights, self.datasets, strict=True)]
        return self.first.fingerprint if len(parts) == 1 else hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def lines(self, tokens: float | None) -> list[str]:
        """Return a line for each source of a mixture: its share, tokens and epochs.

        If `tokens` is None, a line has only the share. A plain dataset has no lines.
        """
        if len(self.datasets) == 1:
            return []
        lines = []
        for (name, share), dataset in zip(self.shares.items(), self.datasets, strict=True):
            line = f"{name}: {100 * share:.4g} % of the tokens"
            if tokens is not None:
                available = dataset.split("train").tokens
                epochs = f"{share * tokens / available:.3g} epochs of {quantity(available, 'tok')}"
                line += f", {quantity(share * tokens, 'tok')} ({epochs})"
            lines.append(line)
        return lines


class Apportionment:
    """The source of each block of a run, in proportion to whole-number weights.

    Of the first n blocks, source s with weight w of a total W gives floor(n w / W) or ceil(n w / W), for every n. This
    is the quota method (Balinski & Young 1975, "The quota method of apportionment"). Unlike in the method of largest
    remainders, no source loses a block as n grows. The order repeats after W blocks.
    """

    def __init__(self, weights: Sequence[int]) -> None:
        total, given = sum(weights), [0] * len(weights)
        sources, numbers = [], []
        for block in range(total):
            may_give = (s for s, weight in enumerate(weights) if given[s] * total < weight * (block + 1))
            # Quotients of numbers below 2^26 are equal only if the fractions are.
            source = min(may_give, key=lambda s: (given[s] + 1) / weights[s])
            sources.append(source)
            numbers.append(given[source])
            given[source] += 1
        self._weights = np.array(weights)
        self._sources, self._numbers = np.array(sources), np.array(numbers)

    def locate(self, blocks: Array) -> tuple[Array, Array]:
        """Return the source of each block (N,) of the run, and its number among the blocks of that source."""
        periods, places = np.divmod(blocks, len(self._sources))
        sources = self._sources[places]
        return sources, periods * self._weights[sources] + self._numbers[places]


def _check_alike(one: Dataset, other: Dataset) -> None:
    """Raise ValueError if two datasets cannot be sources of one mixture."""
    both = f"{one.place} and {other.place}"
    if one.tokenizer_fingerprint != other.tokenizer_fingerprint:
        found = f"{one.tokenizer_fingerprint[:16]} and {other.tokenizer_fingerprint[:16]}"
        raise ValueError(f"{both} have different tokenizers ({found}): build both with one `tokenizer`")
    lengths = [dataset.info.get("context_length") for dataset in (one, other)]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"{both} have blocks of {lengths[0]} and {lengths[1]} tokens: build both with one `context_length`"
        )
    if one.info.get("separator") != other.info.get("separator"):
        raise ValueError(
            f"only one of {both} has a separator before each document: build both with the same separator option"
        )


def open_dataset(place: AnyPath, objective: str) -> Dataset:
    """Return the dataset in a folder or an object store.

    Raises ValueError if it is not of the kind that the objective reads.
    """
    doing("reading the dataset")
    kind = PairDataset if objective == "sequence-pairs" else TokenDataset
    return kind(place) if isinstance(place, Path) else kind(local_copy(place), copy_of=place)


def open_sources(sources: Sources, objective: str) -> Mixture:
    """Return the datasets of a run; ValueError if they cannot be mixed."""
    if len(sources) > 1 and objective == "sequence-pairs":
        raise ValueError(
            "`data` names a mixture, but sequence-pairs sorts pairs by length: build one dataset of all pairs "
            "(build-dataset takes several corpora)"
        )
    return Mixture([open_dataset(folder, objective) for folder in sources], list(sources.values()))


def check_tokenizer(dataset: Dataset, run: Run) -> None:
    """Raise ValueError if the dataset was built with another tokenizer than the run's."""
    fingerprint = run.tokenizer().fingerprint
    if dataset.tokenizer_fingerprint != fingerprint:
        raise ValueError(
            f"{dataset.place} was built with another tokenizer than {run.folder} "
            f"({dataset.tokenizer_fingerprint[:16]}, not {fingerprint[:16]}): build a dataset with "
            f"`tokenizer='{run.folder}'`"
        )


def fit_to_data(recipe: Recipe, dataset: Dataset, vocab_size: int = 0) -> Recipe:
    """Return `recipe` with `vocab_size` entries in the model's vocabulary, or by default as many as the dataset's.

    Raises ValueError if the recipe's vocabulary or context does not fit.
    """
    model, vocab_size = recipe.model, vocab_size or dataset.vocab_size
    if model.vocab_size not in (0, vocab_size):
        raise ValueError(
            f"model.vocab_size is {model.vocab_size}, but the dataset's tokenizer has {vocab_size} entries: "
            "leave it out, or build the dataset with another tokenizer"
        )
    around = recipe.edges
    # A dataset of pairs has no context length.
    if isinstance(dataset, TokenDataset) and model.context_length != dataset.context_length + around:
        fitting = model.context_length - around
        raise ValueError(
            f"model.context_length is {model.context_length}, but the dataset has blocks of {dataset.context_length} "
            f"tokens{f' (and the model reads {around} more)' if around else ''}: build the dataset with "
            f"`context_length={fitting}`, or give `model.context_length={dataset.context_length + around}`"
        )
    return replace(recipe, model=replace(model, vocab_size=vocab_size))

"""Excerpts of held-out text, for the samples and attention maps of a report."""

import numpy as np

from pipelines.dataset.pair_dataset import Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.run.folder import Run
from pipelines.run.text_ids import text_ids
from pipelines.training.batch_objectives import Corruption, make_objective
from pipelines.training.mixture import open_dataset


class Excerpts:
    """The tokenizer of a run, and the validation split of its dataset: `stream` or `pairs`.

    Both are None if the dataset is gone, has another tokenizer, or has no validation split.
    """

    def __init__(self, run: Run) -> None:
        self._run, self.tokenizer = run, run.tokenizer()
        self.text_ids = text_ids(run, self.tokenizer)
        split = None
        try:
            dataset = open_dataset(run.data, run.recipe.objective)
            if dataset.tokenizer_fingerprint == self.tokenizer.fingerprint:
                split = dataset.split("validation")
        except (ValueError, OSError):
            pass
        self.stream = split if isinstance(split, TokenStream) else None
        self.pairs = split if isinstance(split, Pairs) and len(split) else None

    def text(self, length: int, seed: int) -> np.ndarray:
        """Return `length` random consecutive tokens of one document, int64; empty if none are found."""
        if self.stream is None:
            return np.empty(0, np.int64)
        generator = np.random.default_rng(seed)
        special = sorted(self.tokenizer.special_tokens.values())
        for _ in range(100):
            start = int(generator.integers(max(1, self.stream.tokens - length)))
            ids = self.stream.read(start, length).astype(np.int64)
            first = self.tokenizer.decode_bytes(ids[:1].tolist())[:1]
            begins_within_character = b"\x80" <= first < b"\xc0"
            if not np.isin(ids, special).any() and not begins_within_character:
                return ids
        return np.empty(0, np.int64)

    def corrupt(self, text: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Corrupt a text by the objective; return the inputs of encoder and decoder, and the targets."""
        objective = make_objective(self._run.recipe.objective, len(text), self.tokenizer, facts=self._run.facts)
        assert isinstance(objective, Corruption)
        batch = objective.corrupt(text[None], [np.random.default_rng(seed)])
        assert batch.source is not None
        source = batch.source[0] if batch.source_present is None else batch.source[batch.source_present]
        return source, batch.inputs[0], batch.targets[0]

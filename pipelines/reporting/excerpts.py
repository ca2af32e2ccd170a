"""Excerpts of held-out text, for the samples and attention maps of a report."""

import numpy as np

from lm.objectives import span_corruption
from pipelines.dataset.pair_dataset import Pairs
from pipelines.dataset.reader import TokenStream
from pipelines.run.folder import Run
from pipelines.run.text_ids import text_ids
from pipelines.training.mixture import open_dataset
from tokenizer import sentinels


class Excerpts:
    """The tokenizer of a run, and the validation split of its dataset: `stream` or `pairs`.

    Both are None if the dataset is gone, has another tokenizer, or has no validation split.
    """

    def __init__(self, run: Run) -> None:
        self.tokenizer = run.tokenizer()
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
        """Remove spans of a text; return the inputs of encoder and decoder, and the targets."""
        special, start, stops = self.text_ids.special, self.text_ids.start, self.text_ids.stops
        assert start is not None and stops, "a model of span corruption has a start and an end token"
        sentinel_ids = [special[name] for name in sentinels(len(text)) if name in special]
        generators = [np.random.default_rng(seed)]
        made = span_corruption(text[None], generators, sentinel_ids=sentinel_ids, start_id=start, end_id=stops[0])
        source, inputs, targets = (part[0] for part in made[:3])
        return source, inputs, targets

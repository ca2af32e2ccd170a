"""Score a text while it is edited: only the tokens from the first change on are read again."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import torch
from numpy.typing import ArrayLike

from lm.decoding.hybrid_state import state_class
from lm.masks import Mask
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.windows import decoder_windows
from pipelines.run.loaded_run import LoadedRun
from pipelines.scoring.predictions import Predictions, write_scores
from pipelines.scoring.texts import TextScore, text_result, text_tokens
from pipelines.training.batch import Array
from pipelines.training.batch_objectives import NextToken


class IncrementalScorer:
    """Scores versions of one text with a decoder, as `score_text` does with its default stride.

    It keeps the predictions of the last version, and the keys and values of its last window. Versions are compared by
    ids, because an edit can also change tokens before it. Not thread-safe.
    """

    def __init__(self, run: LoadedRun, top: int = 5) -> None:
        """Make a scorer. `top`: number of likeliest tokens to return for each prediction."""
        config = run.config.model
        self.run = run
        self.before = np.array(run.around.before, np.int64)
        self.window = config.context_length
        self.stride = max(1, self.window // 2)
        self.read = 0
        """Number of tokens that the model has read for all versions together"""
        self._ids = self.before
        """The ids of the last version, up to the last predicted one"""
        self._made = Predictions.unknown(0, min(top, config.vocab_size))
        self._begin = 0  # of the window in the cache
        self._cache = state_class(run.model.stack)(
            run.model.stack,
            1,
            self.window,
            dtype=run.model.compute_dtype,
            device=run.model.embedding.weight.device,
        )

    def score(self, text: str) -> TextScore:
        """Return the score of a text. Raises ValueError if logits are not finite."""
        *_, score = self.steps(text_tokens(self.run, text))
        assert score is not None
        return score

    def steps(self, ids: ArrayLike) -> Iterator[TextScore | None]:
        """Score the `ids` of a text window by window: yield None after each window, and the score at the end.

        The caller may stop early; the next version reuses the windows that were read. If a newer version is scored in
        the meantime, the iterator ends without a score.
        """
        own, before = np.array(ids, np.int64), len(self.before)
        whole = np.concatenate((self.before, own))
        same = max(before, common_prefix(whole, self._ids))
        made = Predictions.unknown(len(own), self._made.top_ids.shape[1])
        for field in fields(Predictions):
            getattr(made, field.name)[: same - before] = getattr(self._made, field.name)[: same - before]
        self._ids, self._made = whole[:same], made
        stream = TokenStream([whole], self.window)
        for windows in decoder_windows(stream, NextToken(self.window), self.stride, first=same):
            for number, scored in enumerate(windows.scored, windows.first):
                if not scored.any():
                    continue
                columns = np.flatnonzero(scored)
                begin = number * self.stride
                self._predict(whole, begin, columns, made)
                self._ids = whole[: begin + int(columns[-1]) + 2]
                yield None
                if self._made is not made:
                    return
        yield text_result(
            self.run, own, made, False, None, before=self.run.around.before, window=self.window, stride=self.stride
        )

    @torch.inference_mode()
    def _predict(self, whole: Array, begin: int, columns: Array, made: Predictions) -> None:
        """Write the predictions at `columns` (P,) of the window at `begin` to `made`, and fill the cache.

        `whole`: the ids that the model reads: those before the text, then the text.
        """
        model, cache = self.run.model, self._cache
        # The first prediction needs the logits of the position before it, which the cache does not hold.
        cache.crop(int(columns[0]) if begin == self._begin else 0)
        self._begin, past = begin, cache.length
        targets = begin + 1 + columns
        ids = torch.from_numpy(whole[begin + past : int(targets[-1])]).to(model.embedding.weight.device)[None]
        tokens = ids.shape[1]
        hidden = model.stack(
            model.embed(ids),
            ids,
            dtype=model.compute_dtype,
            mask=Mask(),  # the cache masks
            positions=cache.positions(tokens),
            mixes=cache.mixes(tokens),
            rows=torch.from_numpy(columns - past).to(ids.device),
        )
        cache.advance(tokens)
        self.read += tokens
        wanted = torch.from_numpy(whole[targets]).to(ids.device)
        write_scores(model, hidden, wanted, targets - len(self.before), made)


class RecentTexts:
    """The scorers of the most recent texts. The least recently used one is dropped."""

    def __init__(self, texts: int = 8, top: int = 10) -> None:
        """`texts`: number of scorers to keep; `top` as in IncrementalScorer."""
        self.texts, self.top = texts, top
        self._scorers: OrderedDict[tuple[str, str], IncrementalScorer] = OrderedDict()

    def scorer(self, model: str, key: str, run: LoadedRun) -> IncrementalScorer:
        """Return the scorer of the model named `model` for the text that a client names `key`."""
        scorer = self._scorers.pop((model, key), None) or IncrementalScorer(run, self.top)
        self._scorers[model, key] = scorer
        if len(self._scorers) > self.texts:
            self._scorers.popitem(last=False)
        return scorer


def common_prefix(one: Array, other: Array) -> int:
    """Return the number of leading ids that two arrays share."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length

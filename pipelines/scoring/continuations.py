"""Score the endings of many texts: ln p of the tokens after a context, as lm-evaluation-harness encodes them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.evaluation.windows import sequence_windows
from pipelines.run.loaded_run import LoadedRun
from pipelines.scoring.predictions import Predictions, predict
from pipelines.training.batch import Array


@dataclass(frozen=True)
class Continuation:
    """The ids that a model reads. It scores those of the ending."""

    ids: Array
    """int64 (T,): start ids, context and ending"""
    first: int
    """Index of the first scored id"""
    is_cut: bool
    """Whether the beginning of the context was cut off"""
    joins: bool
    """Whether the first characters of the ending merge into the last token of the context, and are not scored"""


def continuation(run: LoadedRun, context: str, ending: str, before: Sequence[int], name: str) -> Continuation:
    """Return the ids of a context with an ending, encoded together after the ids `before`.

    If the context alone has n tokens, the ending is every token after the first n. A context that is too long is cut
    at its beginning. Raises ValueError, calling the ending `name`, if it adds no token or is too long.
    """
    tok, length = run.tokenizer, run.config.model.context_length
    read = tok.encode(context, disallowed_special=())
    whole = tok.encode(context + ending, disallowed_special=())
    added = whole[len(read) :]
    if not added:
        raise ValueError(f"{name} adds no token to the text: end the text at a word's end")
    if len(added) > length:
        raise ValueError(f"{name} has {len(added):,} tokens, and the model reads at most {length:,}: shorten it")
    ids = [*before, *read, *added]
    kept = ids[-length - 1 :]
    return Continuation(np.array(kept), len(kept) - len(added), len(kept) < len(ids), whole[: len(read)] != read)


def predict_endings(
    run: LoadedRun, sequences: Sequence[tuple[Array, int]], source: Sequence[int] | None = None, top: int = 0
) -> list[Predictions]:
    """Return the predictions of the ids of each sequence (T,) from its index `first` on, at least 1.

    An encoder-decoder reads the ids `source` with each. Sequences of similar lengths are in one batch.
    """
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i][0]))
    ids, firsts = zip(*(sequences[i] for i in order), strict=True)
    ends = np.cumsum([len(one) for one in ids]).tolist()
    made = predict(run.model, sequence_windows(ids, source, firsts), ends[-1], top=top, total=len(sequences))
    parts = {
        i: made.part(end - len(one) + first, end) for i, one, first, end in zip(order, ids, firsts, ends, strict=True)
    }
    return [parts[i] for i in range(len(sequences))]

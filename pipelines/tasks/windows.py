"""Windows of examples that are longer than the model reads. Imports no torch."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from pipelines.tasks.examples import ABSENT, Encoded
from pipelines.tasks.text_reader import TextReader
from pipelines.training.batch import Array

CONTEXT_SHARE = 4  # a window of words repeats at most a quarter of the window before it


def word_windows(pieces: Sequence[Sequence[int]], targets: Array, origin: int, reader: TextReader) -> list[Encoded]:
    """Return the windows of a sentence from the ids of its words, whose tags are `targets` (W,) int64.

    A window has whole words. Each but the first also repeats words before it as context. Each word has its target in
    one window: at its first token for an encoder, at its last for a decoder. A word longer than a window is cut; a word
    without a token has no target.
    """
    room = reader.room()
    kept = [reader.cut(word, room) for word in pieces]
    bounds: list[tuple[int, int, int]] = []
    done = 0
    while done < len(kept):
        first = _first_of_context(kept, done, room // CONTEXT_SHARE)
        if _tokens(kept[first : done + 1]) > room:
            first = done
        last, used = done, _tokens(kept[first:done])
        while last < len(kept) and used + len(kept[last]) <= room:
            used += len(kept[last])
            last += 1
        bounds.append((first, done, last))
        done = last
    cut = any(len(word) > room for word in pieces)
    return [_word_window(kept, targets, window, reader, origin, cut) for window in bounds]


def _word_window(
    pieces: Sequence[Sequence[int]],
    targets: Array,
    window: tuple[int, int, int],
    reader: TextReader,
    origin: int,
    cut: bool,
) -> Encoded:
    """Return the window of words `first` to `last - 1`, of which those from `done` have targets."""
    first, done, last = window
    before, _, after = reader.edges
    ids, words = list(before), [ABSENT] * len(before)
    for word in range(first, last):
        ids += pieces[word]
        words += [ABSENT] * len(pieces[word])
        if pieces[word] and word >= done:
            words[-len(pieces[word]) if reader.model.architecture == "encoder" else -1] = word
    ids, words = [*ids, *after], [*words, *[ABSENT] * len(after)]
    places = np.array(words or [ABSENT], np.int64)
    read = places != ABSENT
    return Encoded(
        ids=np.array(ids or [0], np.int64),  # words without a token, of a decoder without a start token
        targets=np.where(read, targets[places], 0),
        weights=read.astype(np.float32),
        places=places,
        origin=origin,
        cut=cut,
    )


def _first_of_context(pieces: Sequence[Sequence[int]], done: int, most: int) -> int:
    """Return the first of the words just before word `done` that have at most `most` tokens together."""
    first = done
    while first and (most := most - len(pieces[first - 1])) >= 0:
        first -= 1
    return first


def _tokens(pieces: Sequence[Sequence[int]]) -> int:
    return sum(map(len, pieces))


@dataclass(frozen=True)
class TokenText:
    """A text as tokens: their ids, and the characters (start, end) that each stands for."""

    ids: Sequence[int]
    offsets: Sequence[tuple[int, int]]

    def positions(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last token of characters `start` to `end - 1`; None if they have none."""
        first = bisect_right(self.offsets, start, key=itemgetter(1))
        last = bisect_left(self.offsets, end, key=itemgetter(0)) - 1
        return (first, last) if first <= last else None


def answer_windows(
    question: Sequence[int],
    context: TokenText,
    answer: tuple[int, int] | None,
    origin: int,
    reader: TextReader,
    stride: int,
) -> list[Encoded]:
    """Return the windows of a context, each after the question; the next window begins `stride` tokens further on.

    A window moves by at most its own length, so that each token of the context is in one (Devlin et al. 2019). Targets
    (2,) are the positions of the first and the last token of `answer`, which has characters (start, end); both are 0 if
    the window lacks one.
    """
    room = reader.room(2) - len(question)
    answered = answer and context.positions(*answer)
    before, between, _ = reader.edges
    begin = len(before) + len(question) + len(between)
    windows, start = [], 0
    while True:
        ids = context.ids[start : start + room]
        inside = answered and start <= answered[0] and answered[1] < start + len(ids)
        targets = np.array([begin + place - start for place in answered] if answered and inside else [0, 0], np.int64)
        window = reader.sequence([question, ids], targets, origin)
        places = np.full((len(window.ids), 2), ABSENT, np.int64)
        places[begin : begin + len(ids)] = np.array(context.offsets[start : start + room], np.int64).reshape(-1, 2)
        windows.append(replace(window, places=places))
        if start + room >= len(context.ids):
            return windows
        start += min(stride, room)

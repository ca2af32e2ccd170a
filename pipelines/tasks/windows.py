"""Windows of examples that are longer than the context. Imports no torch."""

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
    """Return the windows of a sentence. `pieces` are the ids of its W words, `targets` (W,) int64 their tags.

    A window has whole words. Each window after the first repeats preceding words as context. Each word has its target
    in one window: at its first token for an encoder, at its last token for a decoder. A word longer than a window is
    cut. A word without a token has no target.
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
    """Return the window of words `first` to `last - 1`. Words from `done` on have targets."""
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
    """Return the index of the first context word: words from there to `done` have at most `most` tokens together."""
    first = done
    while first and (most := most - len(pieces[first - 1])) >= 0:
        first -= 1
    return first


def _tokens(pieces: Sequence[Sequence[int]]) -> int:
    return sum(map(len, pieces))


@dataclass(frozen=True)
class TokenText:
    """The tokens of a text: ids, and the characters (start, end) of each token."""

    ids: Sequence[int]
    offsets: Sequence[tuple[int, int]]

    def positions(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the first and the last token of characters `start` to `end - 1`; None if no token covers them."""
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
    """Return the windows of a context, each preceded by the question. Windows start `stride` tokens apart.

    A window moves by at most its own length, so each token of the context is in a window (Devlin et al. 2019).
    `answer` is the characters (start, end) of the answer. Targets (2,) are the positions of its first and last token,
    or 0 and 0 if the answer is not in the window.
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

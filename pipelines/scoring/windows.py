"""Cut a text into the windows that a model reads, and choose the predictions to use from each."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Window:
    """The ids that a model reads at once, and the P predictions to use."""

    inputs: Array
    """(L,) int64"""
    columns: Array
    """(P,) int64: position of each prediction among the inputs"""
    targets: Array
    """(P,) int64: id of the token to predict at each position"""
    places: Array
    """(P,) int64: index of each prediction in the result"""


def decoder_windows(ids: Array, first: int, length: int, stride: int, rolling: bool = False) -> Iterator[Window]:
    """Yield windows of `length` tokens, `stride` apart, that predict `ids` (N,) from index `first` on.

    Each token is predicted in the first window that can predict it. Index 0 has no prediction. `Window.places` counts
    from `first`. If `rolling`, the last window moves back until it has `length` tokens, as in lm-eval.
    """
    begin, done = 0, 0  # `done`: index of the last target of earlier windows
    while True:
        end = min(begin + length, len(ids) - 1)
        if rolling:
            begin = max(0, end - length)
        wanted = np.arange(max(done + 1, first), end + 1)
        if len(wanted):
            yield Window(ids[begin:end], wanted - 1 - begin, ids[wanted], wanted - first)
        if end >= len(ids) - 1:
            return
        begin, done = begin + stride, end


def encoder_windows(
    ids: Array, masked_to: Array, *, first: int, mask: int, last: int, length: int, stride: int
) -> Iterator[Window]:
    """Yield one window for each token of `ids` (N,), with this token masked.

    Args:
        ids: Token ids of the text.
        masked_to: (N,) end of the masked tokens, exclusive: token t masks t to masked_to[t]; t + 1 masks t alone.
        first: Id before the tokens of a window, <|cls|>.
        mask: Id of <|mask|>.
        last: Id after the tokens of a window, <|sep|>.
        length: Tokens of the text in a window. A longer text has several windows, `stride` apart, and the last one ends
            with the text. Each token uses the window with the nearest centre.
        stride: Tokens between the starts of two windows.
    """
    end = max(0, len(ids) - length)
    starts = np.append(np.arange(0, end, stride), end)
    # The midpoints between two centres. A centre is (length - 1) / 2 tokens after the start of its window.
    borders = (starts[:-1] + starts[1:] + length - 1) // 2
    for token, window in enumerate(np.searchsorted(borders, np.arange(len(ids)))):
        begin = int(starts[window])
        inputs = np.concatenate(([first], ids[begin : begin + length], [last]))
        column = token - begin + 1
        inputs[column : min(int(masked_to[token]) - begin + 1, len(inputs) - 1)] = mask
        yield Window(inputs, np.array([column]), ids[token : token + 1], np.array([token]))

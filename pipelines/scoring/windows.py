"""The windows in which a model reads a text, and the predictions that count in each."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Window:
    """The ids that a model reads at once, and its P predictions that count."""

    inputs: Array
    """(L,) int64"""
    columns: Array
    """(P,) positions of the predictions among the inputs"""
    targets: Array
    """(P,) int64: the token at each of them"""
    places: Array
    """(P,) index of each prediction in the result"""


def decoder_windows(ids: Array, first: int, length: int, stride: int) -> Iterator[Window]:
    """Yield windows of `length` tokens, `stride` apart, that predict ids (N,) from index `first` on.

    Each token is predicted in the first window that can. Places count from `first`. Nothing predicts index 0.
    """
    begin, done = 0, 0  # `done`: index of the last target of earlier windows
    while True:
        end = min(begin + length, len(ids) - 1)
        wanted = np.arange(max(done + 1, first), end + 1)
        if len(wanted):
            yield Window(ids[begin:end], wanted - 1 - begin, ids[wanted], wanted - first)
        if end >= len(ids) - 1:
            return
        begin, done = begin + stride, end


def encoder_windows(
    ids: Array, masked_to: Array, *, first: int, mask: int, last: int, length: int, stride: int
) -> Iterator[Window]:
    """Yield one window for each of the tokens `ids` (N,), in which this token is masked.

    Args:
        ids: The text's tokens.
        masked_to: (N,) index of the first token after the masked ones: its own index + 1 masks the token alone.
        first: Id before the tokens of a window, <|cls|>.
        mask: Id of <|mask|>.
        last: Id after the tokens of a window, <|sep|>.
        length: Tokens of the text that a window holds. A longer text has several windows, `stride` apart, and the last
            one ends with the text. A token is read in the window whose centre is nearest.
        stride: Tokens between the starts of two windows.
    """
    end = max(0, len(ids) - length)
    starts = np.append(np.arange(0, end, stride), end)
    # Between two centres, which are (length - 1) / 2 behind the starts.
    borders = (starts[:-1] + starts[1:] + length - 1) // 2
    for token, window in enumerate(np.searchsorted(borders, np.arange(len(ids)))):
        begin = int(starts[window])
        inputs = np.concatenate(([first], ids[begin : begin + length], [last]))
        column = token - begin + 1
        inputs[column : min(int(masked_to[token]) - begin + 1, len(inputs) - 1)] = mask
        yield Window(inputs, np.array([column]), ids[token : token + 1], np.array([token]))

"""Where a long text can be cut into pieces that encode to the same ids as the whole."""

import numpy as np

from tokenizer.splitting.patterns import Pattern

# How far back from the wanted place a cut is looked for before the piece is made longer instead.
SEARCHED_BYTES = 1 << 16


def safe_cuts(text: memoryview | bytes, pattern: Pattern, piece_bytes: int) -> list[int]:
    """Byte offsets, ascending, that cut `text` (UTF-8) into pieces of about `piece_bytes`.

    A cut is made between an ASCII letter and a space that is followed by an ASCII letter. Every named pattern begins
    a pretoken there whatever stands before, and its look-aheads do not reach across: a piece that ends with a letter
    has no white space left to decide about. A pattern that is only a regular expression promises nothing: no cuts.
    """
    data = np.frombuffer(text, np.uint8)
    cuts: list[int] = []
    if pattern.automaton is None:
        return cuts
    wanted = piece_bytes
    while wanted < len(data) - 1:
        start = max(wanted - SEARCHED_BYTES, (cuts[-1] if cuts else 0) + 1)
        window = data[start - 1 : wanted + 2]
        letters = ((window | 0x20) - ord("a")) < 26
        places = np.flatnonzero(letters[:-2] & (window[1:-1] == ord(" ")) & letters[2:])
        if len(places):
            cuts.append(start + int(places[-1]))
            wanted = cuts[-1] + piece_bytes
        else:
            wanted += SEARCHED_BYTES
    return cuts

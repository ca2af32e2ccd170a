"""Places to cut a long text into pieces that encode to the same ids as the whole."""

import numpy as np

from tokenizer.splitting.pretokenize import Splitter

# The search goes back this far from the wanted place; if it finds no cut, the piece becomes longer.
SEARCHED_BYTES = 1 << 16


def safe_cuts(text: memoryview | bytes, pattern: Splitter, piece_bytes: int) -> list[int]:
    """Return ascending byte offsets that cut `text` (UTF-8) into pieces of about `piece_bytes`.

    A cut is between an ASCII letter and a space followed by an ASCII letter. Every named pattern starts a pretoken
    there, whatever precedes, and so do BERT's words. Its look-aheads do not cross the cut, because a piece that ends
    with a letter leaves no white space undecided. A custom regex has no cuts, since it guarantees none of this.
    """
    data = np.frombuffer(text, np.uint8)
    cuts: list[int] = []
    if not pattern.splits_at_spaces:
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

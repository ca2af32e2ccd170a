"""Places to cut a long text into pieces that encode to the same ids as the whole."""

import numpy as np

from tokenizer.document_blocks import single_block
from tokenizer.splitting.pretokenize import pretoken_ends
from tokenizer.splitting.scanner import pretokens
from tokenizer.splitting.splitter import Splitter

# The search goes back this far from the wanted place; if it finds no cut, the piece becomes longer.
SEARCHED_BYTES = 1 << 16
# A pretoken depends on fewer pretokens after it than this, apart from runs that the next pretoken reads, too.
LOOK_AHEAD = 128
# Pretokens that more text cannot change are searched in this much of a text's end, then in 8 times as much.
TAIL_BYTES = 1 << 10


def safe_cuts(text: memoryview | bytes, pattern: Splitter, piece_bytes: int) -> list[int]:
    """Return ascending byte offsets that cut `text` (UTF-8) into pieces of about `piece_bytes`.

    A cut is between an ASCII letter and a space followed by an ASCII letter, for a pattern that `splits_at_spaces`:
    it starts a pretoken there, whatever precedes, and none of its look-aheads crosses the cut. All named patterns do,
    and so do BERT's words.
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


def decided_bytes(data: bytes, pattern: Splitter) -> int:
    """Return the length of a prefix of a text whose ids do not depend on what follows the text; 0 if none is known.

    Patterns with an automaton: up to the first pretoken near the end that depends on what follows. BERT's words: up to
    the last white space or punctuation. SentencePiece's words: as in `safe_cuts`. Any other regex can depend on any
    later text.
    """
    data = data[: _whole_characters(data)]
    if (divider := pattern.last_divider(data)) is not None:
        return divider
    if pattern.automaton is None:
        cuts = safe_cuts(data, pattern, max(1, len(data) - 2))
        return cuts[-1] if cuts else 0
    tail, ends = TAIL_BYTES, np.zeros(1, dtype=np.int64)
    while True:
        if len(data) > tail and len(ends) == 1:
            ends = np.concatenate([ends, *(chunk.copy() for chunk in pretoken_ends(single_block(data), pattern))])
        # If the first pretoken of the tail is decided, so are all before it: after its end, a pretoken looks only at a
        # few characters, or at a run that the next pretoken looks at, too (see `regex_compilation`).
        tail_first = int(np.searchsorted(ends, max(0, len(data) - tail), side="right")) - 1
        start, start_of_tail = int(ends[max(0, tail_first - LOOK_AHEAD)]), int(ends[tail_first])
        decided = list(pretokens(data[start:], pattern.automaton, complete=False))
        # White space can be split differently if the text ends there.
        while decided and list(pretokens(b"".join(decided[-LOOK_AHEAD:]), pattern.automaton)) != decided[-LOOK_AHEAD:]:
            decided.pop()
        end = start + sum(map(len, decided))
        if end > start_of_tail or start_of_tail == 0:
            return end
        tail *= 8


def _whole_characters(data: bytes) -> int:
    """Return the length of a text without a UTF-8 character at its end that may be incomplete."""
    for length in range(1, min(4, len(data) + 1)):
        byte = data[-length]
        if byte >= 0xC0:
            return len(data) - length if length < (2 + (byte >= 0xE0) + (byte >= 0xF0)) else len(data)
        if byte < 0x80:
            break
    return len(data)

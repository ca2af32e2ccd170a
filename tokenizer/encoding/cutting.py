"""The part of a stream of text whose ids do not depend on the rest."""

import numpy as np

from tokenizer.document_blocks import safe_places, single_block
from tokenizer.splitting.pretokenize import pretoken_ends
from tokenizer.splitting.scanner import pretokens
from tokenizer.splitting.splitter import Splitter

# A pretoken depends on fewer pretokens after it than this, apart from runs that the next pretoken reads, too.
LOOK_AHEAD = 128
# Pretokens that more text cannot change are searched in this much of a text's end, then in 8 times as much.
TAIL_BYTES = 1 << 10


def decided_bytes(data: bytes, pattern: Splitter) -> int:
    """Return the length of a prefix of a text whose ids do not depend on what follows the text; 0 if none is known.

    Patterns with an automaton: up to the first pretoken near the end that depends on what follows. BERT's words: up to
    the last white space or punctuation. SentencePiece's words: as in `safe_places`. Any other regex can depend on any
    later text.
    """
    data = data[: _whole_characters(data)]
    if (divider := pattern.last_divider(data)) is not None:
        return divider
    if pattern.automaton is None:
        places = safe_places(np.frombuffer(data, np.uint8), len(data) - 1) if pattern.splits_at_spaces else ()
        return max(places, default=0)
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

"""Perplexity per word of a text. A word is a maximal run of characters other than white space in one document."""

import re
from typing import Any

import numpy as np

from lm.analysis.bootstrap import interval
from lm.analysis.metrics import perplexity
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.confidence import Sampling
from pipelines.evaluation.decoded_text import stream_text
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.numbers import LOGARITHMS
from pipelines.evaluation.token_scores import TokenScores
from tokenizer import Tokenizer

WHITE_SPACE = [chr(code).encode() for code in range(0x10000) if chr(code).isspace()]
ASCII_SPACE = np.isin(np.arange(256), [space[0] for space in WHITE_SPACE if len(space) == 1])
WIDE_SPACE = re.compile(b"|".join(re.escape(space) for space in WHITE_SPACE if len(space) > 1))


def per_word(
    scores: TokenScores, stream: TokenStream, text: StreamText, tokenizer: Tokenizer, sampling: Sampling | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the numbers of a split per word, and their 95 % intervals.

    All tokens of the stream but the first are scored. If a split has no words, its numbers per word are None. The
    numbers have no interval if `sampling` is None or a sample has no words.
    """
    nats = scores.nats.sum()
    words, line_ends = words_and_line_ends(stream_text(stream, tokenizer), text)
    counts = {"word_perplexity": words, "word_perplexity_with_line_ends": words + line_ends}
    per_word = {key: float(nats / count.sum()) if count.any() else None for key, count in counts.items()}
    numbers = {
        "words": int(words.sum()),
        "line_ends": int(line_ends.sum()),
        **{LOGARITHMS[key]: mean for key, mean in per_word.items()},
        **{key: None if mean is None else perplexity(mean) for key, mean in per_word.items()},
    }
    if sampling is None:
        return numbers, {}
    intervals: dict[str, Any] = {}
    for key, count in counts.items():
        per_token = count[scores.indices]
        per_token[0] += count[0]  # the first token is not scored
        drawn_nats, drawn_words = sampling.drawn(scores.nats, per_token).T
        if drawn_words.all():
            low, high = interval(drawn_nats / drawn_words)
            intervals |= {LOGARITHMS[key]: [low, high], key: [perplexity(low), perplexity(high)]}
    return numbers, intervals


def words_and_line_ends(written: bytes, text: StreamText) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of words and of line feeds that begin in each token, (N,) int64 each.

    `written` is the text of the stream.
    """
    data = np.frombuffer(written, np.uint8)
    space = ASCII_SPACE[data]
    for found in WIDE_SPACE.finditer(written):
        space[found.start() : found.end()] = True
    begins = ~space
    begins[1:] &= space[:-1]
    starts = text.document_starts[:-1]
    starts = starts[starts < len(data)]
    begins[starts] = ~space[starts]
    ends = np.append(text.start[1:], text.size)
    words, line_ends = (
        np.bincount(np.searchsorted(ends, np.flatnonzero(places), side="right"), minlength=len(ends))
        for places in (begins, data == ord("\n"))
    )
    return words, line_ends

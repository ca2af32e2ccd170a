"""Perplexity per word of a text. A word is a maximal run of characters other than white space in one document."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lm.metrics.intervals import interval
from lm.metrics.units import perplexity
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.confidence import Interval, Sampling
from pipelines.evaluation.decoded_text import stream_text, white_space
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.measurement import Measurement, Result, number
from pipelines.evaluation.planning import EvaluationOptions
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import TokenScores
from pipelines.run.folder import Run
from tokenizer import Tokenizer


@dataclass(frozen=True)
class Words(Result):
    """The perplexity per word of a split; its numbers are None if the split has no words."""

    word_perplexity: float | None = number(
        "perplexity per word",
        "exp of the total nats of the text, divided by its words: the texts between white space.",
        2,
        exp_of="word_cross_entropy",
    )
    word_perplexity_with_line_ends: float | None = number(
        "perplexity per word or line end",
        "The same, where each line end counts as a word too, as in published perplexities on WikiText.",
        2,
        exp_of="word_cross_entropy_with_line_ends",
    )
    word_cross_entropy: float | None = number(
        "cross-entropy, nats per word", "Total nats of the text, divided by its words.", 4
    )
    word_cross_entropy_with_line_ends: float | None = number(
        "cross-entropy, nats per word or line end", "The same, where each line end counts as a word too.", 4
    )
    words: int = number("words", "Texts between white space.", 0)
    line_ends: int = number("line ends", "Line feeds in the text.", 0)


@dataclass(frozen=True, kw_only=True)
class PerWord(Measurement):
    """The perplexity per word of a corpus."""

    result = Words

    unit: Literal["byte", "word"] = "byte"
    """Unit of text: word adds the perplexity per word of `corpus`."""

    def check(self, run: Run, options: EvaluationOptions) -> None:
        if self.unit == "byte":
            return
        if not options.corpus:
            raise ValueError("`unit='word'` counts the words of a corpus: name one with `corpus`")
        if run.recipe.objective != "next-token":
            raise ValueError(
                f"{run.folder} was trained on {run.recipe.objective}, which has no perplexity per word: leave `unit` "
                "out"
            )
        if options.min_context != 1:
            raise ValueError("`unit='word'` needs a score for every token: leave `min_context` out")
        if not run.tokenizer().is_lossless:
            raise ValueError(
                f"{run.folder} has a tokenizer that loses text, such as case or unknown words: its perplexity per word "
                "is not comparable with any other; leave `unit` out"
            )

    def measure(self, split: ScoredSplit) -> Words | None:
        if self.unit == "byte":
            return None
        assert isinstance(split.stream, TokenStream) and split.text, "only a decoder has a perplexity per word"
        words, intervals = per_word(split.tokens, split.stream, split.text, split.tokenizer, split.sampling)
        split.intervals.update(intervals)
        return words


MEASUREMENT = PerWord


def per_word(
    scores: TokenScores, stream: TokenStream, text: StreamText, tokenizer: Tokenizer, sampling: Sampling | None
) -> tuple[Words, dict[str, Interval]]:
    """Return the numbers of a split per word, and their 95 % intervals.

    All tokens of the stream but the first are scored. The numbers have no interval if `sampling` is None or a sample
    has no words.
    """
    nats = scores.nats.sum()
    words, line_ends = words_and_line_ends(stream_text(stream, tokenizer), text)
    counts = {"word_perplexity": words, "word_perplexity_with_line_ends": words + line_ends}
    means = [float(nats / count.sum()) if count.any() else None for count in counts.values()]
    perplexities = [None if mean is None else perplexity(mean) for mean in means]
    counted = Words(perplexities[0], perplexities[1], means[0], means[1], int(words.sum()), int(line_ends.sum()))
    intervals: dict[str, Interval] = {}
    if sampling is None:
        return counted, intervals
    for key, count in counts.items():
        per_token = count[scores.indices]
        per_token[0] += count[0]  # the first token is not scored
        drawn_nats, drawn_words = sampling.draw(scores.nats, per_token).T
        if drawn_words.all():
            low, high = interval(drawn_nats / drawn_words)
            intervals[key.replace("perplexity", "cross_entropy")] = low, high
            intervals[key] = perplexity(low), perplexity(high)
    return counted, intervals


def words_and_line_ends(written: bytes, text: StreamText) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of words and of line feeds that begin in each token, (N,) int64 each.

    `written` is the text of the stream.
    """
    data = np.frombuffer(written, np.uint8)
    space = white_space(data)
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

"""Exact match and F1 of answers by the rules of SQuAD (Rajpurkar et al. 2016, 2018), and the no-answer threshold."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalized(answer: str) -> str:
    """Return an answer in lower case, without ASCII punctuation and articles, and with single blanks."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, gold: Sequence[str]) -> float:
    """Return 1 if an answer equals one of the `gold` ones, normalized, otherwise 0; no gold answer is the answer ""."""
    return _best(predicted, gold, lambda given, true: float(given == true))


def answer_f1(predicted: str, gold: Sequence[str]) -> float:
    """Return F1 of the words of an answer and of the `gold` one nearest to it; no gold answer is the answer "".

    If one side has no words, F1 is 1 if neither has, otherwise 0.
    """
    return _best(predicted, gold, _word_f1)


def best_threshold(margins: Array, answered: Array, empty: Array) -> float:
    """Return the threshold t with the highest total score if an example is answered where its margin is above t.

    margins (N,); answered and empty (N,) are the scores of each example with its answer, and without one. A threshold
    lies in the middle of two margins, or 1 beyond the last; of equal ones the lowest is returned.
    """
    order = np.argsort(margins, kind="stable")
    sorted_margins, gains = margins[order].astype(np.float64), (answered - empty)[order].astype(np.float64)
    edges = np.concatenate([[sorted_margins[0] - 2], sorted_margins, [sorted_margins[-1] + 2]])
    # Entry k: the total gain if all but the k lowest margins are answered.
    totals = np.concatenate([np.cumsum(gains[::-1])[::-1], [0.0]])
    possible = edges[1:] > edges[:-1]  # equal margins are on one side
    best = int(np.argmax(np.where(possible, totals, -np.inf)))
    return float((edges[best] + edges[best + 1]) / 2)


def _best(predicted: str, gold: Sequence[str], score: Callable[[str, str], float]) -> float:
    given = normalized(predicted)
    # An answer that is only articles and punctuation has no words, so SQuAD v2 leaves it out.
    answers = [text for answer in gold if (text := normalized(answer))] or [""]
    return max(score(given, true) for true in answers)


def _word_f1(given: str, true: str) -> float:
    words, wanted = given.split(), true.split()
    if not words or not wanted:
        return float(words == wanted)
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))

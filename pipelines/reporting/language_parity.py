"""How equally a tokenizer treats languages, measured on parallel text, the same sentences in each language."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.files import read_bytes
from tokenizer import Tokenizer


def read_parallel(path: Path) -> dict[str, list[str]]:
    """Return the sentences of each language, from JSON lines such as {"en": "a house", "de": "ein Haus"}.

    Raises ValueError, which names the file and the line, for a line that is no such object, or that does not have the
    languages of the first line.
    """
    texts: dict[str, list[str]] = {}
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON in UTF-8: {error}") from None
        if not isinstance(row, dict) or not all(isinstance(text, str) for text in row.values()):
            raise ValueError(f'{path}, line {number} is not an object of texts, such as {{"en": "a", "de": "b"}}')
        if number > 1 and row.keys() != texts.keys():
            different = ", ".join(sorted(row.keys() ^ texts.keys()))
            raise ValueError(
                f"{path}, line {number} and line 1 differ in the languages {different}: give all languages in each"
            )
        for language, text in row.items():
            texts.setdefault(language, []).append(text)
    if len(texts) < 2:
        raise ValueError(f"{path} has fewer than two languages: give the same sentences in two or more")
    return texts


def gini(costs: Sequence[float]) -> float:
    """Return the Gini coefficient of n costs c: the sum of |c_i - c_j| over all i and j, divided by 2 n² mean(c).

    It is 0 if all costs are equal, and (n - 1) / n if all but one are 0.
    """
    ordered = np.sort(np.asarray(costs, dtype=np.float64))
    n, total = len(ordered), ordered.sum()
    ranks = 2 * np.arange(1, n + 1) - n - 1
    return float(ranks @ ordered / (n * total)) if total else 0.0


def language_costs(tok: Tokenizer, parallel: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the tokens of each language, its premium, and the Gini coefficient of the tokens.

    The premium of a language is its number of tokens divided by the number of the language with the fewest (Petrov et
    al. 2023, "Language Model Tokenizers Introduce Unfairness Between Languages"). The Gini coefficient is that of
    Foroutan et al. 2025, arXiv 2508.04796.
    """
    tokens = {
        language: sum(map(len, tok.encode_batch(texts, disallowed_special=()))) for language, texts in parallel.items()
    }
    fewest = max(1, min(tokens.values()))
    premiums = {language: count / fewest for language, count in tokens.items()}
    return {"tokens": tokens, "premiums": premiums, "gini": gini([*tokens.values()])}

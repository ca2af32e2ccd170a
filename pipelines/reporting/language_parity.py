"""How equally a tokenizer treats languages, measured on the same sentences in each language."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.cli.display import table
from pipelines.files import read_bytes
from tokenizer import Tokenizer

if TYPE_CHECKING:
    from rich.console import Console


def read_parallel(path: Path) -> dict[str, list[str]]:
    """Return the sentences of each language, from JSON lines such as {"en": "a house", "de": "ein Haus"}.

    Blank lines are skipped. Raises ValueError, which names the file and the line, for a line without the languages of
    the first one.
    """
    texts: dict[str, list[str]] = {}
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON in UTF-8: {error}") from None
        except RecursionError:
            raise ValueError(f"{path}, line {number} is nested too deeply") from None
        if not isinstance(row, dict) or not all(isinstance(text, str) for text in row.values()):
            raise ValueError(f'{path}, line {number} is not an object of texts, such as {{"en": "a", "de": "b"}}')
        if texts and row.keys() != texts.keys():
            different = ", ".join(sorted(row.keys() ^ texts.keys()))
            raise ValueError(f"{path}, line {number} and the first one differ in the languages {different}: give all")
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


def language_costs(
    tok: Tokenizer, parallel: Mapping[str, Sequence[str]], reference: str | None = None
) -> dict[str, Any]:
    """Return the tokens of each language, its tokens per sentence and premium, and the Gini coefficient of the tokens.

    The premium is the number of tokens divided by that of the language `reference`, by default the one with the fewest
    (Petrov et al. 2023, "Language Model Tokenizers Introduce Unfairness Between Languages"). A language without tokens
    has the premium None and is not a default reference. Gini: as in Foroutan et al. 2025, arXiv 2508.04796. Raises
    ValueError for an unknown reference.
    """
    if reference is not None and reference not in parallel:
        raise ValueError(f"`reference` is {reference}, but the languages are {', '.join(parallel)}")
    tokens = {
        language: sum(map(len, tok.encode_batch(texts, disallowed_special=()))) for language, texts in parallel.items()
    }
    if reference is None:
        reference = min((language for language in tokens if tokens[language]), key=tokens.__getitem__, default=None)
    of = tokens[reference] if reference is not None else 0
    return {
        "tokens": tokens,
        "tokens_per_sentence": {language: tokens[language] / len(texts) for language, texts in parallel.items()},
        "reference": reference,
        "premiums": {language: count / of if count and of else None for language, count in tokens.items()},
        "gini": gini([*tokens.values()]),
    }


def show_costs(costs: Mapping[str, Mapping[str, Any]], to: "Console | None" = None) -> None:
    """Print the results of `language_costs` by the names of the tokenizers, as a result or on the console `to`."""
    first = next(iter(costs.values()))
    rows = [
        (language, *(cell for found in costs.values() for cell in _cells(found, language)))
        for language in sorted(first["tokens"], key=first["tokens"].__getitem__)
    ]
    heads: tuple[str, ...] = ("tok/sentence", "premium")
    if len(costs) > 1:
        rows.insert(0, ("", *heads * len(costs)))
        heads = tuple(head for name in costs for head in (name, ""))
    rows.append(("Gini coefficient", *(cell for found in costs.values() for cell in ("", f"{found['gini']:.3f}"))))
    table(("language", *heads), rows, to=to)


def _cells(found: Mapping[str, Any], language: str) -> tuple[str, str]:
    premium = found["premiums"][language]
    return f"{found['tokens_per_sentence'][language]:.2f}", "–" if premium is None else f"{premium:.2f}"

"""The languages of held-out documents, from a column of the corpus."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from corpora import open_pairs
from corpora.splits import VALIDATION

COLUMNS = ("lang", "language")


def languages_of(
    corpus: Sequence[str], split: str, reading: Mapping[str, Any], texts: Sequence[pa.Array]
) -> dict[str, str]:
    """Return the language of each text, from the first of COLUMNS that the corpus has; empty if it has none.

    The texts are documents of the validation split by the rule `split`. `reading` are options of `open_corpus`.
    """
    wanted = {text for array in texts for text in array.to_pylist()}
    options = {name: value for name, value in reading.items() if name in ("max_document", "suffix", "encoding")}
    for column in COLUMNS:
        found: dict[str, str] = {}
        try:
            pairs = open_pairs(corpus, (reading.get("text_column") or "text", column), split, **options)
            for name, batch in pairs.routed_batches():
                if name == VALIDATION:
                    rows = zip(*(side.to_pylist() for side in batch.columns), strict=True)
                    found |= {text: language for text, language in rows if text in wanted}
                if len(found) == len(wanted):
                    break
        except ValueError:  # no such column
            continue
        return found
    return {}

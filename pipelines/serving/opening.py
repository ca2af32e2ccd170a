"""The text that the page opens with: a passage of the validation text of a run."""

import numpy as np

from pipelines.recipes.recipe import CORRUPTIONS
from pipelines.reporting.excerpts import Excerpts
from pipelines.run.folder import Run

TOKENS = (96, 48, 24, 12)  # lengths to try; documents may be short


def opening_of(run: Run) -> tuple[str, str]:
    """Return a passage of a run's validation text, and the target of an encoder-decoder.

    Both are empty if the dataset is gone or has no such passage.
    """
    excerpts, objective = Excerpts(run), run.recipe.objective
    decode = excerpts.tokenizer.decode
    if objective == "sequence-pairs":
        pairs = excerpts.pairs
        return ("", "") if pairs is None else (decode(pairs.sources[0].tolist()), decode(pairs.targets[0].tolist()))
    most = run.recipe.model.context_length - 2
    texts = (excerpts.text(min(length, most), seed=0) for length in TOKENS)
    ids = next((text for text in texts if len(text)), np.empty(0, np.int64))
    if objective in CORRUPTIONS and len(ids):
        source, _, target = excerpts.corrupt(ids, seed=0)
        return decode(source[:-1].tolist()), decode(target[:-1].tolist())
    return _whole_words(decode(ids.tolist())), ""


def _whole_words(text: str) -> str:
    """Return a text without its first line, unless that line is long, and without incomplete words at its ends."""
    text = text.strip("\ufffd")  # parts of characters
    line_end = text.find("\n")
    begin = line_end if 0 <= line_end < len(text) // 3 else text.find(" ")
    return text[begin + 1 : max(text.rfind(" "), text.rfind("\n"), 0) or None].strip()

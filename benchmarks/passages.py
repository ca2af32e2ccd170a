"""Labelled passages of books for benchmarks.finetune, and the remaining text to pretrain on."""

import json
import lzma
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

CHARACTERS = 1000
A_BOOK = 20


@dataclass(frozen=True)
class Trial:
    """Labelled passages {"text", "label"} for training and testing, and the remaining documents {"text"}.

    The three parts do not overlap.
    """

    train: list[dict[str, str]]
    test: list[dict[str, str]]
    rest: list[dict[str, str]]

    def write(self, folder: Path) -> None:
        """Write train.jsonl, test.jsonl and rest.jsonl to `folder`."""
        for name in ("train", "test", "rest"):
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in getattr(self, name))
            (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def read_books(path: Path) -> dict[str, str]:
    """Return title to text from a .jsonl.xz with `title` and `text`."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return {book["title"]: book["text"] for book in map(json.loads, file)}


def cut_passages(books: dict[str, str], seed: int) -> Trial:
    """Cut books into passages of 1,000 characters and draw 20 of each book for training and up to 20 for testing.

    A short book gives at most half of its other passages for testing. `seed` decides the draw.
    """
    generator = np.random.default_rng(seed)
    trial = Trial([], [], [])
    for title, text in books.items():
        count = len(text) // CHARACTERS
        drawn = generator.permutation(count)[: A_BOOK + min(A_BOOK, (count - A_BOOK) // 2)]
        for number, passage in enumerate(drawn.tolist()):
            row = {"text": text[passage * CHARACTERS : (passage + 1) * CHARACTERS], "label": title}
            (trial.train if number < A_BOOK else trial.test).append(row)
        for before, after in pairwise([-1, *sorted(drawn.tolist()), count]):
            end = len(text) if after == count else after * CHARACTERS
            if between := text[(before + 1) * CHARACTERS : end]:
                trial.rest.append({"text": between})
    return trial

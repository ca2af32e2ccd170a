"""A small text for benchmarks.recipes, whose training part is read several times, and its datasets by variant."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recipe_variants import CONTEXT
from pipelines.dataset.reader import TokenDataset
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.train_tokenizer import train_tokenizer

HELD_OUT = 200_000  # bytes for validation, whatever the size of the training text


def write_small_text(passages: Iterable[str], folder: Path, size: int) -> None:
    """Write about `size` bytes of passages to train.jsonl in `folder`, and others to validation.jsonl.

    Passages come in the order of their SHA-256, so that both files have passages of all documents. The first passages
    are for validation, so it is the same for every `size`. Raises SystemExit if the passages are too short.
    """
    ordered = iter(sorted(passages, key=lambda passage: hashlib.sha256(passage.encode()).digest()))
    drawn = {name: list(_first(ordered, least)) for name, least in (("validation", HELD_OUT), ("train", size))}
    folder.mkdir(parents=True)
    for name, chosen in drawn.items():
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": passage}) + "\n" for passage in chosen)


def _first(passages: Iterator[str], least: int) -> Iterator[str]:
    """Yield the first passages that have at least `least` bytes together."""
    found = 0
    while found < least:
        passage = next(passages, None)
        if passage is None:
            raise SystemExit(f"the text is {least - found:,} bytes too short: give more text, or fewer --text-bytes")
        found += len(passage.encode())
        yield passage


@dataclass(frozen=True)
class SmallText:
    """The text that `write_small_text` wrote to folder / "text", its tokenizers and datasets."""

    folder: Path
    vocab_size: int
    epochs: int

    def dataset(self, data: Mapping[str, Any]) -> tuple[Path, int]:
        """Return the dataset of a variant, built unless it exists, and its tokens in all epochs.

        `data` has fields of train_tokenizer (`kind`, `vocab_size`) and of build_dataset (`dropout`, `alpha`). A text
        whose segmentation is drawn is encoded once for each epoch.
        """
        vocabulary = {"kind": data.get("kind", "bpe"), "vocab_size": data.get("vocab_size", self.vocab_size)}
        sampling = {name: data[name] for name in ("dropout", "alpha") if name in data}
        named = "-".join(str(value) for value in vocabulary.values())
        drawn = "".join(f"-{name}-{value}-{self.epochs}" for name, value in sampling.items())
        copies = self.epochs if sampling else 1
        tokenizer, built = self.folder / f"tokenizer-{named}", self.folder / f"data-{named}{drawn}"
        if not tokenizer.exists():
            train_tokenizer([self._train_text(1)], split="none", out=tokenizer, **vocabulary)
        if not built.exists():
            text = [self._train_text(copies), str(self.folder / "text" / "validation.jsonl")]
            options = {"tokenizer": tokenizer, "context_length": CONTEXT, "split": "predefined"}
            build_dataset(text, out=built, **options, **sampling)
        tokens = TokenDataset(built).info["splits"]["train"]["tokens"]
        return built, tokens * self.epochs // copies

    def _train_text(self, copies: int) -> str:
        """Return a file train.jsonl with the training text `copies` times."""
        once = self.folder / "text" / "train.jsonl"
        if copies == 1:
            return str(once)
        path = self.folder / f"text-{copies}" / "train.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(copies * once.read_text(encoding="utf-8"), encoding="utf-8")
        return str(path)

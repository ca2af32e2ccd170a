"""The texts of benchmarks.budget: passages in three splits, decided by a hash of each passage.

A document is cut at line ends into passages of up to 20,000 characters. The 8-byte BLAKE2b hash of a passage, as a
share of its range, decides the split: test below 4 %, validation below 6 %, otherwise train. So equal passages are in
one split. Validation chooses the settings of peers and judges our checkpoints. Only finished runs read the test
passages, once.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recipes import cut_at_lines
from corpora import open_corpus

TEST, VALIDATION = 0.04, 0.06
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Text:
    """Three files of JSON lines, one passage in each line."""

    name: str
    folder: Path

    @property
    def corpus(self) -> str:
        """The glob of the train and validation splits."""
        return str(self.folder / f"{self.name}.*.jsonl")

    def path(self, split: str) -> Path:
        # The test passages are in a folder that no glob for training matches.
        place = f"test/{self.name}.jsonl" if split == "test" else f"{self.name}.{split}.jsonl"
        return self.folder / place

    def fingerprint(self) -> dict[str, str]:
        """Return the start of the SHA-256 of each split."""
        return {split: hashlib.sha256(self.path(split).read_bytes()).hexdigest()[:16] for split in SPLITS}


def passages(path: Path) -> list[str]:
    """Return the passages of a file."""
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").split("\n") if line]


def split_of(passage: str) -> str:
    """Return the split of a passage."""
    share = int.from_bytes(hashlib.blake2b(passage.encode(), digest_size=8).digest(), "big") / 2**64
    return "test" if share < TEST else "validation" if share < VALIDATION else "train"


def written(name: str, corpus: Sequence[str], folder: Path) -> Text:
    """Return the text made of a corpus. Write its splits into the folder unless they exist."""
    text = Text(name, folder)
    if text.path("test").exists():
        return text
    lines: dict[str, list[str]] = {split: [] for split in SPLITS}
    for _, batch in open_corpus(list(corpus), split="none").routed_batches():
        for document in batch["text"].to_pylist():
            for passage in cut_at_lines(document):
                lines[split_of(passage)].append(json.dumps({"text": passage}, ensure_ascii=False) + "\n")
    if empty := [split for split, found in lines.items() if not found]:
        raise SystemExit(f"{' '.join(corpus)} gives no {empty[0]} passages: give more text, about 1 MB at least")
    text.path("test").parent.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:  # the test file is last: if it exists, the other two are complete
        text.path(split).write_text("".join(lines[split]), encoding="utf-8")
    return text

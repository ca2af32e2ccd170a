"""Memorisation: the share of a split that also occurs in the training text, and the loss on it and on the rest.

A match is a string of L bytes that occurs in one document of the split and in one training document. A byte is inside
if a match contains it. A token is inside if all its bytes are; special tokens have no bytes and are outside. A training
dataset without separators is one document. If the tokenizer loses text, the decoded text is compared.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np

from pipelines.cli.display import Bar
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation.decoded_text import decode, decoded_tokens
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.groups import Group, Groups
from pipelines.evaluation.measurement import Measurement, Result, Section, Table
from pipelines.evaluation.planning import EvaluationOptions, training_data_of
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import TokenScores
from pipelines.run.folder import Run
from tokenizer import Tokenizer

LENGTHS = (25, 50, 100, 200, 400)
PIECE_BYTES = 1 << 26  # of the training text: large enough for speed, small enough for progress every few seconds
# Bytes of memory per byte of text while suffixes are sorted.
TRAINING_MEMORY, HELD_OUT_MEMORY = 9, 40
LEAST_MEMORY = 1_000_000
SEED = 0
HEADS = ("begin", "inside", "bits/token inside", "outside", "bits/byte inside", "outside")

Progress = Callable[[float, float], None]


@dataclass(frozen=True)
class Loss:
    """The tokens inside a match, and all others; None for no tokens."""

    inside: Group | None
    outside: Group | None


@dataclass(frozen=True)
class Matches:
    """The matches of at least `length` bytes."""

    length: int
    begin: float
    """Share of the bytes at which a match begins"""
    inside: float
    """Share of the bytes inside a match"""
    loss: Loss | None
    """None for span corruption, whose tokens have no place in the text"""

    def cells(self) -> list[str]:
        """Return the cells below HEADS."""
        groups = (self.loss.inside, self.loss.outside) if self.loss else (None, None)
        losses = [
            *(group and group.bits_per_token for group in groups),
            *(group and group.bits_per_byte for group in groups),
        ]
        return [f"{self.begin:.2%}", f"{self.inside:.2%}", *("–" if loss is None else f"{loss:.3f}" for loss in losses)]


@dataclass(frozen=True)
class SharedText(Result):
    """The share of a split that also occurs in the training text, by the length of the match."""

    key = "memorisation"
    section = Section(
        "Text that also occurs in the training text",
        "A match is a string of L bytes that occurs in one document of the split and in one training document. "
        '"Begin" is the share of the bytes at which a match begins, "inside" the share of the bytes inside a match. '
        "The losses are those of the tokens inside a match and of all other tokens.",
    )

    training: str
    """Folder of the dataset that was searched"""
    bytes: int
    """Bytes of the split that were searched for"""
    sampled: float
    """Their share of the split"""
    curve: tuple[Matches, ...]
    """Rows of LENGTHS"""

    def parts(self) -> list[Table | str]:
        share = "all" if self.sampled == 1 else f"a sample of {self.sampled:.1%}, limited by `memory`:"
        return [
            Table(
                "matches with the training text",
                "match of at least",
                list(HEADS),
                [(f"{row.length} bytes", row.cells()) for row in self.curve],
            ),
            f"Matches of {share} {self.bytes:,} bytes with the training text in {self.training}.",
        ]


@dataclass(frozen=True, kw_only=True)
class Memorisation(Measurement):
    """The text that also occurs in the training text, and the loss on it and on the rest."""

    result = SharedText
    shown_by = "memorisation"

    memorisation: bool = False
    """Find the text that also occurs in the training text, and compare the loss on it with the loss on the rest. Needs
    the extra "entropy"."""
    memory: int = 2_000_000_000
    """Memory limit of `memorisation` in bytes. A text that needs more is sampled."""

    def check(self, run: Run, options: EvaluationOptions) -> None:
        if not self.memorisation:
            return
        if self.memory < LEAST_MEMORY:
            raise ValueError(f"`memory` is {self.memory:,} bytes, but must be at least 1M")
        if find_spec("pydivsufsort") is None:
            raise ValueError("`memorisation` needs the package pydivsufsort: pip install 'bytelm[entropy]'")
        if run.recipe.objective == "sequence-pairs":
            raise ValueError(f"{run.folder} was trained on pairs, and `memorisation` needs a text: leave it out")
        if options.corpus and training_data_of(run) is None:
            raise ValueError(f"{run.folder} has no dataset to search for memorised text: name its dataset with `data`")

    def measure(self, split: ScoredSplit) -> SharedText | None:
        if not self.memorisation:
            return None
        run, dataset = split.plan.run, split.plan.dataset
        own = dataset.fingerprint == run.facts["dataset_fingerprint"]
        training = dataset if own else training_data_of(run) or dataset
        assert isinstance(training, TokenDataset) and isinstance(split.stream, TokenStream) and split.text
        with Bar("searching the training text", None, "tok") as bar:
            return shared_text(
                split.tokens,
                split.stream,
                split.text,
                split.tokenizer,
                training,
                per_byte=split.is_code,
                memory=self.memory,
                progress=bar.update,
            )


MEASUREMENT = Memorisation


def shared_text(
    scores: TokenScores,
    stream: TokenStream,
    text: StreamText,
    tokenizer: Tokenizer,
    training: TokenDataset,
    *,
    per_byte: bool,
    memory: int,
    progress: Progress = lambda done, total: None,
) -> SharedText:
    """Return the matches of a split, whose tokens are `stream`.

    The training text is searched in overlapping pieces that need about `memory` bytes, so no match is missed. A split
    that needs more than half of the memory is sampled: documents in random order, the last one cut.
    """
    from lm.text_statistics.match_lengths import is_covered, longest_matches  # imports numba

    added, lengths = decoded_tokens(tokenizer)
    ids = stream.read(0, stream.tokens)
    written = np.frombuffer(decode(added, ids), np.uint8)
    text = replace(text, start=np.cumsum(lengths[ids]) - lengths[ids], size=len(written))
    chosen = _sample(text.document_starts, memory // 2 // HELD_OUT_MEMORY)
    counts = _running(chosen)
    room = (memory - HELD_OUT_MEMORY * int(counts[-1])) // TRAINING_MEMORY
    pieces = _pieces(training, tokenizer, min(room, max(PIECE_BYTES, 4 * int(counts[-1]))), progress)
    placed = scores.indices[0] >= 0
    sizes = lengths[scores.targets]
    matches = np.zeros(len(written), np.int32)
    # Longer matches depend on where the pieces are cut.
    matches[chosen] = np.minimum(longest_matches(written[chosen], counts[text.document_starts], pieces), LENGTHS[-1])
    curve = tuple(
        Matches(
            length,
            float(np.count_nonzero(matches >= length) / max(1, counts[-1])),
            float(np.count_nonzero(inside) / max(1, counts[-1])),
            _loss(scores, text, sizes, counts, inside, tokenizer.is_lossless, per_byte) if placed else None,
        )
        for length in LENGTHS
        for inside in [is_covered(matches, length)]
    )
    sampled = float(chosen.mean()) if len(chosen) else 1.0
    return SharedText(str(training.folder.resolve()), int(counts[-1]), sampled, curve)


def _sample(offsets: np.ndarray, most: int) -> np.ndarray:
    """Return whether each byte is in a random sample of documents of at most `most` bytes in total, (N,) bool."""
    chosen = np.zeros(offsets[-1], bool)
    for document in np.random.default_rng(SEED).permutation(len(offsets) - 1).tolist():
        taken = min(most, int(offsets[document + 1] - offsets[document]))
        chosen[offsets[document] : offsets[document] + taken] = True
        most -= taken
        if not most:
            break
    return chosen


def _running(flags: np.ndarray) -> np.ndarray:
    """Return the number of true values before each of `flags` (N,), and their total, (N + 1,) int32."""
    counts = np.zeros(len(flags) + 1, np.int32)
    np.cumsum(flags, out=counts[1:])
    return counts


def _pieces(
    training: TokenDataset, tokenizer: Tokenizer, size: int, progress: Progress
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the text of the training split in pieces of about `size` bytes, with the offsets of their documents.

    Each piece begins with the end of the piece before it, so that every string of LENGTHS[-1] bytes is in one piece.
    """
    stream, separator = training.split("train"), training.info["separator"]
    added, lengths = decoded_tokens(tokenizer)
    step = max(1, int(size / training.bytes_per_token("train")))
    held, borders = np.empty(0, np.uint8), np.empty(0, np.int64)
    for first in range(0, stream.tokens, step):
        progress(first, stream.tokens)
        ids = stream.read(first, step)
        ends = len(held) + np.cumsum(lengths[ids])
        if separator is not None:
            borders = np.concatenate([borders, ends[ids == separator]])
        held = np.concatenate([held, np.frombuffer(decode(added, ids), np.uint8)])
        yield held, np.concatenate([[0], borders, [len(held)]])
        cut = max(0, len(held) - LENGTHS[-1] + 1)
        held, borders = held[cut:], borders[borders > cut] - cut
    progress(stream.tokens, stream.tokens)


def _loss(
    scores: TokenScores,
    text: StreamText,
    sizes: np.ndarray,
    searched: np.ndarray,
    inside: np.ndarray,
    lossless: bool,
    per_byte: bool,
) -> Loss:
    """Return the tokens inside a match, and all others. Their bytes are None unless `lossless`.

    sizes (N,): the bytes of each token in the decoded text. searched (M + 1,): the number of bytes searched before each
    byte. inside (M,): whether the byte is inside a match.
    """
    starts = text.start[scores.indices]
    ends = starts + sizes
    known = searched[ends] - searched[starts] == sizes
    # A separator belongs to its document.
    known &= (sizes > 0) | (np.diff(searched, append=searched[-1] + 1)[starts] > 0)
    copied = _running(inside)
    groups = ((sizes > 0) & (copied[ends] - copied[starts] == sizes)).astype(np.int64)
    group = Groups(scores.nats[known], sizes[known] if lossless else None, per_byte)
    outside, inside_group = group.of(groups[known], 2)
    return Loss(inside_group, outside)

"""The loss of a split by groups of tokens: where the bits go.

Each breakdown is a list of rows whose shares of all bits add up to 1.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.cli.escapes import whole_characters
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.groups import Groups, NamedGroup
from pipelines.evaluation.measurement import Measurement, Result, Section, Table
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.windows import TokenScores
from pipelines.training.batch_objectives import Corruption
from tokenizer import Tokenizer

Rows = list[NamedGroup]
CLASSES = (
    "word start",
    "word inside",
    "number",
    "punctuation",
    "white space",
    "non-Latin letters",
    "part of a character",
    "special token",
)
WORD, INSIDE, NUMBER, PUNCTUATION, SPACE, NON_LATIN, PART, SPECIAL = range(len(CLASSES))
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 9, 13)
DECILES = ("most frequent tenth", *(f"tenth {i} of 10" for i in range(2, 10)), "rarest tenth", "never in training")
RANKED = 10
EXCERPT_TOKENS, EXCERPT_CHARACTERS = 32, 60


@dataclass(frozen=True)
class Breakdown(Result):
    """The groupings of a split; the shares of the groups in each add up to 1."""

    key = "breakdown"
    only = "groupings"
    section = Section(
        "Where the bits go",
        "The loss by groups of tokens. In each table, the shares of all bits add up to 100 %.",
    )

    groupings: dict[str, tuple[NamedGroup, ...]]

    def parts(self) -> list[Table | str]:
        return [table_of(f"bits by {key}", list(rows)) for key, rows in self.groupings.items()]


@dataclass(frozen=True, kw_only=True)
class BreakdownOfLoss(Measurement):
    """The loss by groups of tokens. It is always measured."""

    result = Breakdown
    shown_by = "breakdown"

    breakdown: bool = False
    """Print the loss by position, class, length and training frequency of the token, and by document."""

    def measure(self, split: ScoredSplit) -> Breakdown:
        # The unigram of corrupted text is fitted on a part of the training split only.
        counted = split.baselines and not isinstance(split.objective, Corruption)
        return breakdown(
            split.tokens,
            split.tokenizer,
            training_counts=split.baselines.unigram.counts if split.baselines and counted else None,
            stream=split.stream if isinstance(split.stream, TokenStream) else None,
            text=split.text,
            per_byte=split.is_code,
        )


MEASUREMENT = BreakdownOfLoss


def breakdown(
    scores: TokenScores,
    tokenizer: Tokenizer,
    *,
    training_counts: np.ndarray | None = None,
    stream: TokenStream | None = None,
    text: StreamText | None = None,
    per_byte: bool = True,
) -> Breakdown:
    """Return the groupings of a split.

    They are by `position` in the window, `class` of the token, its `length` in bytes; by `frequency` if
    `training_counts` (V,) are given; and by `document` for the tokens of a stream and for pairs. Bits per byte are None
    if `per_byte` is False because the loss is not a code length.

    If the tokenizer loses text, the byte length of tokens is unknown: there is no `length`, and `bytes` is None. Only
    documents then have bytes, those of the original, and `bits_per_original_byte` if `per_byte`.
    """
    lengths = tokenizer.token_byte_lengths if tokenizer.is_lossless else None
    group = Groups(scores.nats, None if lengths is None else lengths[scores.targets], per_byte)
    powers = np.log2(scores.columns + 1).astype(np.int64)
    groupings = {
        "class": group.rows(token_classes(scores.targets, scores.previous, tokenizer), CLASSES),
        "position": group.rows(powers, _ranges(2 ** np.arange(int(powers.max()) + 1))),
    }
    if training_counts is not None:
        groupings["frequency"] = group.rows(frequency_deciles(training_counts)[scores.targets], DECILES)
    if lengths is not None:
        names = ["0 bytes", *(f"{name} byte{'s' * (name != '1')}" for name in _ranges(LENGTHS[1:]))]
        groupings["length"] = group.rows(np.searchsorted(LENGTHS, lengths[scores.targets], side="right") - 1, names)
    if text is None:
        pairs = scores.windows
        groupings["document"] = rank(group.rows(pairs, [f"pair {i + 1}" for i in range(int(pairs.max()) + 1)]))
    elif stream is not None and scores.indices[0] >= 0:
        if lengths is None:
            group = Groups(scores.nats, text.sizes[scores.indices], per_byte, original=True)
        names = [f"document {i + 1}" for i in range(text.documents)]
        rows = rank(group.rows(text.document[scores.indices], names))
        places = {name: place for place, name in enumerate(names)}
        groupings["document"] = [
            replace(row, text=_excerpt(places[row.name], stream, text, tokenizer)) if row.name in places else row
            for row in rows
        ]
    return Breakdown({name: tuple(rows) for name, rows in groupings.items()})


def rank(rows: Rows) -> Rows:
    """Return the rows of the ten easiest documents, one row for all others, and the rows of the ten hardest.

    The measure is bits per byte, or bits per token for documents without bytes.
    """
    rows = sorted(rows, key=lambda row: row.bits_per_token if row.per_byte is None else row.per_byte)
    between = rows[RANKED:-RANKED]
    if not between:
        return rows
    sizes = [row.bytes for row in between if row.bytes is not None]
    size = sum(sizes) if sizes else None
    original = any(row.bits_per_original_byte is not None for row in rows)
    tokens, all_bits = sum(row.tokens for row in between), sum(row.bits_per_token * row.tokens for row in between)
    per_byte = all_bits / size if size and any(row.per_byte is not None for row in between) else None
    others = NamedGroup(
        name=f"{len(between):,} others",
        tokens=tokens,
        bytes=size,
        bits_per_token=all_bits / tokens,
        bits_per_byte=None if original else per_byte,
        bits_per_original_byte=per_byte if original else None,
        share=sum(row.share for row in between),
    )
    return [*rows[:RANKED], others, *rows[-RANKED:]]


def table_of(title: str, rows: Rows) -> Table:
    """Return the table of a grouping. The columns of bytes and of bits per byte are left out if no row has a value."""
    columns = {"tokens": [f"{row.tokens:,}" for row in rows]}
    if any(row.bytes is not None for row in rows):
        columns["bytes"] = [f"{row.bytes:,}" for row in rows]
    columns["bits/token"] = [f"{row.bits_per_token:.3f}" for row in rows]
    if any(row.per_byte is not None for row in rows):
        original = any(row.bits_per_original_byte is not None for row in rows)
        name = "bits/original byte" if original else "bits/byte"
        columns[name] = ["–" if row.per_byte is None else f"{row.per_byte:.3f}" for row in rows]
    columns["share"] = [f"{row.share:.1%}" for row in rows]
    names = [f"{row.name}: {row.text}" if row.text else row.name for row in rows]
    cells = [list(cells) for cells in zip(*columns.values(), strict=True)]
    return Table(title, "Group", list(columns), list(zip(names, cells, strict=True)), shares=True)


def token_classes(targets: np.ndarray, previous: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the index in CLASSES of each of `targets` (N,). `previous` (N,) are the tokens before them, -1 for none.

    A token with letters is inside a word if it begins with a letter and the token before it ends with a letter.
    """
    kinds, begins, ends = _vocabulary_classes(tokenizer)
    classes = kinds[targets]
    inside = (classes == WORD) & begins[targets] & ends[previous] & (previous >= 0)
    return np.where(inside, INSIDE, classes)


def _vocabulary_classes(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the class of each token, and whether it begins and ends with a letter: (V,) each.

    Tokens with Latin letters have the class WORD, because INSIDE depends on the token before.
    """
    size = tokenizer.vocab_size
    kinds, begins, ends = np.full(size, SPECIAL), np.zeros(size, bool), np.zeros(size, bool)
    for token in np.flatnonzero(tokenizer.ordinary).tolist():
        try:
            text = tokenizer.added_bytes(token).decode()
        except UnicodeDecodeError:
            kinds[token] = PART
            continue
        kinds[token] = _class_of(text)
        begins[token], ends[token] = text[:1].isalpha(), text[-1:].isalpha()
    return kinds, begins, ends


def _class_of(text: str) -> int:
    letters = [character for character in text if character.isalpha()]
    if letters:
        latin = all(c.isascii() or unicodedata.name(c, "").startswith("LATIN") for c in letters)
        return WORD if latin else NON_LATIN
    if any(character.isnumeric() for character in text):
        return NUMBER
    return SPACE if text.isspace() else PUNCTUATION


def frequency_deciles(counts: np.ndarray) -> np.ndarray:
    """Return the index in DECILES of each token: counts (V,) to (V,) int64.

    Sorted by count, each tenth of the tokens has a tenth of all occurrences. A token belongs to the tenth that contains
    the middle of its occurrences.
    """
    order = np.argsort(-counts, kind="stable")
    ordered = counts[order]
    middle = np.cumsum(ordered) - ordered / 2
    deciles = np.empty(len(counts), np.int64)
    deciles[order] = np.minimum(middle * 10 / max(1, counts.sum()), 9).astype(np.int64)
    return np.where(counts == 0, len(DECILES) - 1, deciles)


def _ranges(starts: Sequence[int] | np.ndarray) -> list[str]:
    """Return names of the ranges that begin at `starts`; the last has no end."""
    ends = [*(int(start) - 1 for start in starts[1:]), None]
    return [
        f"{start} or more" if end is None else f"{start}" if end == start else f"{start} to {end}"
        for start, end in zip(map(int, starts), ends, strict=True)
    ]


def _excerpt(place: int, stream: TokenStream, text: StreamText, tokenizer: Tokenizer) -> str:
    """Return the beginning of a document in one line."""
    first, last = np.searchsorted(text.document, [place, place + 1]).tolist()
    ids = stream.read(first, min(EXCERPT_TOKENS, last - first))
    ids = ids[tokenizer.ordinary[ids]]
    return " ".join(whole_characters(tokenizer.decode_bytes(ids.tolist())).split())[:EXCERPT_CHARACTERS]

"""The loss of a split by groups of tokens: where the bits go.

Each breakdown is a list of rows whose shares of all bits add up to 1.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lm.analysis.metrics import bits
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.documents import StreamText
from pipelines.evaluation.token_scores import TokenScores
from tokenizer import Tokenizer

Rows = list[dict[str, Any]]
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


def breakdown(
    scores: TokenScores,
    tokenizer: Tokenizer,
    *,
    training_counts: np.ndarray | None = None,
    stream: TokenStream | None = None,
    text: StreamText | None = None,
    per_byte: bool = True,
) -> dict[str, Rows]:
    """Return the entry `breakdown` of a split.

    The keys are `position` in the window, `class` of the token, its `length` in bytes; `frequency` if
    `training_counts` (V,) are given; and `document` for the tokens of a stream and for pairs. A row has `name`,
    `tokens`, `bytes`, `bits_per_token`, `bits_per_byte` and `share`, the share of all bits. `bits_per_byte` is None for
    a group without bytes, and if `per_byte` is False because the loss is not a code length.

    If the tokenizer loses text, the byte length of tokens is unknown: there is no `length`, and `bytes` is None. Only
    `document` rows then have bytes, those of the original, and `bits_per_original_byte` if `per_byte`.
    """
    lengths = tokenizer.token_byte_lengths if tokenizer.is_lossless else None
    group = Groups(scores.nats, None if lengths is None else lengths[scores.targets], per_byte)
    powers = np.log2(scores.columns + 1).astype(np.int64)
    found = {
        "position": group.rows(powers, _ranges(2 ** np.arange(int(powers.max()) + 1))),
        "class": group.rows(token_classes(scores.targets, scores.previous, tokenizer), CLASSES),
    }
    if lengths is not None:
        names = ["0 bytes", *(f"{name} byte{'s' * (name != '1')}" for name in _ranges(LENGTHS[1:]))]
        found["length"] = group.rows(np.searchsorted(LENGTHS, lengths[scores.targets], side="right") - 1, names)
    if training_counts is not None:
        found["frequency"] = group.rows(frequency_deciles(training_counts)[scores.targets], DECILES)
    if text is None:
        pairs = scores.windows
        found["document"] = ranked(group.rows(pairs, [f"pair {i + 1}" for i in range(int(pairs.max()) + 1)]))
    elif stream is not None and scores.indices[0] >= 0:
        if lengths is None:
            group = Groups(scores.nats, text.sizes[scores.indices], per_byte, "bits_per_original_byte")
        named = _document_rows(group, scores, text)
        found["document"] = ranked(named)
        for row in found["document"]:
            if "place" in row:
                row["text"] = _excerpt(row.pop("place"), stream, text, tokenizer)
    return found


class Groups:
    """Sums of nats, tokens and bytes by group."""

    def __init__(self, nats: np.ndarray, sizes: np.ndarray | None, per_byte: bool, key: str = "bits_per_byte") -> None:
        """nats (N,). sizes: bytes (N,), None if unknown. key: name of the bits per byte."""
        self.nats, self.sizes, self.per_byte, self.key = nats, sizes, per_byte, key

    def rows(self, groups: np.ndarray, names: Sequence[str]) -> Rows:
        """Return a row for each group with tokens; `groups` (N,) are indices of `names`."""
        count = len(names)
        tokens = np.bincount(groups, minlength=count)
        nats = np.bincount(groups, self.nats, minlength=count)
        sizes = None if self.sizes is None else np.bincount(groups, self.sizes, minlength=count).round().astype(int)
        return [
            row_of(
                names[i],
                int(tokens[i]),
                None if sizes is None else int(sizes[i]),
                float(nats[i]),
                self.nats.sum(),
                self.per_byte,
                self.key,
            )
            for i in np.flatnonzero(tokens).tolist()
        ]


def row_of(
    name: str,
    tokens: int,
    size: int | None,
    nats: float,
    total: float,
    per_byte: bool = True,
    key: str = "bits_per_byte",
) -> dict[str, Any]:
    """Return a row of a breakdown for tokens with `nats`, out of the `total` nats of the split."""
    return {
        "name": name,
        "tokens": tokens,
        "bytes": size,
        "bits_per_token": bits(nats / tokens),
        "bits_per_byte": None,
        key: bits(nats / size) if size and per_byte else None,
        "share": nats / total if total else 0.0,
    }


def ranked(rows: Rows) -> Rows:
    """Return the rows of the ten easiest documents, one row for all others, and the rows of the ten hardest.

    The measure is bits per byte, or bits per token for documents without bytes.
    """

    def cost(row: dict[str, Any]) -> float:
        per_token: float = row["bits_per_token"]
        return per_token if (per_byte := _per_byte(row)) is None else per_byte

    rows = sorted(rows, key=cost)
    between = rows[RANKED:-RANKED]
    if not between:
        return rows
    key = "bits_per_original_byte" if "bits_per_original_byte" in rows[0] else "bits_per_byte"
    tokens, size = (sum(row[key] for row in between) for key in ("tokens", "bytes"))
    all_bits = sum(row["bits_per_token"] * row["tokens"] for row in between)
    others = {
        "name": f"{len(between):,} others",
        "tokens": tokens,
        "bytes": size,
        "bits_per_token": all_bits / tokens,
        "bits_per_byte": None,
        key: None if all(row[key] is None for row in between) else all_bits / size,
        "share": sum(row["share"] for row in between),
    }
    return [*rows[:RANKED], others, *rows[-RANKED:]]


def table_of(rows: Rows) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the heads of a breakdown's table, and for each row its name and the cells below the heads.

    The columns of bytes and of bits per byte are left out if no row has a value.
    """
    sized = any(row["bytes"] is not None for row in rows)
    per_byte = any(_per_byte(row) is not None for row in rows)
    original = any(row.get("bits_per_original_byte") is not None for row in rows)
    last = ["bits/original byte" if original else "bits/byte"] if per_byte else []
    heads = ["tokens", *(["bytes"] if sized else []), "bits/token", *last, "share"]
    return heads, [tuple(_cells(row, sized, per_byte)) for row in rows]


def _per_byte(row: dict[str, Any]) -> float | None:
    """Return the bits per byte of a row, or per byte of the original."""
    found: float | None = row["bits_per_byte"]
    return row.get("bits_per_original_byte") if found is None else found


def _cells(row: dict[str, Any], sized: bool, per_byte: bool) -> Iterator[str]:
    yield f"{row['name']}: {row['text']}" if row.get("text") else row["name"]
    yield f"{row['tokens']:,}"
    if sized:
        yield f"{row['bytes']:,}"
    yield f"{row['bits_per_token']:.3f}"
    if per_byte:
        yield "–" if (found := _per_byte(row)) is None else f"{found:.3f}"
    yield f"{row['share']:.1%}"


def token_classes(targets: np.ndarray, previous: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Return the index in CLASSES of each of `targets` (N,). `previous` (N,) are the tokens before them, -1 for none.

    A token with letters is inside a word if it begins with a letter and the token before it ends with a letter.
    """
    kinds, begins, ends = _vocabulary_classes(tokenizer)
    found = kinds[targets]
    inside = (found == WORD) & begins[targets] & ends[previous] & (previous >= 0)
    return np.where(inside, INSIDE, found)


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


def _document_rows(group: Groups, scores: TokenScores, text: StreamText) -> Rows:
    """Return a row for each document, with its number from 0 in `place`."""
    documents = text.document[scores.indices]
    rows = group.rows(documents, [f"document {i + 1}" for i in range(text.documents)])
    return [row | {"place": place} for row, place in zip(rows, np.unique(documents).tolist(), strict=True)]


def _excerpt(place: int, stream: TokenStream, text: StreamText, tokenizer: Tokenizer) -> str:
    """Return the beginning of a document in one line."""
    first, last = np.searchsorted(text.document, [place, place + 1]).tolist()
    ids = stream.read(first, min(EXCERPT_TOKENS, last - first))
    ids = ids[tokenizer.ordinary[ids]]
    return " ".join(tokenizer.decode(ids.tolist()).split())[:EXCERPT_CHARACTERS]

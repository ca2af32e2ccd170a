"""An audit of the bytes: whether the bits and the bytes of a split are those of its original text.

A model that is scored on a text with missing bytes, or whose tokens are scored twice, has wrong bits per byte. The
checks count text and tokens again, from the decoded documents and the places of the scored tokens.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from lm.metrics.units import bits
from pipelines.cli.display import count_text
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.measurement import Measurement, Result, Section, Table
from pipelines.evaluation.planning import EvaluationOptions
from pipelines.evaluation.split import ScoredSplit
from pipelines.run.folder import Run
from pipelines.training.batch_objectives import MaskedToken

REPLACEMENT = "\ufffd".encode()
ROUNDING = 1e-9  # relative; the order of a sum changes its last digits
VERDICTS = {True: "pass", False: "FAIL", None: "–"}


@dataclass(frozen=True)
class Check:
    """A check of the audit."""

    name: str
    passed: bool | None
    """None if the check does not apply, or if there is nothing to compare with"""
    found: str


@dataclass(frozen=True)
class FirstDifference:
    """The first place where the decoded text differs from the original."""

    document: int
    """Number of the document, from 1"""
    byte: int | None
    """Index of the byte in the document, from 0; None for a dataset, which keeps only hashes of its documents"""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the audit counted in a split."""

    documents: int
    documents_compared: int
    """Documents whose original is known and that the end of the split does not cut"""
    documents_equal: int
    first_difference: FirstDifference | None
    text_bytes: int
    """Bytes of the decoded text"""
    original_bytes: int | None
    """Bytes of the original documents, without the part that the end of the split cuts off; None if none is compared"""
    scored_bytes: int | None
    """Bytes of the scored tokens; None if the tokenizer loses text, which leaves the bytes of a token unknown"""
    tokens: int
    """Tokens of the split"""
    scored_tokens: int
    """Different tokens that were scored"""
    repeated_scores: int
    """Scores of tokens that were scored before"""
    end_tokens: int
    """Tokens that stand before each document"""
    end_tokens_scored: int
    end_token_bits: float
    other_special_tokens: int
    unknown_tokens: int
    replacement_characters: int
    """U+FFFD in the decoded text"""
    replacement_characters_in_original: int | None
    """None if the original is unknown"""


@dataclass(frozen=True)
class Audit(Result):
    """The audit of a split."""

    key = "audit"
    section = Section(
        "Audit of the bytes",
        "The text and its scored tokens are counted again, from the decoded documents. Bits per byte are comparable "
        "between tokenizers if every check passes. A – marks a check that does not apply, or an unknown original.",
    )

    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    """Sentences about start tokens, end tokens and windows"""
    counts: Counts

    def parts(self) -> list[Table | str]:
        rows = [(check.name, [VERDICTS[check.passed], check.found]) for check in self.checks]
        return [Table("audit of the bytes", "check", ["result", "found"], rows, text=True), *self.notes]


@dataclass(frozen=True, kw_only=True)
class AuditOfBytes(Measurement):
    """The audit of the bytes."""

    result = Audit
    shown_by = "audit"

    audit: bool = False
    """Check that decoded text equals the original, and that each byte is scored once."""

    def check(self, run: Run, options: EvaluationOptions) -> None:
        if self.audit and run.recipe.objective not in ("next-token", "masked-token"):
            raise ValueError(
                f"{run.folder} was trained on {run.recipe.objective}: `audit` is for next-token and masked-token"
            )

    def measure(self, split: ScoredSplit) -> Audit | None:
        return audit_of(split) if self.audit else None


MEASUREMENT = AuditOfBytes


def audit_of(split: ScoredSplit) -> Audit:
    """Return the audit of a split of tokens."""
    counts = _counts(split)
    checks = (*_checks_of_text(split, counts), *_checks_of_scores(split, counts))
    return Audit(checks, tuple(_notes(split, counts)), counts)


def _counts(split: ScoredSplit) -> Counts:
    assert isinstance(split.stream, TokenStream)
    tokenizer, scores, separator = split.tokenizer, split.tokens, split.separator
    ids = split.stream.read(0, split.stream.tokens)
    places, unknown = np.unique(scores.indices), tokenizer.vocabulary.unknown_id
    special = ~tokenizer.ordinary[ids]
    named = np.isin(ids, [token for token in (separator, unknown) if token is not None])
    ends = np.zeros(0, bool) if separator is None else scores.targets == separator
    lengths = np.asarray(tokenizer.token_byte_lengths) if tokenizer.is_lossless else None
    return Counts(
        **_compared(split, ids),
        scored_bytes=None if lengths is None else int(lengths[ids[places]].sum()),
        tokens=len(ids),
        scored_tokens=len(places),
        repeated_scores=len(scores.indices) - len(places),
        end_tokens=0 if separator is None else int((ids == separator).sum()),
        end_tokens_scored=int(ends.sum()),
        end_token_bits=bits(float(scores.nats[: len(ends)][ends].sum())),
        other_special_tokens=int((special & ~named).sum()),
        unknown_tokens=0 if unknown is None else int((ids == unknown).sum()),
    )


def _compared(split: ScoredSplit, ids: np.ndarray) -> dict[str, Any]:
    """Return the fields of Counts about the documents of the split, which are decoded and compared one by one."""
    text, recorded, tokenizer = split.text, split.recorded, split.tokenizer
    assert text is not None
    size = equal = compared = replacements = 0
    original_size: int | None = 0 if recorded else None
    first: FirstDifference | None = None
    parts = np.split(ids, np.searchsorted(text.document, np.arange(1, text.documents)))
    for number, part in enumerate(parts):
        written = tokenizer.decode_bytes(part[tokenizer.ordinary[part]].tolist())
        size += len(written)
        replacements += written.count(REPLACEMENT)
        if recorded is None or original_size is None:
            continue
        if len(part) < recorded.tokens[number]:  # the end of the split cuts the document
            original_size += len(written)
            continue
        compared += 1
        original_size += int(recorded.sizes[number])
        same = hashlib.sha256(written).digest() == recorded.hashes[number]
        equal += same
        if not same and first is None:
            first = FirstDifference(number + 1, _place_of_difference(split, number, written))
    in_original = replacements if compared and equal == compared else _replacements(split)
    return {
        "documents": text.documents,
        "documents_compared": compared,
        "documents_equal": equal,
        "first_difference": first,
        "text_bytes": size,
        "original_bytes": original_size if compared else None,
        "replacement_characters": replacements,
        "replacement_characters_in_original": in_original,
    }


def _place_of_difference(split: ScoredSplit, number: int, written: bytes) -> int | None:
    """Return the index of the first byte of a document that differs from `written`; None if only a hash is known."""
    dataset = split.plan.dataset
    if not isinstance(dataset, CorpusText):
        return None
    original = next(islice(dataset.documents(split.name), number, None))
    pairs = enumerate(zip(original, written, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(original), len(written)))


def _replacements(split: ScoredSplit) -> int | None:
    """Return the number of U+FFFD in the original documents, None if they are unknown."""
    dataset = split.plan.dataset
    if not isinstance(dataset, CorpusText):
        return None
    return sum(document.count(REPLACEMENT) for document in dataset.documents(split.name))


def _checks_of_text(split: ScoredSplit, counts: Counts) -> Iterator[Check]:
    """Yield the checks of the decoded text."""
    compared, equal, first = counts.documents_compared, counts.documents_equal, counts.first_difference
    found = f"{equal:,} of {count_text(compared, 'document')}"
    if first:
        found += f"; first in document {first.document:,}" + ("" if first.byte is None else f", at byte {first.byte:,}")
    if not compared:
        cut = "the end of the split cuts its only document"
        found = "no record of the original documents" if split.recorded is None else cut
    yield Check("decoded text equals the original", equal == compared if compared else None, found)
    original = counts.original_bytes
    found = "unknown" if original is None else f"{original:,}"
    yield Check(
        "decoded bytes, original bytes",
        None if original is None else original == counts.text_bytes,
        f"{counts.text_bytes:,}, {found}",
    )
    written, there = counts.replacement_characters, counts.replacement_characters_in_original
    yield Check(
        "U+FFFD decoded, in the original",
        None if there is None else written == there,
        f"{written:,}, {'unknown' if there is None else f'{there:,}'}",
    )
    yield Check("no unknown tokens", counts.unknown_tokens == 0, f"{counts.unknown_tokens:,}")
    other = counts.other_special_tokens
    yield Check("no special tokens in documents", other == 0, f"{other:,}")
    if split.separator is not None:
        expected = counts.documents
        yield Check(
            "one end token for each document",
            counts.end_tokens == expected,
            f"{count_text(counts.end_tokens, 'end token')}, {count_text(expected, 'document')}",
        )


def _checks_of_scores(split: ScoredSplit, counts: Counts) -> Iterator[Check]:
    """Yield the checks of the scored tokens and their bits."""
    repeated, scored = counts.repeated_scores, counts.scored_bytes
    found = f"{count_text(counts.scored_tokens, 'token')} of {counts.tokens:,}"
    yield Check("no token is scored twice", repeated == 0, found if not repeated else f"{found}, {repeated:,} again")
    masked = isinstance(split.objective, MaskedToken)
    if masked or scored is None:
        reason = "a masked model scores some tokens" if masked else "the bytes of a token are unknown"
        yield Check("each byte is scored once", None, reason)
    else:
        found = f"{scored:,} of {count_text(counts.text_bytes, 'byte')}"
        yield Check("each byte is scored once", scored == counts.text_bytes and not repeated, found)
    if masked:
        yield Check("bits per byte are a code length", None, "never for a masked model: refused")
        return
    if scored is None:
        yield Check("bits per byte are a code length", False, "the tokenizer loses text: refused")
        return
    original = counts.text_bytes if counts.original_bytes is None else counts.original_bytes
    again = bits(float(split.tokens.nats.sum())) / max(1, original - counts.text_bytes + scored)
    reported = split.predictions["bits_per_byte"]
    same = reported is not None and math.isclose(again, reported, rel_tol=ROUNDING)
    kind = "decoded" if counts.original_bytes is None else "original"
    found = f"{again:.6f} per {kind} byte" + ("" if same or reported is None else f", {reported:.6f} reported")
    yield Check("bits per byte, counted again", same, found)


def _notes(split: ScoredSplit, counts: Counts) -> Iterator[str]:
    """Yield sentences about windows, the text before a document, end tokens and unscored text."""
    windows, scores, mask = split.plan.windows, split.tokens, split.plan.run.recipe.model.document_mask
    of = f"{count_text(int(scores.windows.max()) + 1, 'window')} of {windows.window:,} tokens"
    end = None if split.separator is None else split.tokenizer.decode([split.separator])
    if isinstance(split.objective, MaskedToken):
        share = counts.scored_tokens / counts.tokens
        yield f"{of}, each between its start and end tokens; {share:.1%} of the tokens are masked and scored."
    else:
        before = scores.columns + 1
        yield (
            f"{of}, {windows.stride:,} apart; a scored token has {before.min():,} to {before.max():,} tokens before it "
            f"in its window, {before.mean():,.1f} on average."
        )
        seen = "no token of other documents" if mask else "the documents before it in the window"
        yield (
            f"The first token of a document is predicted from {end} and {seen}."
            if end
            else "No token separates documents: the first token of each is predicted from the end of the previous one."
        )
        cost, total = counts.end_token_bits, bits(float(scores.nats.sum()))
        if end and total:
            yield (
                f"{counts.end_tokens_scored:,} of {count_text(counts.end_tokens, 'end token')} {end} are scored as the "
                f"end of a document: {cost:,.1f} bits and 0 bytes, {cost / total:.2%} of all bits."
            )
        left = counts.tokens - counts.scored_tokens
        size = (
            "" if counts.scored_bytes is None else f" ({count_text(counts.text_bytes - counts.scored_bytes, 'byte')})"
        )
        yield f"Not scored: {left:,} of {count_text(counts.tokens, 'token')}{size}."
    if split.recorded and (cut := int(split.recorded.tokens.sum()) - counts.tokens) > 0:
        documents = len(split.recorded.tokens) - counts.documents_compared
        ends = count_text(documents, "document")
        yield f"The last block leaves out {count_text(cut, 'token')}, from the end of {ends}."

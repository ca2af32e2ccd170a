"""Where two runs differ: their bits by class of text, and the strings with the largest gaps.

The tokens of two tokenizers have different borders, so the bits of both runs are summed over spans: the text between
two consecutive places at which both begin a token and a character begins. A span belongs to one class of text, that of
most of its bytes except white space. The classes of a split therefore add up to the whole difference.
"""

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import regex

from lm.metrics.intervals import interval
from lm.metrics.units import bits
from pipelines.cli.escapes import visible
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.confidence import FEWEST_CONTEXTS, draw
from pipelines.evaluation.decoded_text import decode, decoded_tokens, stream_text
from pipelines.evaluation.measurement import Table
from pipelines.evaluation.paired_text import PairedText, PlacedScores
from pipelines.evaluation.split import ScoredSplit

CLASSES = (
    "other words",
    "rare words",
    "non-Latin words",
    "numbers",
    "URLs",
    "code punctuation",
    "other characters",
    "new lines",
    "white space",
    "special tokens",
)
WORDS, RARE, NON_LATIN, NUMBERS, URLS, CODE, OTHER, LINES, SPACE, SPECIAL = range(len(CLASSES))
PARTS = regex.compile(
    r"""(?P<URLS>(?:[a-z]+://|www\.)[^\s<>"'`()\[\]{}|]+)
    |(?P<WORDS>\p{L}[\p{L}\p{M}]*+(?:['’][\p{L}\p{M}]++)*+)
    |(?P<NUMBERS>\p{N}++(?:[.,:]\p{N}++)*+)
    |(?P<CODE>[]{}<>=+*/\\|&^%$\#@~`_;[]++)
    |(?P<LINES>\s*[\r\n]\s*)
    |(?P<SPACE>\s++)
    |(?P<OTHER>[^]\s\p{L}\p{N}{}<>=+*/\\|&^%$\#@~`_;[]++)""",
    regex.VERBOSE | regex.DOTALL | regex.VERSION0,
)
KINDS = {
    "URLS": URLS,
    "WORDS": WORDS,
    "NUMBERS": NUMBERS,
    "CODE": CODE,
    "LINES": LINES,
    "SPACE": SPACE,
    "OTHER": OTHER,
}
LATIN = regex.compile(r"[\p{Latin}\p{M}'’]+")
STRINGS = 10
"""Strings that are listed for each run"""


@dataclass(frozen=True)
class ClassGap:
    """The bits of both runs in a class of text, and its part of their difference: run minus other."""

    name: str
    size: int
    """Bytes of the class in the tokens that the run scored; tokens where the difference is per token"""
    run_bits: float
    other_bits: float
    difference: float
    """In the unit of the difference; the differences of all classes add up to it"""
    low: float | None
    """Low end of the 95 % interval of the difference; both ends are None for a text that is too short"""
    high: float | None


@dataclass(frozen=True)
class StringGap:
    """The bits of both runs on all occurrences of a string."""

    text: str
    """The string, with visible white space"""
    count: int
    run_bits: float
    other_bits: float
    low: float | None
    """Low end of the 95 % interval of `run_bits` minus `other_bits`; both ends are None for a text that is too short"""
    high: float | None

    @property
    def gap(self) -> float:
        """Return the bits of the run minus those of the other run."""
        return self.run_bits - self.other_bits

    def row(self) -> tuple[str, list[str]]:
        """Return the row of a table: the string, its count, the mean bits of both runs, and the gap."""
        bounds = "" if self.low is None else f" ({self.low:,.1f} to {self.high:,.1f})"
        each = (f"{total / self.count:.2f}" for total in (self.run_bits, self.other_bits))
        return self.text, [f"{self.count:,}", *each, f"{self.gap:+,.1f}{bounds}"]


@dataclass(frozen=True)
class Gaps:
    """Where two runs differ."""

    run: str
    """Name of the run"""
    other: str
    classes: tuple[ClassGap, ...]
    """Sorted by their difference: first the class in which the run saves most"""
    run_better: tuple[StringGap, ...]
    """The strings on which the run saves most bits, the largest gap first"""
    other_better: tuple[StringGap, ...]

    def tables(self, unit: str) -> list[Table]:
        """Return the table of the classes, whose difference is in `unit`, and those of the strings."""
        heads = [unit.removeprefix("bits per ") + "s", f"bits, {self.run}", f"bits, {self.other}", unit]
        rows = [
            (one.name, [f"{one.size:,}", f"{one.run_bits:,.0f}", f"{one.other_bits:,.0f}", _with_bounds(one)])
            for one in self.classes
        ]
        total = [sum(getattr(one, key) for one in self.classes) for key in ("size", "run_bits", "other_bits")]
        whole = sum(one.difference for one in self.classes)
        rows.append(("all", [*(f"{value:,.0f}" for value in total), f"{whole:+.4f}"]))
        tables = [Table(f"difference by class of text: {self.run} minus {self.other}", "class", heads, rows)]
        heads = ["times", f"bits each, {self.run}", self.other, "gap, bits in all"]
        for name, strings in ((self.run, self.run_better), (self.other, self.other_better)):
            if strings:
                rows = [one.row() for one in strings]
                tables.append(Table(f"strings on which {name} saves most bits", "string", heads, rows))
        return tables


def _with_bounds(one: ClassGap) -> str:
    return f"{one.difference:+.4f}" + ("" if one.low is None else f" ({one.low:+.4f} to {one.high:+.4f})")


def gaps_of_tokens(split: ScoredSplit, gaps: np.ndarray, sizes: np.ndarray | None, names: Sequence[str]) -> Gaps | None:
    """Return where two runs with one tokenizer differ; None for a split whose tokens have no place in a text.

    gaps (N,): nats of the run minus those of the other run. sizes (N,): bytes of the tokens, None for bits per token.
    names: the runs.
    """
    stream, text, sampling, indices = split.stream, split.text, split.sampling, split.tokens.indices
    if not isinstance(stream, TokenStream) or text is None or indices[0] < 0 or split.tokenizer.kind == "integers":
        return None
    added, lengths = decoded_tokens(split.tokenizer)
    ids = stream.read(0, stream.tokens)
    written, starts = decode(added, ids), np.cumsum(lengths[ids]) - lengths[ids]
    firsts = starts[np.searchsorted(text.document, np.arange(text.documents))].tolist()
    documents = [written[start:end] for start, end in pairwise([*firsts, len(written)])]
    units = np.zeros(len(gaps), np.int64) if sampling is None else sampling.unit
    ours = PlacedScores(
        starts[indices],
        np.ones(len(gaps)) if sizes is None else sizes,
        split.tokens.nats,
        units,
        lengths[ids[indices]] > 0,
    )
    theirs = ours._replace(nats=ours.nats - gaps)
    count, block = (1, None) if sampling is None else (sampling.units, sampling.block)
    return gaps_of(documents, (ours, theirs), (starts, starts), count, block, names)


def gaps_of_pair(paired: PairedText, ours: ScoredSplit, theirs: ScoredSplit, names: Sequence[str]) -> Gaps | None:
    """Return where two runs with different tokenizers differ.

    None for masked models, which mask different text, and for tokenizers that lose text. names: the runs.
    """
    if not (ours.is_code and ours.tokenizer.is_lossless and theirs.tokenizer.is_lossless):
        return None
    assert isinstance(ours.stream, TokenStream)
    documents = paired.documents(stream_text(ours.stream, ours.tokenizer))
    scores, cuts = (paired.scores(0), paired.scores(1)), (paired.cuts(0), paired.cuts(1))
    return gaps_of(documents, scores, cuts, paired.units, paired.block, names)


def gaps_of(
    documents: Sequence[bytes],
    scores: tuple[PlacedScores, PlacedScores],
    cuts: tuple[np.ndarray, np.ndarray],
    units: int,
    block: int | None,
    names: Sequence[str],
) -> Gaps:
    """Return where two runs differ on a text.

    Args:
        documents: The text.
        scores: Scores of the run and of the other run; places are in the joined documents.
        cuts: Index of the first byte of each token, for each run.
        units: Number of units of the bootstrap.
        block: Units in a block that the bootstrap draws; None if it draws single units.
        names: The runs.
    """
    text = b"".join(documents)
    begins = (np.frombuffer(text, np.uint8) & 0xC0) != 0x80  # the other bytes continue a character
    for places in cuts:
        cut = np.zeros(len(text) + 1, bool)
        cut[places.astype(np.int64)] = True
        begins &= cut[:-1]
    edges = np.flatnonzero(begins)
    # Tokens without bytes are in no span: they have the number after the last one.
    spans = [np.where(s.written, np.searchsorted(edges, s.places, side="right") - 1, len(edges)) for s in scores]
    class_of_span = np.append(classes_of_spans(classes_of_bytes(documents), edges), SPECIAL)
    scored = np.zeros(len(edges) + 1, bool)
    scored[np.concatenate(spans)] = True
    string, texts = _strings(text, edges, scored[:-1])
    counts = np.bincount(string, minlength=len(texts) + 1)
    nats = [
        np.bincount(string[span], side.nats, minlength=len(texts) + 1) for span, side in zip(spans, scores, strict=True)
    ]
    chosen = _largest((nats[0] - nats[1])[:-1])
    column = np.full(len(texts) + 1, len(chosen))
    column[chosen] = np.arange(len(chosen))
    sums = []
    for span, side in zip(spans, scores, strict=True):
        by_class = _by_unit(side, class_of_span[span], len(CLASSES), units)
        by_string = _by_unit(side, column[string[span]], len(chosen) + 1, units)[:, :-1]
        sums.append(np.concatenate([by_class, by_string, side.sums(units)[1][:, None]], axis=1))
    drawn = None
    if units >= FEWEST_CONTEXTS:
        ours, theirs = np.split(draw(np.concatenate(sums, axis=1), block), 2, axis=1)
        drawn = ours, theirs
    sizes = np.bincount(class_of_span[spans[0]], scores[0].sizes, minlength=len(CLASSES))
    strings = [
        StringGap(visible(texts[i]), int(counts[i]), bits(float(nats[0][i])), bits(float(nats[1][i])), *bounds)
        for i, bounds in zip(chosen.tolist(), _bounds_of_strings(drawn, len(chosen)), strict=True)
    ]
    return Gaps(
        run=names[0],
        other=names[1],
        classes=tuple(_class_gaps(sums, drawn, sizes)),
        run_better=tuple(one for one in strings if one.gap < 0)[:STRINGS],
        other_better=tuple(one for one in reversed(strings) if one.gap > 0)[:STRINGS],
    )


def classes_of_bytes(documents: Sequence[bytes]) -> np.ndarray:
    """Return the index in CLASSES of each byte of the joined documents: (bytes,) uint8.

    A rare word is one that occurs once in all documents, whatever its case.
    """
    parts, kinds = [], []
    for document in documents:
        for match in PARTS.finditer(document.decode(errors="surrogateescape")):
            parts.append(match[0])
            kinds.append(KINDS[match.lastgroup or ""])
    words = Counter(part.casefold() for part, kind in zip(parts, kinds, strict=True) if kind == WORDS)
    once = {word for word, count in words.items() if count == 1}
    kinds = [kind if kind != WORDS else _class_of_word(part, once) for part, kind in zip(parts, kinds, strict=True)]
    lengths = [len(part) if part.isascii() else len(part.encode(errors="surrogateescape")) for part in parts]
    return np.repeat(np.array(kinds, np.uint8), lengths)


def _class_of_word(word: str, once: Set[str]) -> int:
    """Return the class of a word; `once` has the words that the text has once, in lower case."""
    if not (word.isascii() or LATIN.fullmatch(word)):
        return NON_LATIN
    return RARE if word.casefold() in once else WORDS


def classes_of_spans(class_of_byte: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the index in CLASSES of each span, (spans,), from the class of each byte and the start of each span.

    It is the class of most of its bytes except white space; of equal numbers, the first.
    """
    if not len(edges):
        return np.empty(0, np.int64)
    counts = [np.add.reduceat(class_of_byte == kind, edges, dtype=np.int64) for kind in range(LINES)]
    most = np.max(counts, axis=0)
    lines = np.logical_or.reduceat(class_of_byte == LINES, edges)
    return np.where(most > 0, np.argmax(counts, axis=0), np.where(lines, LINES, SPACE))


def _strings(text: bytes, edges: np.ndarray, scored: np.ndarray) -> tuple[np.ndarray, list[bytes]]:
    """Return the number of the string of each span, and the strings.

    Spans without scores, and the place after the last span, have the number after the last string.
    """
    numbers: dict[bytes, int] = {}
    string = np.full(len(edges) + 1, -1)
    starts, ends = edges[scored].tolist(), np.append(edges[1:], len(text))[scored].tolist()
    parts = (text[start:end] for start, end in zip(starts, ends, strict=True))
    string[:-1][scored] = [numbers.setdefault(part, len(numbers)) for part in parts]
    return np.where(string < 0, len(numbers), string), list(numbers)


def _largest(gaps: np.ndarray) -> np.ndarray:
    """Return the indices of the STRINGS lowest and of the STRINGS highest values, in order."""
    order = np.argsort(gaps, kind="stable")
    return order if len(order) <= 2 * STRINGS else np.concatenate([order[:STRINGS], order[-STRINGS:]])


def _by_unit(side: PlacedScores, group: np.ndarray, groups: int, units: int) -> np.ndarray:
    """Return the nats of each group in each unit, (units, groups), from the group (N,) of each token."""
    return np.bincount(side.units * groups + group, side.nats, minlength=units * groups).reshape(units, groups)


Drawn = tuple[np.ndarray, np.ndarray] | None
"""Sums of the samples of both runs, (DRAWS, columns) each: nats of classes, nats of strings, size; None without them"""


def _class_gaps(sums: Sequence[np.ndarray], drawn: Drawn, sizes: np.ndarray) -> list[ClassGap]:
    """Return the gap of each class in the text, from the `sums` of both runs, (units, columns) each."""
    ours, theirs = (part.sum(axis=0) for part in sums)
    rows = []
    for kind, name in enumerate(CLASSES):
        if not (ours[kind] or theirs[kind] or sizes[kind]):
            continue
        low = high = None
        if drawn:
            low, high = interval(bits(1) * (drawn[0][:, kind] / drawn[0][:, -1] - drawn[1][:, kind] / drawn[1][:, -1]))
        difference = bits(float(ours[kind] / ours[-1] - theirs[kind] / theirs[-1]))
        size, both = round(float(sizes[kind])), [bits(float(total[kind])) for total in (ours, theirs)]
        rows.append(ClassGap(name, size, both[0], both[1], difference, low, high))
    return sorted(rows, key=lambda row: row.difference)


def _bounds_of_strings(drawn: Drawn, count: int) -> list[tuple[float, float] | tuple[None, None]]:
    """Return the intervals of the gaps of `count` strings, in bits."""
    if drawn is None:
        return [(None, None)] * count
    first = len(CLASSES)
    return [interval(bits(1) * (drawn[0][:, column] - drawn[1][:, column])) for column in range(first, first + count)]

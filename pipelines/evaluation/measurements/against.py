"""The comparison of two runs on the same documents: the difference of their losses, and their divergences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lm.metrics.intervals import interval
from lm.metrics.predictions import divergences, token_nll
from lm.metrics.units import bits
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.confidence import FEWEST_CONTEXTS, Sampling, draw
from pipelines.evaluation.documents import document_keys
from pipelines.evaluation.gaps import Gaps, gaps_of_pair, gaps_of_tokens
from pipelines.evaluation.measurement import Measurement, Observer, Result, Section, Table, number
from pipelines.evaluation.measurements.predictions import PER_BYTE, Numbers
from pipelines.evaluation.paired_text import PairedText, ScoredText
from pipelines.evaluation.scoring import check_finite, score
from pipelines.evaluation.split import Chunk, ScoredSplit, Split
from pipelines.evaluation.windows import Windows
from pipelines.files import distinct_names
from pipelines.run.folder import Run
from pipelines.training.batch_loss import hidden_states

NO_DIVERGENCE = (
    "The runs have different tokenizers: their predictions are over different tokens and have no KL or Jensen-Shannon "
    "divergence."
)
SEEDS = "training seeds not counted"
UNITS = {key: Numbers.numbers()[key].name for key in PER_BYTE}


@dataclass(frozen=True)
class Gap:
    """The difference of two runs: run minus other, negative if the run is better."""

    unit: str
    value: float
    low: float | None
    """Low end of the 95 % interval; both ends are None for a text that is too short"""
    high: float | None
    documents: int | None


@dataclass(frozen=True)
class Difference(Gap):
    """The difference from another run, also as a sentence."""

    sentence: str
    reservations: tuple[str, ...]
    divergence: str = ""
    """Why the runs have no divergence"""


@dataclass(frozen=True, kw_only=True)
class Comparison(Result):
    """The comparison with another run. The divergences are None if the tokenizers differ."""

    above = True
    section = Section(
        "Where the runs differ",
        "The bits of both runs are summed over spans of text. A span begins where both runs begin a token and a "
        "character begins. It belongs to the class of most of its bytes. A word is rare if it occurs once in the text. "
        "The differences of the classes add up to the whole difference.",
    )

    kl_bits: float | None = number(
        "KL divergence, run from other", "Mean D_KL(run ∥ other) over the scored positions, in bits.", 4, headline=True
    )
    reverse_kl_bits: float | None = number(
        "KL divergence, other from run", "Mean D_KL(other ∥ run) over the scored positions, in bits.", 4
    )
    js_bits: float | None = number(
        "Jensen-Shannon divergence, bits", "Mean Jensen-Shannon divergence of run and other, 0 to 1.", 4
    )
    difference: Difference
    gaps: Gaps | None = None
    """Where the runs differ; None if their tokens have no common place in a text"""

    def parts(self) -> list[Table | str]:
        return [*self.gaps.tables(self.difference.unit)] if self.gaps else []

    def sentences(self, tokens: int) -> list[str]:
        difference = self.difference
        return [" ".join(filter(None, (difference.sentence, *difference.reservations, difference.divergence)))]


class Divergences:
    """Sums up the divergences from another model with the same tokenizer, and keeps the difference of every loss."""

    def __init__(self, other: Split) -> None:
        self._other = other
        self._windows: Windows | None = None
        self._sums = np.zeros(3)
        self._gaps: list[torch.Tensor] = []

    def update(self, chunk: Chunk) -> None:
        model = self._other.model
        if chunk.windows is not self._windows:
            self._windows = chunk.windows
            self._hidden = hidden_states(model, chunk.windows.batch, chunk.windows.scored)
        logits = model.logits(self._hidden[: len(chunk.targets)]).float()
        self._hidden = self._hidden[len(chunk.targets) :]
        nats = token_nll(logits, chunk.targets)
        check_finite(nats, self._other.plan.run)
        self._sums += [float(of_rows.sum()) for of_rows in divergences(chunk.logits, logits)]
        self._gaps.append(chunk.nats - nats)

    def result(self, split: ScoredSplit) -> Comparison:
        gaps = torch.cat(self._gaps).cpu().numpy()
        sizes = split.sizes if split.is_code else None
        gap = difference(gaps, split.sampling, sizes, UNITS[split.per_byte])
        where = gaps_of_tokens(split, gaps, sizes, _names(split, self._other))
        return _comparison(split, self._other, gap, where, *(self._sums / len(gaps)).tolist())


@dataclass(frozen=True, kw_only=True)
class Against(Measurement):
    """The comparison with the run `against`."""

    result = Comparison

    @property
    def shown(self) -> bool:
        return True

    def observer(self, split: Split) -> Observer | None:
        return Divergences(split.other) if split.other and split.other.stream is split.stream else None

    def measure(self, split: ScoredSplit) -> Comparison | None:
        other = split.other
        if other is None:
            return None
        key = split.per_byte if split.per_byte != "bits_per_byte" else other.per_byte
        theirs = score(other)
        paired = PairedText.of(_text_of(split), _text_of(theirs), split.plan.windows.window)
        where = gaps_of_pair(paired, split, theirs, _names(split, other))
        return _comparison(split, other, difference_per_byte(paired, UNITS[key]), where)


MEASUREMENT = Against


def _comparison(
    split: ScoredSplit,
    other: Split,
    gap: Gap,
    where: Gaps | None,
    kl: float | None = None,
    reverse: float | None = None,
    shannon: float | None = None,
) -> Comparison:
    """Return the comparison of a split with its `gap`, `where` the runs differ, and its divergences.

    The comparison lists reservations, such as a text that a run was trained on.
    """
    runs = split.plan.run, other.plan.run
    same_tokens = other.stream is split.stream
    notes = [] if same_tokens else reservations(runs, gap.unit)
    ours, theirs = _names(split, other)
    notes += filter(None, (split.trained_text.not_held_out(ours), other.trained_text.not_held_out(theirs)))
    divergence = "" if same_tokens else NO_DIVERGENCE
    words = Difference(
        **vars(gap), sentence=sentence(gap, ours, theirs), reservations=tuple(notes), divergence=divergence
    )
    return Comparison(kl_bits=kl, reverse_kl_bits=reverse, js_bits=shannon, difference=words, gaps=where)


def _names(split: Split, other: Split) -> list[str]:
    return distinct_names([split.plan.run.folder, other.plan.run.folder])


def _text_of(split: ScoredSplit) -> ScoredText:
    assert isinstance(split.stream, TokenStream) and split.text, "only runs on blocks have bits per byte"
    keys = document_keys(split.stream, split.tokenizer, split.text, split.recorded)
    return ScoredText(split.tokens, split.text, keys)


def difference(gaps: np.ndarray, sampling: Sampling | None, sizes: np.ndarray | None, unit: str) -> Gap:
    """Return the difference of two runs with the same tokenizer.

    gaps (N,): nats of the run minus nats of the other run. sizes (N,): bytes of the scored tokens, counted as `unit`
    says. Without them the unit is bits per token.
    """
    if sizes is None:
        sizes, unit = np.ones(len(gaps)), "bits per token"
    value = gaps.sum() / sizes.sum()
    if sampling is None:
        return _gap(unit, value, None, None)
    drawn, size = sampling.draw(gaps, sizes).T
    return _gap(unit, value, drawn / size, sampling.documents)


def difference_per_byte(paired: PairedText, unit: str = UNITS["bits_per_byte"]) -> Gap:
    """Return the difference in `unit` of two runs with different tokenizers."""
    documents = len(paired.pairs)
    sums = np.stack([column for side in (0, 1) for column in paired.scores(side).sums(paired.units)], axis=1)
    totals = sums.sum(axis=0)
    value = totals[0] / totals[1] - totals[2] / totals[3]
    if len(sums) < FEWEST_CONTEXTS:
        return _gap(unit, value, None, documents)
    columns = draw(sums, paired.block).T
    return _gap(unit, value, columns[0] / columns[1] - columns[2] / columns[3], documents)


def _gap(unit: str, nats: float, samples: np.ndarray | None, documents: int | None) -> Gap:
    low, high = (None, None) if samples is None else interval(bits(1) * samples)
    return Gap(unit, bits(float(nats)), low, high, documents)


def reservations(runs: Sequence[Run], unit: str) -> list[str]:
    """Return the caveats, as sentences, of comparing runs with different tokenizers in `unit`."""
    lossy = [run.name for run in runs if not run.tokenizer().is_lossless]
    notes = [
        f"The tokenizer of {name} loses text, such as case or unknown words, which the model does not have to predict."
        for name in lossy
    ]
    if unit == UNITS["masked_bits_per_byte"]:
        notes.append(
            "Each run masks 15 % of its own tokens. The other tokens of a masked word stay visible, which favours "
            "tokenizers with shorter tokens."
        )
    return notes


def sentence(gap: Gap, run: str, other: str) -> str:
    """Return a sentence about the difference of two runs, by their names."""
    unit, value, low, high = gap.unit, gap.value, gap.low, gap.high
    if value == 0:
        return f"{run} and {other} are equally good on this text: their losses are the same; {SEEDS}."
    better = run if value < 0 else other
    digits = 3 if abs(value) >= 0.01 else 5
    head = f"{better} is better by {abs(value):.{digits}f} {unit}"
    if low is None or high is None:
        return f"{head} on this text, which is too short for an interval; {SEEDS}."
    first, last = (-high, -low) if value < 0 else (low, high)
    span = f"95 %: {first:.{digits}f} to {last:.{digits}f}"
    if first > 0:
        return f"{head} ({span}) on text like this; {SEEDS}."
    return f"{head} on this text, but the interval includes 0 ({span}): similar text may show no difference; {SEEDS}."

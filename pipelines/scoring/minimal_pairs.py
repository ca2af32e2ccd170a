"""Minimal pairs: whether a run gives the acceptable sentence of each pair the higher probability.

Two kinds of rows are read as published. BLiMP (Warstadt et al. 2020) has `sentence_good` and `sentence_bad`, and `UID`
names the paradigm. EWoK (Ivanova et al. 2024) has `Context1`, `Context2`, `Target1` and `Target2`: each target must be
likelier after its own context than after the other one, so a row has two comparisons, and `Domain` is the paradigm.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from corpora.rows import Row, read_rows
from lm.metrics.labels import share_interval
from pipelines.cli.verbs import checks_arguments
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.windows import lone_mask_windows
from pipelines.run.loaded_run import LoadedRun
from pipelines.scoring.continuations import continuation, predict_endings
from pipelines.scoring.options import check_options
from pipelines.scoring.predictions import predict
from pipelines.scoring.texts import tokens_to_score
from pipelines.scoring.word_probabilities import ends_of_words, pieces_of
from pipelines.training.batch import Array
from pipelines.training.batch_objectives import MaskedToken, require_special_tokens
from tokenizer import CLS, MASK, SEP

BLIMP, EWOK = ("sentence_good", "sentence_bad"), ("Context1", "Context2", "Target1", "Target2")
PARADIGMS, GROUPS = ("UID", "Domain"), ("field", "linguistics_term")


class Text(NamedTuple):
    """A text whose part after the context is scored."""

    context: str
    target: str


@dataclass(frozen=True)
class Pair:
    """A row of a file: one or two comparisons of two texts."""

    place: str
    paradigm: str
    group: str
    """Field of linguistics of the paradigm; "" if the file names none"""
    good: tuple[Text, ...]
    bad: tuple[Text, ...]


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a set of pairs."""

    name: str
    pairs: int
    accuracy: float
    """Mean over pairs. A tie counts half: it would be right by chance in half of the cases"""
    low: float
    """The 95 % interval over pairs (Wilson 1927)"""
    high: float
    ties: int
    """Comparisons of equal scores"""


@dataclass(frozen=True)
class PairScores:
    """The scores of minimal pairs."""

    measure: Literal["log-likelihood", "pseudo-log-likelihood"]
    masking: Literal["token", "word"] | None
    """For an encoder: whether each token is masked alone, or with the later tokens of its word"""
    start_ids: tuple[int, ...]
    """Ids that a decoder reads before each text. Without them, it does not score the first token"""
    leading_blank: bool
    """Whether a blank precedes each text"""
    pairs: tuple[Pair, ...]
    good: tuple[tuple[float, ...], ...]
    """Nats of each pair: ln p of the better text in each comparison"""
    bad: tuple[tuple[float, ...], ...]

    @cached_property
    def points(self) -> Array:
        """Return the share of right comparisons of each pair, ties counted half: (pairs,) float64."""
        return np.array(
            [
                np.mean([(one > other) + (one == other) / 2 for one, other in zip(good, bad, strict=True)])
                for good, bad in zip(self.good, self.bad, strict=True)
            ]
        )

    @property
    def paradigms(self) -> list[Accuracy]:
        """Return the accuracy of each paradigm, by name."""
        return self._by([pair.paradigm for pair in self.pairs])

    @property
    def groups(self) -> list[Accuracy]:
        """Return the accuracy of each field of linguistics, by name; none if the files name none."""
        return self._by([pair.group for pair in self.pairs])

    @property
    def all(self) -> Accuracy:
        """Return the accuracy over all pairs."""
        return self._accuracy("all pairs", range(len(self.pairs)))

    @property
    def mean(self) -> float:
        """Return the mean over paradigms, which BLiMP and BabyLM report."""
        return float(np.mean([one.accuracy for one in self.paradigms]))

    def to_json(self) -> dict[str, Any]:
        """Return the convention, the accuracies and the scores of all pairs."""
        return {
            "measure": self.measure,
            "masking": self.masking,
            "start_ids": list(self.start_ids),
            "leading_blank": self.leading_blank,
            "ties": "half",
            "all": vars(self.all),
            "mean_of_paradigms": self.mean,
            "paradigms": [vars(one) for one in self.paradigms],
            "fields": [vars(one) for one in self.groups],
            "rows": self.rows(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each pair, with ln p of its texts in nats."""
        scores = zip(self.pairs, self.good, self.bad, self.points.tolist(), strict=True)
        return [
            {
                "place": pair.place,
                "paradigm": pair.paradigm,
                "field": pair.group,
                "good_nats": list(good),
                "bad_nats": list(bad),
                "accuracy": points,
            }
            for pair, good, bad, points in scores
        ]

    def _by(self, names: Sequence[str]) -> list[Accuracy]:
        order = sorted((name, place) for place, name in enumerate(names) if name)
        return [
            self._accuracy(name, [place for _, place in of_name])
            for name, of_name in groupby(order, key=lambda each: each[0])
        ]

    def _accuracy(self, name: str, places: Sequence[int]) -> Accuracy:
        share = float(self.points[list(places)].mean())
        ties = sum(one == other for i in places for one, other in zip(self.good[i], self.bad[i], strict=True))
        return Accuracy(name, len(places), share, *share_interval(share, len(places)), ties)


def read_pairs(paths: Iterable[Path], leading_blank: bool = False) -> list[Pair]:
    """Return the pairs of files of BLiMP or EWoK, with a blank before each text if `leading_blank`.

    Raises ValueError with file, row and field for any other row.
    """
    pairs: list[Pair] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"there is no {path}: name a file of minimal pairs with `pairs`")
        before = len(pairs)
        pairs += (_pair(row, path, " " if leading_blank else "") for row in read_rows(path))
        if len(pairs) == before:
            raise ValueError(f"{path} has no pairs: give rows with the fields {' and '.join(BLIMP)}")
    return pairs


def _pair(row: Row, path: Path, blank: str) -> Pair:
    good: tuple[Text, ...]
    bad: tuple[Text, ...]
    if any(name in row.fields for name in EWOK):
        one, two, first, second = (_text(row, name) for name in EWOK)
        good = Text(blank + one, f" {first}"), Text(blank + two, f" {second}")
        bad = Text(blank + two, f" {first}"), Text(blank + one, f" {second}")
    else:
        good, bad = ((Text("", blank + _text(row, name)),) for name in BLIMP)
    paradigm = next((str(row.fields[name]) for name in PARADIGMS if row.fields.get(name)), path.name.split(".")[0])
    group = next((str(row.fields[name]) for name in GROUPS if row.fields.get(name)), "")
    return Pair(row.place, paradigm, group, good, bad)


def _text(row: Row, name: str) -> str:
    value = row.fields.get(name)
    if not isinstance(value, str) or not value.strip():
        problem = f"is {value!r:.60}" if name in row.fields else f"is missing; the row has {', '.join(row.fields)}"
        raise ValueError(
            f'"{name}" in {row.place} {problem}: give a text. Minimal pairs have {" and ".join(BLIMP)}, or '
            f"{', '.join(EWOK)}"
        )
    return row.encodable(value, name)


@checks_arguments
def score_pairs(
    run: LoadedRun,
    paths: Sequence[Path],
    *,
    start: bool = True,
    leading_blank: bool = False,
    masking: Literal["token", "word"] = "word",
) -> PairScores:
    """Return the scores of minimal pairs.

    A decoder scores the sum of ln p of the tokens, an encoder the pseudo-log-likelihood. Raises ValueError for a row
    that is no pair, and for a text that is longer than the context.

    Args:
        run: A run that `load_run` returned, of a decoder or an encoder.
        paths: Files of BLiMP or EWoK.
        start: Whether a decoder first reads the start token from training. Without it, the first token is not scored.
        leading_blank: Whether a blank precedes each text, as in lm-eval.
        masking: For an encoder: mask each token alone (Salazar et al. 2020), or with the later tokens of its word
            (Kauf & Ivanova 2023).
    """
    encoder = run.config.model.architecture == "encoder"
    check_options(run.config.model, start=start, pairs=True)
    pairs = read_pairs(paths, leading_blank)
    places = {text: pair.place for pair in pairs for text in (*pair.good, *pair.bad)}
    before = run.around.before if start and not encoder else ()
    read = {text: _read(run, text, before, place, encoder) for text, place in places.items()}
    # Texts with the same ids are scored once, so their scores are equal.
    scores = _pseudo_sums(run, read.values(), masking) if encoder else _sums(run, read.values())
    return PairScores(
        "pseudo-log-likelihood" if encoder else "log-likelihood",
        masking if encoder else None,
        tuple(before),
        leading_blank,
        tuple(pairs),
        *(
            tuple(tuple(scores[read[text]] for text in getattr(pair, side)) for pair in pairs)
            for side in ("good", "bad")
        ),
    )


class Read(NamedTuple):
    """The ids that a model reads, of which it scores those from index `first` on."""

    ids: tuple[int, ...]
    first: int


def _read(run: LoadedRun, text: Text, before: Sequence[int], place: str, encoder: bool) -> Read:
    """Return the ids of a text after the ids `before`; ValueError if it is longer than the context."""
    if text.context:
        found = continuation(run, text.context, text.target, before, f"a target in {place}")
        ids, first, is_cut = found.ids.tolist(), found.first, found.is_cut
    else:
        ids = [*before, *tokens_to_score(run, text.target, f"a text in {place}").tolist()]
        first, is_cut = len(before), False
    length = run.config.model.context_length
    most = length - 2 if encoder else length + 1
    if is_cut or len(ids) > most:
        raise ValueError(f"a text in {place} is longer than the context of {length:,} tokens: leave the row out")
    return Read(tuple(ids), first if encoder else max(1, first))


def _sums(run: LoadedRun, texts: Iterable[Read]) -> dict[Read, float]:
    """Return the sum of ln p of the scored tokens of each text under a decoder."""
    different = list(dict.fromkeys(texts))
    made = predict_endings(run, [(np.array(read.ids), read.first) for read in different])
    return {read: math.fsum(part.log_probabilities) for read, part in zip(different, made, strict=True)}


def _pseudo_sums(run: LoadedRun, texts: Iterable[Read], masking: str) -> dict[Read, float]:
    """Return the pseudo-log-likelihood of the scored tokens of each text under an encoder."""
    special = run.around.special
    require_special_tokens("an encoder", (CLS, SEP, MASK), special)
    sums: dict[Read, float] = {}
    by_length = sorted(set(texts), key=lambda read: len(read.ids))
    for length, group in groupby(by_length, key=lambda read: len(read.ids)):
        rows = list(group)
        columns = np.concatenate([np.arange(read.first, length) for read in rows])
        starts = np.repeat(np.arange(len(rows)) * length, [length - read.first for read in rows])
        ends = None
        if masking == "word":
            none = np.zeros(length, bool)
            words = (ends_of_words(pieces_of(run.tokenizer, read.ids), none)[read.first :] for read in rows)
            ends = np.concatenate(list(words))
        stream = TokenStream([np.array([read.ids for read in rows]).ravel()], length)
        objective = MaskedToken(length, special, run.config.model.vocab_size)
        windows = lone_mask_windows(stream, objective, starts, columns, ends)
        made = predict(run.model, windows, len(rows) * length, total=len(columns)).log_probabilities
        for read, values in zip(rows, made.reshape(-1, length), strict=True):
            sums[read] = math.fsum(values[read.first :])
    return sums

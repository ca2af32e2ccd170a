"""Unigram training: from counts of words to pieces with scores.

Kudo 2018, "Subword Regularization: Improving Neural Network Translation Models with Multiple Subword Candidates":
begin with many frequent substrings, then alternate between expectation maximization and dropping the pieces that cost
the least likelihood. The details are those of sentencepiece, with three differences: sums are float64, words are cut
into segments that no piece crosses, and the final pieces are fitted again.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenizer import first_use
from tokenizer.kernels import lattice as kernel
from tokenizer.splitting.normalizers import MARK
from tokenizer.training.count_table import Counted
from tokenizer.training.counting import PretokenCounts, Progress
from tokenizer.training.piece_rules import PieceRules
from tokenizer.training.seeds import SPACE, Seeds, find_seeds
from tokenizer.workers import share_out, thread_count

PARTS = 8  # parts of the segments; their sums are added in order, so the number of threads does not matter
POSITIONS_PER_CALL = 1 << 19  # about 0.05 s, between which Ctrl-C is handled
STEPS_PER_ROUND = 2  # of expectation maximization
SHRINKING = 0.75  # share of the pieces that a round keeps
SURPLUS = 1.1  # rounds end with this many times the wanted pieces
LEAST_COUNT = 0.5  # expected occurrences of a piece
FINAL_STEPS = 2
# Memory at the start, if all words are different segments.
BYTES_PER_CHARACTER = 80
BYTES_PER_WORD = 40


def digamma(x: np.ndarray) -> np.ndarray:
    """Return the derivative of the logarithm of the gamma function for x > 0, float64, to about 1e-13."""
    x = np.array(x, dtype=np.float64)
    result = np.zeros_like(x)
    while (small := x < 10).any():
        result[small] -= 1 / x[small]
        x[small] += 1
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return np.asarray(result + np.log(x) - 1 / (2 * x) - series)


class Model:
    """The present pieces with their scores (log-probabilities in nats), and the lattice of their segmentations."""

    def __init__(self, seeds: Seeds, threads: int | None = None):
        self.symbols, self.characters = seeds.symbols, seeds.characters
        self.lattice = seeds.lattice
        self.places, self.lengths = seeds.places, seeds.lengths
        covered = np.maximum(seeds.weights * seeds.lengths.astype(np.float64), LEAST_COUNT)
        self.scores = np.log(covered) - np.log(covered.sum())
        self._threads = min(thread_count(threads), PARTS)
        self._longest = int(seeds.lengths.max(initial=1))
        ends = np.linspace(0, len(seeds.symbols), PARTS + 1)
        self._parts = np.searchsorted(seeds.lattice.starts, ends).tolist()
        self._room = int(np.diff(seeds.lattice.starts).max(initial=0)) + 1

    def __len__(self) -> int:
        return len(self.scores)

    def text(self, piece: int) -> str:
        """Return the spelling of a piece."""
        if piece < len(self.characters):
            return chr(self.characters[piece]).replace(SPACE, MARK)
        symbols = self.symbols[self.places[piece] : self.places[piece] + self.lengths[piece]]
        return "".join(map(chr, self.characters[symbols - 1].tolist())).replace(SPACE, MARK)

    def expected_counts(self) -> tuple[np.ndarray, float]:
        """Return the expected count of each piece over all segmentations, float64, and the log-likelihood in nats."""
        probabilities = np.exp(self.scores)
        likelihoods = np.zeros(PARTS)

        def expect(part: int, first: int, last: int, room: np.ndarray, counts: np.ndarray) -> None:
            likelihoods[part] += kernel.expect(
                self.lattice, first, last, probabilities, self._longest, room[0], room[1], room[2], counts
            )

        return self._sum(expect), float(likelihoods.sum())

    def best_counts(self) -> np.ndarray:
        """Return the count of each piece in the most likely segmentations, float64."""

        def count(part: int, first: int, last: int, room: np.ndarray, counts: np.ndarray) -> None:
            kernel.count_best(self.lattice, first, last, self.scores, room[0], room[1].view(np.int64), counts)

        return self._sum(count)

    def _sum(self, add: Callable[[int, int, int, np.ndarray, np.ndarray], None]) -> np.ndarray:
        """Return the sum over all parts, in their order, of what `add` adds to the counts of each piece."""
        total = np.zeros(len(self))
        waiting: dict[int, np.ndarray] = {}
        added = 0

        def work(part: int, check: Callable[[], None]) -> None:
            room, counts = np.empty((3, self._room)), np.zeros(len(self))
            first, end = self._parts[part : part + 2]
            while first < end:
                check()
                place = self.lattice.starts[first] + POSITIONS_PER_CALL
                last = min(end, max(first + 1, int(np.searchsorted(self.lattice.starts, place))))
                add(part, first, last, room, counts)
                first = last
            waiting[part] = counts

        def done(_: int) -> None:
            nonlocal added
            while added in waiting:
                np.add(total, waiting.pop(added), out=total)
                added += 1

        share_out(range(PARTS), [work] * self._threads, done)
        return total

    def fit(self, expected: np.ndarray, least: int) -> None:
        """Set the scores from expected counts, and drop pieces below LEAST_COUNT.

        All characters and at least `least` pieces stay. Digamma discounts rare pieces (Liang and Klein 2007,
        "Structured Bayesian nonparametric models with variational inference").
        """
        kept = self.largest(np.where(expected >= LEAST_COUNT, expected, -np.inf), least, len(self))
        counts = np.maximum(expected[kept], LEAST_COUNT)
        self.keep(kept)
        self.scores = digamma(counts) - digamma(counts.sum())

    def fit_all(self, expected: np.ndarray) -> None:
        """Set the scores of all pieces to the logarithms of their shares, without a discount."""
        counts = np.maximum(expected, LEAST_COUNT)
        self.scores = np.log(counts) - np.log(counts.sum())

    def losses(self) -> np.ndarray:
        """Return the log-likelihood lost without each piece, as `kernels.lattice.find_losses` defines it."""
        found = self.best_counts()
        losses = np.empty(len(self))
        room = np.empty((2, self._longest + 1))
        for first in range(0, len(self), POSITIONS_PER_CALL):
            last = min(first + POSITIONS_PER_CALL, len(self))
            arrays = (self.lattice, self.places, self.lengths, self.scores, found, found.sum())
            kernel.find_losses(*arrays, first, last, room[0], room[1].view(np.int64), losses)
        return losses

    def largest(self, values: np.ndarray, least: int, most: int) -> np.ndarray:
        """Return which pieces to keep, bool: all characters, then the pieces with the largest values, up to `most`.

        Pieces with the value -inf are kept only if fewer than `least` pieces would be left.
        """
        characters = len(self.characters)
        others = values[characters:]
        kept = np.ones(len(values), dtype=np.bool_)
        number = max(least - characters, min(most - characters, int((others > -np.inf).sum())))
        kept[characters + np.argsort(-others, kind="stable")[max(0, number) :]] = False
        return kept

    def keep(self, kept: np.ndarray) -> None:
        """Drop all other pieces. kept: bool, per piece."""
        if kept.all():
            return
        new_of = np.where(kept, np.cumsum(kept) - 1, kernel.NONE).astype(np.int32)
        edges = kernel.drop_pieces(self.lattice, new_of)
        lattice = self.lattice
        self.lattice = lattice._replace(pieces=lattice.pieces[:edges], lengths=lattice.lengths[:edges])
        self.places, self.lengths, self.scores = self.places[kept], self.lengths[kept], self.scores[kept]


def check_memory(counts: PretokenCounts, memory: int | None) -> None:
    """Raise ValueError if training takes more than `memory` bytes."""
    characters = int(np.count_nonzero((counts.data & 0xC0) != 0x80))
    needed = BYTES_PER_CHARACTER * characters + BYTES_PER_WORD * len(counts)
    if memory is not None and needed > memory:
        raise ValueError(
            f"training on {len(counts):,} distinct words takes about {needed:,} bytes, more than the memory limit of "
            f"{memory:,}: allow more, or leave out rare words (`min_count`, counts.at_least)"
        )


def learn_pieces(
    words: Counted,
    wanted: int,
    rules: PieceRules,
    threads: int | None = None,
    progress: Progress | None = None,
    runs: bool = False,
) -> list[tuple[str, float]]:
    """Return up to `wanted` pieces with their scores in nats, best first. All covered characters are pieces.

    words: in UTF-8, in any order, with a space in place of MARK. The result does not depend on the order of words or
    the number of threads. progress: called as ("prune", pieces dropped, pieces to drop). runs: see `find_seeds`.
    ValueError if the characters alone are more than `wanted`.
    """
    first_use.wait("unigram")
    found = find_seeds(words, rules, runs)
    characters = len(found.characters)
    if characters > wanted:
        raise ValueError(
            f"there are {characters} characters to cover, more than the {wanted} pieces wanted: train a larger "
            "vocabulary, or cover fewer characters (`pieces.character_coverage`)"
        )
    model = Model(found, threads)
    del found  # the model drops edges in place
    seeds = len(model)
    while len(model.symbols):
        for _ in range(STEPS_PER_ROUND):
            model.fit(model.expected_counts()[0], wanted)
        if progress is not None:
            progress("prune", seeds - len(model), seeds - wanted)
        if len(model) <= int(SURPLUS * wanted):
            break
        size = max(int(SURPLUS * wanted), int(SHRINKING * len(model)))
        model.keep(model.largest(model.losses(), wanted, size))
    model.keep(model.largest(model.scores, wanted, wanted))
    for _ in range(FINAL_STEPS):
        model.fit_all(model.expected_counts()[0])
    listed = [(model.text(piece), score) for piece, score in enumerate(model.scores.tolist())]
    return sorted(listed, key=lambda item: (-item[1], item[0]))

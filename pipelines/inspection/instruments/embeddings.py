"""Nearest tokens and analogies of the embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lm.introspection.analogies import analogies, chance_of_parallels
from lm.introspection.geometry import nearest_tokens, principal_components
from pipelines.evaluation.measurement import Result, Section, Table
from pipelines.inspection.instrument import Instrument
from pipelines.inspection.word_vectors import read_word_vectors
from pipelines.inspection.words import Words
from pipelines.reporting.pictures import Arrows, Picture, Point
from pipelines.reporting.token_labels import TokenLabels

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

DRAWN = 6  # analogies in the picture
NEAREST, USUAL, SHOWN = 6, 8, 12  # neighbours of a word, words if `near` is empty, and analogies in the table


@dataclass(frozen=True)
class Analogy:
    """An analogy, a is to b as c is to d, with the answer d."""

    words: tuple[str, ...]
    """a, b, c and d"""
    rank: int
    """Rank of d; 1 is the nearest"""
    nearest: str
    """The nearest possible answer"""
    parallel: float
    """Cosine of b - a and d - c"""
    coordinates: tuple[tuple[float, float], ...]
    """The four words along the first two principal components of all entries"""

    @property
    def arrows(self) -> list[tuple[Point, Point]]:
        """Return the arrows from a to b and from c to d."""
        a, b, c, d = ((word, *place) for word, place in zip(self.words, self.coordinates, strict=True))
        return [(a, b), (c, d)]


@dataclass(frozen=True)
class Space:
    """A set of vectors."""

    name: str
    """ "the model", or the file of word vectors"""
    entries: int
    dimensions: int
    nearest: dict[str, tuple[tuple[str, float], ...]]
    """The nearest entries of each word, with cosines"""
    missing: tuple[str, ...]
    """Words of `near` that are not single entries, such as words of several tokens"""
    analogies: tuple[Analogy, ...]
    skipped: int
    """Analogies with a word that is not a single entry, or with the same word twice"""
    chance_rank: float | None
    """Mean rank of an answer in a random order; None without analogies"""
    chance_parallel: float | None
    """Mean cosine of the displacements b - a and d - c of different analogies; None for fewer than two analogies"""


@dataclass(frozen=True)
class EmbeddingsOfRun(Result):
    """The spaces of the model and of word vectors."""

    key = "embeddings"
    section = Section(
        "Embeddings",
        "The nearest entries of a word are those whose vectors have the largest cosine with its vector. An analogy "
        "asks which entry is to c as b is to a. The entries except a, b and c are ranked by their cosine with b - a + "
        "c, with vectors of length 1 (Mikolov et al. 2013). The table shows the rank of the expected answer d. The "
        "chance rank is the mean rank in a random order. Parallel is the cosine of the displacements b - a and d - c; "
        "its chance is the mean over displacements of different analogies. d is often simply close to b or c, so a "
        "good rank alone cannot tell whether the relation is a direction. The embedding is only what the first layer "
        "reads, and cannot tell what later layers know of a word. It has no vector for a word of several tokens.",
    )

    spaces: tuple[Space, ...]

    def parts(self) -> list[Table | str]:
        parts: list[Table | str] = []
        for space in self.spaces:
            title = f"{space.name}, {space.entries:,} entries of {space.dimensions} dimensions"
            rows = [
                (word, ["  ".join(f"{near} {cosine:.2f}" for near, cosine in found)])
                for word, found in space.nearest.items()
            ]
            if rows:
                parts.append(Table(f"nearest in {title}", "entry", ["nearest entries, with cosines"], rows, text=True))
            if space.missing:
                parts.append(f"no vector in {space.name}: {', '.join(map(repr, space.missing))}")
            if space.analogies or space.skipped:
                parts += self._analogies(space, title)
        return parts

    def pictures(self) -> Sequence[Picture]:
        text = (
            "Each analogy has two arrows of one colour: from a to b and from c to d. The axes are the first two "
            "principal components of all entries. Parallel arrows of a colour show the same displacement, as far as "
            "two components tell."
        )
        return [
            Arrows(
                title=f"Displacements of analogies in {space.name}",
                text=text,
                groups=[one.arrows for one in space.analogies[:DRAWN]],
                x="principal component 1",
                y="principal component 2",
            )
            for space in self.spaces
            if space.analogies
        ]

    def _analogies(self, space: Space, title: str) -> list[Table | str]:
        found, skipped = space.analogies, f"{space.skipped:,} left out for repeated words or words without a vector"
        if not found:
            return [f"analogies in {title}: {skipped}"]
        rows = [(" ".join(one.words), [f"{one.rank:,}", one.nearest, f"{one.parallel:+.2f}"]) for one in found[:SHOWN]]
        ranks = np.array([one.rank for one in found])
        parallel = np.mean([one.parallel for one in found])
        beside = "" if space.chance_parallel is None else f" (chance {space.chance_parallel:+.2f})"
        return [
            Table(f"analogies in {title}", "a b c d", ["rank of d", "nearest", "parallel"], rows, text=True),
            f"{len(found):,} analogies: {np.mean(ranks == 1):.1%} first, median rank {np.median(ranks):,.0f} (chance "
            f"{space.chance_rank:,.0f}), parallel {parallel:+.2f}{beside}; {skipped}",
        ]


@dataclass(frozen=True, kw_only=True)
class Embeddings(Instrument):
    """Nearest tokens and analogies."""

    result = EmbeddingsOfRun
    reads_text = False
    usual = False

    near: tuple[str, ...] = ()
    """Words whose nearest tokens are shown; by default some frequent ones"""
    analogies: str | None = None
    """File of analogies: four words a b c d on each line, such as Athens Greece Oslo Norway"""
    vectors: str | None = None
    """File of word vectors in the text format of GloVe or word2vec, to show beside the model's"""

    def look(self, run: LoadedRun, text: str) -> EmbeddingsOfRun:
        asked = [] if self.analogies is None else read_analogies(Path(self.analogies))
        spaces, labels, words = [], TokenLabels(run.tokenizer), Words(run)
        usual = labels.words(np.zeros(run.tokenizer.vocab_size), USUAL)
        near = self.near or [labels.pieces[place].decode() for place in usual]
        rows = run.model.embedding.weight.detach().cpu()
        allowed = torch.zeros(len(rows), dtype=torch.bool).index_fill(0, words.ordinary, True)

        def token(word: str) -> int | None:
            for spelled in (word,) if word.startswith(" ") else (f" {word}", word):
                if len(ids := run.tokenizer.encode(spelled, disallowed_special=())) == 1 and allowed[ids[0]]:
                    return ids[0]
            return None

        spaces.append(_space("the model", rows, allowed, token, lambda i: words.of([i])[0], near, asked))
        if self.vectors is not None:
            given = read_word_vectors(Path(self.vectors))
            places = {word: place for place, word in enumerate(given.words)}

            def entry(word: str) -> int | None:
                return places.get(word.strip(), places.get(word.strip().lower()))

            vectors = torch.from_numpy(given.vectors)
            every = torch.ones(len(vectors), dtype=torch.bool)
            spaces.append(_space(self.vectors, vectors, every, entry, given.words.__getitem__, near, asked))
        return EmbeddingsOfRun(tuple(spaces))


INSTRUMENT = Embeddings


def read_analogies(path: Path) -> list[tuple[str, str, str, str]]:
    """Return the analogies of a file; lines that begin with ":" are headings.

    Raises ValueError that names a line with another number of words.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"`analogies` is {str(path)!r}, which cannot be read as UTF-8: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith(":"):
            continue
        if len(words) != 4:
            raise ValueError(f"line {number} of {path} has {len(words)} words, but an analogy has four: a b c d")
        found.append((words[0], words[1], words[2], words[3]))
    return found


def _space(
    name: str,
    vectors: Tensor,
    allowed: Tensor,
    find: Callable[[str], int | None],
    label: Callable[[int], str],
    near: tuple[str, ...] | list[str],
    asked: list[tuple[str, str, str, str]],
) -> Space:
    """Return what the instrument finds in `vectors` (V, D); `find` and `label` turn words into rows and back."""
    here = {word: place for word in near if (place := find(word)) is not None}
    kept = allowed.nonzero().squeeze(-1)
    rows = {int(place): row for row, place in enumerate(kept)}
    ids = torch.tensor([rows[place] for place in here.values()], dtype=torch.int64)
    found = nearest_tokens(vectors[kept], ids, min(NEAREST, len(kept) - 1))
    nearest = {
        label(place): tuple((label(int(kept[i])), float(c)) for i, c in zip(one, cosines, strict=True))
        for place, one, cosines in zip(here.values(), found.ids, found.cosines, strict=True)
    }
    places = [[find(word) for word in words] for words in asked]
    whole = [row for row in places if None not in row and len(set(row)) == 4]
    answers: list[Analogy] = []
    chance_rank = chance_parallel = None
    if whole:
        quadruples = torch.tensor(whole)
        solved, plane = analogies(vectors, quadruples, allowed), principal_components(vectors[kept])
        chance_rank, chance_parallel = solved.chance_rank, chance_of_parallels(vectors, quadruples)
        for number, row in enumerate(quadruples.tolist()):
            at = plane.coordinates[[rows[place] for place in row]].tolist()
            answers.append(
                Analogy(
                    tuple(label(place) for place in row),
                    int(solved.ranks[number]),
                    label(int(solved.nearest[number])),
                    float(solved.parallel[number]),
                    tuple((x, y) for x, y in at),
                )
            )
    return Space(
        name,
        len(kept),
        vectors.shape[1],
        nearest,
        tuple(word for word in near if word not in here),
        tuple(answers),
        len(asked) - len(whole),
        chance_rank,
        chance_parallel,
    )

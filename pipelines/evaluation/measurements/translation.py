"""Translations of a split by beam search, and their BLEU against the references."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from lm.decoding.beam import beam_search
from lm.decoding.packed import prepare
from lm.model import LanguageModel
from pipelines.cli.arguments import check_beams, check_length_penalty
from pipelines.cli.display import Bar
from pipelines.dataset.pair_dataset import Pairs
from pipelines.evaluation.measurement import Measurement, Result, Section, Table, number
from pipelines.evaluation.planning import EvaluationOptions
from pipelines.evaluation.split import ScoredSplit
from pipelines.evaluation.text_scores import bleu
from pipelines.run.folder import Run
from pipelines.run.text_ids import known_ids
from pipelines.training.batch_objectives import PairObjective
from tokenizer import Tokenizer

SOURCES, TARGETS = 64, 256  # limits of a batch, so that memory does not grow with the number of beams
EXAMPLES = 12


@dataclass(frozen=True)
class Example:
    """A pair of texts, and the target that was found for the source."""

    source: str
    reference: str
    hypothesis: str


@dataclass(frozen=True, kw_only=True)
class Translations(Result):
    """The translations of all sources of a split."""

    section = Section("Translations", "Some pairs, evenly spread over the split.")

    beams: int = number("beams", "Hypotheses that beam search keeps.", 0, setting=True)
    length_penalty: float = number(
        "length penalty",
        "Beam search divides the log-probability of a target by its length to this power.",
        2,
        setting=True,
    )
    bleu: float | None = number(
        "BLEU", "Cased corpus BLEU (0 to 100) of the targets from beam search, by sacrebleu.", 1, headline=True
    )
    bleu_signature: str | None
    exact_match: float = number(
        "exact match", "Share of targets from beam search that equal the reference byte for byte.", 4
    )
    translations: tuple[Example, ...]

    def sentences(self, tokens: int) -> list[str]:
        return [f"BLEU: {self.bleu_signature}"] if self.bleu_signature else []

    def parts(self) -> list[Table | str]:
        rows = [(example.source, [example.reference, example.hypothesis]) for example in self.translations]
        return [Table(f"beam search with {self.beams} beams", "source", ["reference", "found"], rows, text=True)]


@dataclass(frozen=True, kw_only=True)
class Translation(Measurement):
    """BLEU of a run on pairs."""

    result = Translations

    beams: int = 4
    """For pairs: width of the beam search for BLEU; 0 leaves the search out."""
    length_penalty: float = 1.0
    """For pairs: beam search divides log-probabilities by the length to this power."""

    def check(self, run: Run, options: EvaluationOptions) -> None:
        check_beams(self.beams, "to leave the search out")
        check_length_penalty(self.length_penalty)

    def measure(self, split: ScoredSplit) -> Translations | None:
        if not (self.beams and isinstance(split.objective, PairObjective) and isinstance(split.stream, Pairs)):
            return None
        with Bar(f"searching {split.name}", len(split.stream), "pairs") as bar:
            return translations(
                split.model,
                split.stream,
                split.objective,
                split.tokenizer,
                beams=self.beams,
                length_penalty=self.length_penalty,
                bar=bar,
            )


MEASUREMENT = Translation


def translations(
    model: LanguageModel,
    pairs: Pairs,
    objective: PairObjective,
    tokenizer: Tokenizer,
    *,
    beams: int,
    length_penalty: float,
    bar: Bar,
) -> Translations:
    """Translate all sources of a split by beam search."""
    best: list[list[int]] = [[]] * len(pairs)
    done = 0
    allowed = known_ids(tokenizer, model)
    for rows, targets in _translate(model, pairs, objective, beams, length_penalty, allowed):
        for row, ids in zip(rows.tolist(), targets, strict=True):
            best[row] = ids
        done += len(rows)
        bar.update(done)
    hypotheses = [tokenizer.decode(ids) for ids in best]
    references = [tokenizer.decode(pairs.targets[row].tolist()) for row in range(len(pairs))]
    same = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    shown = np.unique(np.linspace(0, len(pairs) - 1, EXAMPLES).astype(int)).tolist()
    examples = (
        Example(tokenizer.decode(pairs.sources[row].tolist()), references[row], hypotheses[row]) for row in shown
    )
    score, signature = bleu(hypotheses, references)
    return Translations(
        beams=beams,
        length_penalty=length_penalty,
        bleu=score,
        bleu_signature=signature,
        exact_match=same / len(pairs),
        translations=tuple(examples),
    )


def _translate(
    model: LanguageModel,
    pairs: Pairs,
    objective: PairObjective,
    beams: int,
    length_penalty: float,
    allowed: torch.Tensor | None,
) -> Iterator[tuple[np.ndarray, list[list[int]]]]:
    """Yield (rows, target ids found for each row, without the end id). Sources of similar lengths are in one batch."""
    prepared = prepare(model)
    order = np.argsort(pairs.sources.lengths, kind="stable")
    at_once = sources_at_once(beams)
    for first in range(0, len(order), at_once):
        rows = order[first : first + at_once]
        batch = objective.batch(pairs, rows)
        hypotheses = beam_search(
            prepared,
            torch.from_numpy(batch.source).to(prepared.device),
            start_id=objective.start_id,
            end_ids=[objective.end_id],
            max_new_tokens=objective.positions,
            beams=beams,
            length_penalty=length_penalty,
            source_present=torch.from_numpy(batch.source_present).to(prepared.device),
            allowed=allowed,
        )
        best = [list(of_source[0].ids) for of_source in hypotheses]
        yield rows, [ids[:-1] if ids[-1] == objective.end_id else ids for ids in best]


def sources_at_once(beams: int) -> int:
    """Return how many sources are searched at once."""
    return max(1, min(SOURCES, TARGETS // beams))

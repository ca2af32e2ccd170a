"""Translations of a split by beam search, and their BLEU against the references."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from lm.decoding.beam import beam_search
from lm.decoding.packed import prepare
from lm.model import LanguageModel
from pipelines.cli.display import Bar, say
from pipelines.dataset.pairs import Pairs
from pipelines.run.text_ids import known_ids
from pipelines.training.objectives import PairObjective
from tokenizer import Tokenizer

SOURCES, TARGETS = 64, 256  # limits of a batch, so that memory does not grow with the number of beams
EXAMPLES = 12


def translation_numbers(
    model: LanguageModel,
    pairs: Pairs,
    objective: PairObjective,
    tokenizer: Tokenizer,
    *,
    beams: int,
    length_penalty: float,
    bar: Bar,
) -> dict[str, Any]:
    """Translate all sources of a split by beam search; return the numbers of evaluation.json about the translations.

    They are the numbers of `bleu`, `exact_match` (share of hypotheses that equal the reference byte for byte), `beams`,
    `length_penalty`, and `examples`: source, reference and hypothesis of some pairs evenly spread over the split.
    """
    found: list[list[int]] = [[]] * len(pairs)
    done = 0
    allowed = known_ids(tokenizer, model)
    for rows, targets in _translated(model, pairs, objective, beams, length_penalty, allowed):
        for row, ids in zip(rows.tolist(), targets, strict=True):
            found[row] = ids
        done += len(rows)
        bar.update(done)
    hypotheses = [tokenizer.decode(ids) for ids in found]
    references = [tokenizer.decode(pairs.targets[row].tolist()) for row in range(len(pairs))]
    same = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    shown = np.unique(np.linspace(0, len(pairs) - 1, EXAMPLES).astype(int)).tolist()
    return {
        **bleu(hypotheses, references),
        "exact_match": same / len(pairs),
        "beams": beams,
        "length_penalty": length_penalty,
        "examples": [
            {
                "source": tokenizer.decode(pairs.sources[row].tolist()),
                "reference": references[row],
                "hypothesis": hypotheses[row],
            }
            for row in shown
        ],
    }


def _translated(
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
        found = beam_search(
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
        best = [list(hypotheses[0].ids) for hypotheses in found]
        yield rows, [ids[:-1] if ids[-1] == objective.end_id else ids for ids in best]


def sources_at_once(beams: int) -> int:
    """Return how many sources are searched at once."""
    return max(1, min(SOURCES, TARGETS // beams))


def bleu(hypotheses: list[str], references: list[str]) -> dict[str, Any]:
    """Return `bleu` and `bleu_signature` (Papineni et al. 2002; Post 2018); None for both without sacrebleu.

    BLEU is from 0 to 100, of the whole corpus, cased, with sacrebleu's tokenization 13a.
    """
    if find_spec("sacrebleu") is None:
        say("BLEU is left out: it needs the package sacrebleu (pip install 'bytelm[translation]')")
        return {"bleu": None, "bleu_signature": None}
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="13a", lowercase=False)
    score = metric.corpus_score(hypotheses, [references])
    return {"bleu": score.score, "bleu_signature": str(metric.get_signature())}

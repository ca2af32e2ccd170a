"""Scores of texts against references by sacrebleu. Imports no torch."""

from collections.abc import Sequence
from importlib.util import find_spec

from pipelines.cli.display import say


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float | None, str | None]:
    """Return BLEU and its signature (Papineni et al. 2002; Post 2018); None for both without sacrebleu.

    BLEU is from 0 to 100, of the whole corpus, cased, with sacrebleu's tokenization 13a.
    """
    if not _is_installed("BLEU"):
        return None, None
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="13a", lowercase=False)
    score = metric.corpus_score(hypotheses, [references])
    return score.score, str(metric.get_signature())


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float | None:
    """Return chrF2 of the whole corpus, from 0 to 100 (Popović 2015); None without sacrebleu."""
    if not _is_installed("chrF"):
        return None
    from sacrebleu.metrics import CHRF

    score: float = CHRF().corpus_score(hypotheses, [references]).score
    return score


def _is_installed(score: str) -> bool:
    if find_spec("sacrebleu"):
        return True
    say(f"{score} is left out: it needs the package sacrebleu (pip install 'bytelm[translation]')")
    return False

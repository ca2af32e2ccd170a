"""Print the accuracy of files of minimal pairs on a terminal."""

from collections.abc import Sequence

from pipelines.cli.display import answer, table
from pipelines.scoring.minimal_pairs import Accuracy, PairScores
from tokenizer import Tokenizer

MASKED = {
    "token": "each token masked alone (Salazar et al. 2020)",
    "word": "each token masked with the later tokens of its word (Kauf & Ivanova 2023)",
}


def show_pairs(scores: PairScores, tok: Tokenizer) -> None:
    """Print the accuracy by paradigm and by field, and how the texts were scored."""
    for head, rows in (("paradigm", scores.paradigms), ("field", scores.groups)):
        if rows:
            table((head, "pairs", "accuracy", "95 % interval", "ties"), map(_row, rows))
            answer("")
    _, pairs, accuracy, interval, ties = _row(scores.all)
    answer(f"all {pairs} pairs: {accuracy} ({interval}), {ties} ties; mean of paradigms {scores.mean:.1%}")
    answer(f"score: {_convention(scores, tok)}; ties count half")


def _row(one: Accuracy) -> Sequence[str]:
    return one.name, f"{one.pairs:,}", f"{one.accuracy:.1%}", f"{one.low:.1%} to {one.high:.1%}", f"{one.ties:,}"


def _convention(scores: PairScores, tok: Tokenizer) -> str:
    blank = f"{'a' if scores.leading_blank else 'no'} leading blank"
    if scores.masking:
        return f"pseudo-log-likelihood, {MASKED[scores.masking]}, {blank}"
    start = f"after {tok.decode(list(scores.start_ids))}"
    return f"sum of ln p, {start if scores.start_ids else 'without a start token or the first token'}, {blank}"

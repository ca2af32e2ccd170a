"""Print the accuracy on minimal pairs or on questions on a terminal."""

from collections.abc import Sequence

from pipelines.cli.display import answer, count_text, table
from pipelines.scoring.minimal_pairs import Accuracy, PairScores
from pipelines.scoring.questions import SEED, QuestionScores
from tokenizer import Tokenizer

MASKED = {
    "token": "each token masked alone (Salazar et al. 2020)",
    "word": "each token masked with the later tokens of its word (Kauf & Ivanova 2023)",
}


def show(scores: PairScores | QuestionScores, tok: Tokenizer) -> None:
    """Print the accuracy of a run on files."""
    if isinstance(scores, PairScores):
        _show_pairs(scores, tok)
    else:
        _show_questions(scores, tok)


def _show_pairs(scores: PairScores, tok: Tokenizer) -> None:
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


def _show_questions(scores: QuestionScores, tok: Tokenizer) -> None:
    """Print both accuracies, and how the questions were read."""
    shares = (("acc", "ln p", scores.accuracy), ("acc_norm", "ln p per character", scores.accuracy_per_character))
    rows = [
        (name, measure, f"{share.value:.2%}", "–" if share.error is None else f"{share.error:.2%}")
        for name, measure, share in shares
    ]
    table(("accuracy", "likeliest by", "value", "standard error"), rows)
    answer(f"{count_text(len(scores.questions), 'question')}; by chance {scores.chance:.2%}")
    drawn = f", drawn with Random({SEED} + number)" if scores.shots else ""
    start = f"after {tok.decode(list(scores.start_ids))}" if scores.start_ids else "without a start token"
    answer(f"{count_text(scores.shots, 'example')} before each question{drawn}; read {start}")
    if scores.cut:
        answer(f"{count_text(scores.cut, 'question')} cut at the beginning to fit the context")

"""The results of answers to questions about a text."""

from dataclasses import dataclass

from pipelines.evaluation.measurement import Result, number


@dataclass(frozen=True, kw_only=True)
class AnswerNumbers(Result):
    """Exact match and F1 of answers, as SQuAD counts them, from 0 to 1."""

    answer_f1: float = number(
        "F1 of answers",
        "Mean F1 of the words of an answer and of the gold answer nearest to it, by the rules of SQuAD.",
        4,
        headline=True,
    )
    exact_match: float = number(
        "exact match",
        "Share of answers that equal a gold answer, without case, punctuation and articles.",
        4,
        headline=True,
    )
    exact_match_low: float = number("exact match, low end", "Low end of its 95 % interval (Wilson).", 4)
    exact_match_high: float = number("exact match, high end", "High end of its 95 % interval (Wilson).", 4)
    has_answer_f1: float | None = number(
        "F1 where there is an answer", "F1 over the questions with an answer.", 4, default=None
    )
    has_answer_exact_match: float | None = number(
        "exact match where there is an answer", "Exact match over the questions with an answer.", 4, default=None
    )
    no_answer_accuracy: float | None = number(
        "accuracy where there is no answer", "Share of the questions without an answer that get none.", 4, default=None
    )
    answer_threshold: float | None = number(
        "threshold of answers",
        "A question is answered if the logits of its answer exceed those of no answer by more than this.",
        3,
        default=None,
    )
    threshold_tuned_here: bool | None = number(
        "threshold tuned on these examples",
        "Whether the threshold was chosen for the highest F1 on the examples that are measured.",
        default=None,
    )

    windows: int | None = number(
        "windows", "Parts that were read: an example that is longer than the model reads has several.", 0, default=None
    )

    def sentences(self, tokens: int) -> list[str]:
        tuned = ["The threshold of answers was chosen on these examples, which favours F1."]
        return tuned if self.threshold_tuned_here else []

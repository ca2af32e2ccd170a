"""The results of predicted tags of words: numbers, and scores by type."""

from dataclasses import dataclass

from pipelines.evaluation.measurement import Result, Section, Table, number

SHOWN_TYPES = 60


@dataclass(frozen=True, kw_only=True)
class TagNumbers(Result):
    """The numbers of predicted tags, and of the entities that they mark."""

    entity_f1: float | None = number(
        "entity F1",
        "Harmonic mean of precision and recall over all entities, as conlleval and seqeval count them.",
        4,
        headline=True,
        default=None,
    )
    entity_precision: float | None = number(
        "entity precision", "Share of predicted entities whose type, start and end are right.", 4, default=None
    )
    entity_recall: float | None = number(
        "entity recall", "Share of entities that are predicted with their type, start and end.", 4, default=None
    )
    tag_accuracy: float = number("accuracy of tags", "Share of words whose tag is right.", 4, headline=True)
    tag_accuracy_low: float = number("accuracy of tags, low end", "Low end of its 95 % interval (Wilson).", 4)
    tag_accuracy_high: float = number("accuracy of tags, high end", "High end of its 95 % interval (Wilson).", 4)
    tag_macro_f1: float = number("macro F1 of tags", "Unweighted mean of F1 over the tags that occur.", 4)
    tag_nats: float | None = number(
        "cross-entropy, nats per word",
        "Mean of -ln p over words, where p is the probability of the right tag.",
        4,
        default=None,
    )
    tag_calibration: float | None = number(
        "calibration error of tags",
        "Expected gap between confidence and accuracy of each word's likeliest tag, over 15 equal bins of confidence.",
        4,
        default=None,
    )
    words: int = number("words", "Words with a tag.", 0)
    unread_words: int | None = number(
        "words without a token",
        "Words that the tokenizer drops; O, or the most frequent tag, is predicted.",
        0,
        default=None,
    )
    windows: int | None = number(
        "windows", "Parts that were read: an example that is longer than the model reads has several.", 0, default=None
    )

    def sentences(self, tokens: int) -> list[str]:
        return [
            f"The 95 % interval of the accuracy is {self.tag_accuracy_low:.1%} to {self.tag_accuracy_high:.1%}, over "
            "words as if they were independent."
        ]


@dataclass(frozen=True)
class TypeScores(Result):
    """Precision, recall and F1 of each type of entity, or of each tag."""

    key = only = "by_type"
    section = Section("By type", "F1 = 2 TP / (2 TP + FP + FN). Support: entities or words of the type.")

    by_type: dict[str, tuple[float, float, float, int]]
    """Precision, recall, F1 and support"""

    def parts(self) -> list[Table | str]:
        rows = [
            (name, [f"{precision:.3f}", f"{recall:.3f}", f"{f1:.3f}", f"{support:,}"])
            for name, (precision, recall, f1, support) in list(self.by_type.items())[:SHOWN_TYPES]
        ]
        return [Table("Scores by type", "Type", ["precision", "recall", "F1", "support"], rows)]

"""Tags of words: named entities, parts of speech."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from corpora.rows import Row
from corpora.tagged_files import SUFFIXES, is_tagged_file, read_tagged, with_tags
from corpora.tagged_text import spans_in, splits_word, tags_of, words_of
from lm.head_config import HeadConfig
from lm.metrics.entities import OUTSIDE, EntityScores, entities, entity_scores, iob2, marks_entities
from lm.metrics.labels import by_label, calibration_error, log_softmax, macro_f1, share_interval
from lm.warn import warn
from pipelines.evaluation.measurement import Result
from pipelines.evaluation.tag_results import TagNumbers, TypeScores
from pipelines.tasks.examples import ABSENT, Encoded
from pipelines.tasks.task import Example, Learned, Task
from pipelines.tasks.text_reader import TextReader
from pipelines.tasks.windows import word_windows
from pipelines.training.batch import Array


@dataclass(frozen=True, kw_only=True)
class Tokens(Task):
    """Tags of words, such as named entities in IOB and parts of speech; also labelled spans of a text.

    An encoder predicts the tag of a word at its first token. A decoder predicts at the last token, which has seen the
    whole word. A sentence longer than the context is read in windows of whole words.
    """

    name = "tokens"
    architectures = ("encoder", "decoder")
    usual = (
        ("tokens", "ner_tags"),
        ("tokens", "tags"),
        ("tokens", "pos_tags"),
        ("tokens", "upos"),
        ("words", "tags"),
        ("words", "ner_tags"),
        ("words", "pos_tags"),
        ("words", "labels"),
        ("tokens", "labels"),
        ("text", "entities"),
        ("text", "spans"),
        ("text", "labels"),
        ("text", "label"),
    )
    kinds = (TagNumbers, TypeScores)
    suffixes = SUFFIXES

    tag_names: tuple[str, ...] = ()
    """Names of numeric tags, from 0: O B-PER I-PER"""
    labels: Annotated[tuple[str, ...], Learned] = ()
    usual_tag: Annotated[str, Learned] = OUTSIDE

    # Reading

    def read(self, path: Path) -> Iterator[Row]:
        yield from read_tagged(path) if is_tagged_file(path) else super().read(path)

    def example(self, row: Row, labelled: bool = True) -> Example | None:
        words_name, tags_name = self._names(row)
        given = self._given(row)
        if isinstance(given, str):
            edges = words_of(given)
            starts = [0, *(end for _, end in edges)]
            words = tuple(given[start:end] for start, (_, end) in zip(starts, edges, strict=False))
            tags = tags_of(spans_in(row, tags_name, given), edges) if labelled else None
        else:
            texts = [_word(word, words_name, row) for word in given]
            # Byte-level tokenizers have the blank before a word in its first token.
            words = tuple(f" {text}" if place else text for place, text in enumerate(texts))
            tags = self._tags(row, tags_name, len(words)) if labelled else None
        return Example(row, words, None if tags is None else tuple(tags)) if words else None

    def examples(self, files: Iterable[Path]) -> list[Example]:
        files = list(files)
        found, named = super().examples(files), " and ".join(map(str, files))
        if widened := sum(self._splits_word(example) for example in found):
            warn(
                f"{widened:,} of {len(found):,} texts of {named} have spans that begin or end within a word: they are "
                "widened to whole words",
            )
        marks = {label[:1] for label in self.labels if label != OUTSIDE}
        other_scheme = marks not in (set(), {"B"}, {"B", "I"})  # an imported model may have one
        if other_scheme or not marks_entities(tag for example in found for tag in example.target):
            return found
        read = [replace(example, target=tuple(iob2(example.target))) for example in found]
        if changed := sum(a.target != b.target for a, b in zip(found, read, strict=True)):
            warn(
                f"{changed:,} of {len(found):,} sentences of {named} have tags in another scheme than IOB2, such as "
                "IOB1 or BIOES: they are read as IOB2, with the same entities",
            )
        return read

    def classes(self, example: Example) -> tuple[str, ...]:
        return tuple(sorted(set(example.target)))

    def learn(self, examples: Sequence[Example]) -> Self:
        counts = Counter(tag for example in examples for tag in example.target)
        labels = sorted(counts)
        if marks_entities(counts):
            kinds = sorted({tag[1:] for tag in counts if tag != OUTSIDE})
            labels = [OUTSIDE, *(mark + kind for kind in kinds for mark in "BI")]
        if len(labels) < 2:
            raise ValueError(f"all words have the tag {labels[0]!r}: give some with another, or other `columns`")
        usual_tag = OUTSIDE if OUTSIDE in labels else max(labels, key=counts.__getitem__)
        return replace(self, labels=tuple(labels), usual_tag=usual_tag)

    # The model

    def head(self, architecture: str) -> HeadConfig:
        return HeadConfig(kind="token", outputs=len(self.labels))

    def encode(self, examples: Sequence[Example], reader: TextReader) -> list[Encoded]:
        encoded = []
        pieces = reader.ids_of_each([example.inputs for example in examples])
        for origin, (example, words) in enumerate(zip(examples, pieces, strict=True)):
            targets = self._indices(example.target) if example.target else np.zeros(len(words), np.int64)
            encoded += word_windows(words, targets, origin, reader)
        return encoded

    # Results

    def results(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Result]:
        logs = self._log_probabilities(outputs, encoded, examples)
        every = np.concatenate(logs)
        read = ~np.isnan(every[:, 0])
        numbers = self._numbers(said := [self._said(one) for one in logs], examples)
        unread = int((~read).sum())
        numbers = replace(numbers, unread_words=unread, windows=len(encoded))
        if read.any():
            every, targets = every[read], self._indices(tag for one in examples for tag in one.target)[read]
            numbers = replace(
                numbers,
                tag_nats=float(-every[np.arange(len(targets)), targets].mean()),
                tag_calibration=calibration_error(np.exp(every.max(axis=1)), every.argmax(axis=1) == targets),
            )
        return [numbers, TypeScores(self._by_type(said, examples))]

    def baselines(
        self, training: Sequence[Example], examples: Sequence[Example], reader: TextReader
    ) -> dict[str, Result]:
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for example in training:
            for word, tag in zip(example.inputs, example.target, strict=True):
                counts[word.strip()][tag] += 1
        total = sum(counts.values(), Counter[str]())
        frequent = max(self.labels, key=total.__getitem__)
        of_word = {word: max(self.labels, key=tags.__getitem__) for word, tags in counts.items()}
        said = {
            "most frequent tag of each word": [
                [of_word.get(word.strip(), frequent) for word in one.inputs] for one in examples
            ],
            "most frequent tag": [[frequent] * len(one.inputs) for one in examples],
        }
        return {name: self._numbers(tags, examples) for name, tags in said.items()}

    def predictions(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[dict[str, Any]]:
        logs = self._log_probabilities(outputs, encoded, examples)
        return [self._fields(example, one) for example, one in zip(examples, logs, strict=True)]

    def as_text(self, example: Example, fields: dict[str, Any]) -> str:
        if not example.row.lines:
            raise ValueError(
                f"{example.row.place} has no lines of tagged words: give an `out` that ends in .jsonl or .parquet"
            )
        return with_tags(example.row, fields["prediction"], self._names(example.row)[1])

    def summary(self, example: Example, fields: dict[str, Any]) -> str:
        text = self._given(example.row)
        if isinstance(text, str) and marks_entities(self.labels):
            spans = [
                (one["start"], one["end"], one["label"]) if isinstance(one, dict) else one
                for one in fields["prediction"]
            ]
            found = ", ".join(
                f"{label} {' '.join(text[start:end].split())!r} {chance:.0%}"
                for (start, end, label), chance in zip(spans, fields["probability"], strict=True)
            )
            return f"{found or 'no entity'}: {' '.join(text.split())[:60]}"
        return " ".join(f"{word.strip()}/{tag}" for word, tag in zip(example.inputs, fields["prediction"], strict=True))

    def _fields(self, example: Example, logs: Array) -> dict[str, Any]:
        """Return the predicted fields of a row: spans of its text, or the tag of each word.

        `logs` (W, L): see `_log_probabilities`. The probability of a span is the product over its words, whose tags
        the model predicts independently.
        """
        text, tags = self._given(example.row), self._said(logs)
        words = words_of(text) if isinstance(text, str) else []
        if isinstance(text, str) and marks_entities(self.labels):
            found = entities(tags)
            spans = [(words[one.start][0], words[one.end - 1][1], one.kind) for one in found]
            objects = self._names(example.row)[1] == "spans"
            keys = ("start", "end", "label")
            chances = logs.max(axis=1)
            return {
                "prediction": [dict(zip(keys, span, strict=True)) if objects else list(span) for span in spans],
                "probability": [float(np.exp(chances[one.start : one.end].sum())) for one in found],
            }
        rows = [None if np.isnan(row[0]) else np.exp(row) for row in logs]
        return {
            **({"words": [text[start:end] for start, end in words]} if isinstance(text, str) else {}),
            "prediction": tags,
            "probability": [None if row is None else float(row.max()) for row in rows],
            "probabilities": [None if row is None else by_label(self.labels, row) for row in rows],
        }

    def _log_probabilities(
        self, outputs: Sequence[Array], encoded: Sequence[Encoded], examples: Sequence[Example]
    ) -> list[Array]:
        """Return ln p of the L tags of each example's W words, (W, L) float64; NaN for a word without a token."""
        found = [np.full((len(example.inputs), len(self.labels)), np.nan) for example in examples]
        for logits, one in zip(outputs, encoded, strict=True):
            assert one.places is not None
            here = one.places != ABSENT
            found[one.origin][one.places[here]] = log_softmax(logits[here])
        return found

    def _said(self, logs: Array) -> list[str]:
        """Return the likeliest tag of each word; `usual_tag`, or else the first, for a word without a token."""
        usual = self.usual_tag if self.usual_tag in self.labels else self.labels[0]  # imports may have no usual tag
        return [usual if np.isnan(row[0]) else self.labels[int(row.argmax())] for row in logs]

    def _numbers(self, said: Sequence[Sequence[str]], examples: Sequence[Example]) -> TagNumbers:
        targets, predicted = self._flat(said, examples)
        accuracy = float((targets == predicted).mean())
        low, high = share_interval(accuracy, len(targets))
        entity = entity_scores([one.target for one in examples], said)[0] if marks_entities(self.labels) else None
        return TagNumbers(
            entity_f1=entity.f1 if entity else None,
            entity_precision=entity.precision if entity else None,
            entity_recall=entity.recall if entity else None,
            tag_accuracy=accuracy,
            tag_accuracy_low=low,
            tag_accuracy_high=high,
            tag_macro_f1=macro_f1(targets, predicted, len(self.labels)),
            words=len(targets),
        )

    def _by_type(
        self, said: Sequence[Sequence[str]], examples: Sequence[Example]
    ) -> dict[str, tuple[float, float, float, int]]:
        """Return precision, recall, F1 and support of each entity type, or of each tag; the most frequent first."""
        if marks_entities(self.labels):
            scores = entity_scores([one.target for one in examples], said)[1]
        else:
            targets, predicted = self._flat(said, examples)
            scores = {
                label: EntityScores(
                    int((targets == place).sum()),
                    int((predicted == place).sum()),
                    int(((targets == place) & (predicted == place)).sum()),
                )
                for place, label in enumerate(self.labels)
            }
        order = sorted(scores, key=lambda name: -scores[name].gold)
        return {name: (one.precision, one.recall, one.f1, one.gold) for name in order if (one := scores[name]).gold}

    def _flat(self, said: Sequence[Sequence[str]], examples: Sequence[Example]) -> tuple[Array, Array]:
        """Return the gold and the predicted tag index of all words, (N,) int64 each."""
        gold = self._indices(tag for example in examples for tag in example.target)
        return gold, self._indices(tag for tags in said for tag in tags)

    def _indices(self, tags: Iterable[str]) -> Array:
        numbers = {label: place for place, label in enumerate(self.labels)}
        return np.array([numbers[tag] for tag in tags], np.int64)

    # Columns

    def _names(self, row: Row) -> tuple[str, str]:
        """Return the names of the columns of words and tags. CoNLL files have fixed names."""
        words, tags = self.names
        if not row.lines:
            return words, tags
        return "tokens", tags if tags in row.fields else "upos" if "upos" in row.fields else "tags"

    def _given(self, row: Row) -> list[Any] | str:
        given: list[Any] | str = row.value(self._names(row)[0], "a list of words, or a text", list, str)
        return given

    def _tags(self, row: Row, name: str, count: int) -> list[str]:
        tags = row.value(name, "a list of tags", list)
        if len(tags) != count:
            raise ValueError(f'{row.place} has {count:,} words, but {len(tags):,} tags in "{name}": give one for each')
        return [self._tag(tag, row, name) for tag in tags]

    def _tag(self, tag: Any, row: Row, name: str) -> str:
        if isinstance(tag, str) and tag:
            return tag
        if isinstance(tag, int) and not isinstance(tag, bool):
            if not self.tag_names:
                return str(tag)
            if 0 <= tag < len(self.tag_names):
                return self.tag_names[tag]
            known = f"has no number in {len(self.tag_names)} `tag_names`"
            raise ValueError(f'the tag {tag} in "{name}" in {row.place} {known}: name all tags, from 0')
        raise ValueError(f'"{name}" in {row.place} has {tag!r:.60}, not a tag: give texts or whole numbers')

    def _splits_word(self, example: Example) -> bool:
        text = self._given(example.row)
        if not isinstance(text, str):
            return False
        edges = words_of(text)
        return any(splits_word(span, edges) for span in spans_in(example.row, self._names(example.row)[1], text))


def _word(word: Any, name: str, row: Row) -> str:
    if not isinstance(word, str):
        raise ValueError(f'"{name}" in {row.place} has {word!r:.60}, not a word: give a list of texts')
    return row.encodable(word, name)


TASK = Tokens

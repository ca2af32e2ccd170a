"""Texts to the ids that a run reads in a task. Imports no torch.

| model           | one text            | two texts                           |
|-----------------|---------------------|-------------------------------------|
| encoder         | <|cls|> a <|sep|>   | <|cls|> a <|sep|> b <|sep|>         |
| decoder         | <|endoftext|> a     | <|endoftext|> a <|sep|> b           |
| encoder-decoder | a <|endoftext|>     | a <|endoftext|> b <|endoftext|>     |

The second text of an encoder has token type 1. A decoder without <|sep|> has <|endoftext|> between texts. The decoder
of an encoder-decoder reads its source too, shifted right (transformers' T5ForSequenceClassification). Imported models
read their own special tokens instead, RoBERTa two separators between texts. A model that was imported with the head of
a task reads the tokens that its tokenizer adds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from lm.config import ModelConfig
from pipelines.run.text_ids import TextIds
from pipelines.tasks.examples import Encoded
from pipelines.training.batch import Array
from pipelines.training.batch_objectives import require_special_tokens
from tokenizer import CLS, SEP, Tokenizer

Truncate = Literal["right", "left", "middle"]


@dataclass(frozen=True)
class TextReader:
    """Converts texts to ids. The spelling of a special token in a text is encoded as plain text."""

    tokenizer: Tokenizer
    around: TextIds
    model: ModelConfig
    model_type: str = ""
    """Format of an imported model, such as roberta"""
    truncate: Truncate = "right"
    """Where a text that is too long is cut"""

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without surrounding special tokens."""
        return self.tokenizer.encode_batch(texts, disallowed_special=())

    def ids_of_each(self, groups: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Return the ids of each text of each group, such as the two texts of each pair."""
        ids = iter(self.ids([text for group in groups for text in group]))
        return [[next(ids) for _ in group] for group in groups]

    def joined_ids(self, groups: Sequence[Sequence[str]]) -> list[Array]:
        """Return the ids of all texts of each group together, (N,) int64."""
        return [np.array([i for ids in group for i in ids], np.int64) for group in self.ids_of_each(groups)]

    @cached_property
    def edges(self) -> tuple[list[int], list[int], list[int]]:
        """The ids before the first text, between two texts, and after the last text."""
        around, special = self.around, self.around.special
        if around.edges is not None:
            return around.edges
        if self.model.architecture == "encoder":
            require_special_tokens("a task", (CLS, SEP), special)
            between = [special[SEP]] * (2 if self.model_type == "roberta" else 1)
            return [special[CLS]], between, [special[SEP]]
        before, after = list(around.before), list(around.after)
        if self.model.architecture == "decoder":
            separator = special.get(SEP)
            return before, [separator] if separator is not None else after[:1], []
        return before, after, after

    def room(self, texts: int = 1) -> int:
        """Return how many tokens of `texts` texts together fit in the context."""
        before, between, after = self.edges
        return self.model.context_length - len(before) - (texts - 1) * len(between) - len(after)

    def cut(self, ids: Sequence[int], room: int) -> Sequence[int]:
        """Return at most `room` ids. `truncate` decides which ids are cut."""
        if len(ids) <= room:
            return ids
        if self.truncate == "middle":
            head = room - room // 2
            return [*ids[:head], *ids[len(ids) - room // 2 :]]
        return ids[:room] if self.truncate == "right" else ids[len(ids) - room :]

    def join(self, texts: Sequence[Sequence[int]]) -> tuple[Array, Array, bool]:
        """Return the joined ids (T,), their token types (T,), and whether a text was cut.

        If the texts do not fit together, ids are cut from the longest text first.
        """
        before, between, after = self.edges
        room, lengths = self.room(len(texts)), [len(ids) for ids in texts]
        while sum(lengths) > room:
            longest = lengths.index(max(lengths))
            second = max([0, *(length for i, length in enumerate(lengths) if i != longest)])
            lengths[longest] -= min(sum(lengths) - room, max(1, lengths[longest] - second))
        kept = [self.cut(ids, length) for ids, length in zip(texts, lengths, strict=True)]
        joined, types = list(before), [0] * len(before)
        for number, ids in enumerate(kept):
            tail = after if number == len(kept) - 1 else between
            joined += [*ids, *tail]
            types += [min(number, 1)] * (len(ids) + len(tail))
        was_cut = any(len(ids) > len(part) for ids, part in zip(texts, kept, strict=True))
        return np.array(joined, np.int64), np.array(types, np.int64), was_cut

    def sequence(self, texts: Sequence[Sequence[int]], targets: Array, origin: int) -> Encoded:
        """Return the example of one or several texts of ids. `targets` belong to the texts as a whole."""
        joined, types, was_cut = self.join(texts)
        typed = types if self.model.token_types > 1 and self.model_type != "roberta" else None
        if self.model.architecture != "encoder-decoder":
            if not len(joined):  # an empty text of a decoder without a start token
                joined, typed = np.zeros(1, np.int64), None
            return Encoded(ids=joined, types=typed, targets=targets, origin=origin, cut=was_cut)
        start = 0 if self.around.start is None else self.around.start
        shifted = np.concatenate([[start], joined[:-1]]).astype(np.int64)
        return Encoded(ids=shifted, source=joined, targets=targets, origin=origin, cut=was_cut)

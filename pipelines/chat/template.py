"""The chat template of a run: converts conversations to ids, and marks the ids of answers."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipelines.chat.messages import Conversation, Message
from pipelines.chat.rendering import MARKS, render, render_apart
from pipelines.run.text_ids import TextIds
from pipelines.training.batch import Array
from tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Default template"""
MOST_TEMPLATE = 200_000
"""Maximum characters of a template"""
PROBE = (Message("user", "a"), Message("assistant", "b"))
SPELLED = re.compile(r"<\|[^\s|<>]+\|>")
"""Pattern of special tokens in a template"""
GENERATION = re.compile(r"{%-?\s*generation\s*-?%}")
NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Noncharacters, used as marks in texts that do not contain them"""

Token = tuple[int, tuple[int, int]]
"""An id, and the offsets of its text"""


@dataclass(frozen=True)
class Encoding:
    """A conversation of T tokens."""

    ids: Array
    """(T,) int64"""
    answers: Array
    """(T,) bool: True in answers of the assistant and the ends of its turns"""
    sizes: Array
    """(T,) int64: bytes of answer text in each token; 0 for special tokens"""


class _Rendered(NamedTuple):
    """The text of a conversation."""

    marked: str
    """The text, with `mark` inside each special token that is spelled in a message"""
    mark: str
    answers: list[tuple[int, int]]
    """The offsets of answers in the text without marks"""

    @property
    def text(self) -> str:
        return self.marked.replace(self.mark, "")


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, a tokenizer, and the spellings of special tokens by their names, such as eos_token."""

    text: str
    tokenizer: Tokenizer
    names: Mapping[str, str]

    @classmethod
    def of(cls, text: str, tok: Tokenizer, around: TextIds) -> "ChatTemplate":
        """Return the template of a run. `around`: the ids around a text. Raises ValueError if `text` is too long."""
        if len(text) > MOST_TEMPLATE:
            raise ValueError(f"the chat template has {len(text):,} characters, more than {MOST_TEMPLATE:,}: shorten it")
        spellings = {i: spelling for spelling, i in tok.special_tokens.items()}
        ids = {"bos_token": around.start, "eos_token": next(iter(around.stops), None), "pad_token": around.pad}
        return cls(text, tok, {name: spellings[i] for name, i in ids.items() if i in spellings})

    def special_tokens(self) -> list[str]:
        """Return the special tokens that the template writes, in order."""
        written = self._render(PROBE, True).text
        return list(dict.fromkeys(SPELLED.findall(self.text) + SPELLED.findall(written)))

    def end_of_turn(self) -> str:
        """Return the special token that ends an answer. Raises ValueError if there is none."""
        rendered = self._render(PROBE)
        found = [one for low, high in rendered.answers for one in self._special.findall(rendered.text[low:high])]
        if not found:
            raise ValueError(
                "the chat template ends answers with no special token: end them with {{ eos_token }} or a token such "
                "as <|im_end|>"
            )
        return str(found[-1])

    def prompt(self, messages: Conversation) -> list[int]:
        """Return the ids of `messages` up to the start of the answer. Raises ValueError if the template fails."""
        return [i for i, _ in self._tokens(self._render(messages, prompt=True))]

    def encode(self, messages: Conversation) -> Encoding:
        """Return the ids of a conversation, and a mask of answers. Raises ValueError if the template fails.

        The spelling of a special token in a message is plain text. A token may hold the end of the template's text
        and the start of an answer. Such a token belongs to the answer, as in `transformers`.
        """
        rendered = self._render(messages)
        tokens = self._tokens(rendered)
        ids = np.array([i for i, _ in tokens], np.int64)
        starts, ends = np.array([span for _, span in tokens], np.int64).reshape(-1, 2).T
        fresh = np.maximum(
            starts, np.concatenate(([0], np.maximum.accumulate(ends)[:-1]))
        )  # tokens may share a character
        ordinary = ~np.isin(ids, [*self.tokenizer.special_tokens.values()])
        offsets = _byte_offsets(rendered.text)
        inside, sizes = np.zeros(len(ids), bool), np.zeros(len(ids), np.int64)
        for low, high in rendered.answers:
            inside |= (starts < high) & (low < ends)
            read = offsets[np.clip(ends, low, high)] - offsets[np.clip(fresh, low, high)]
            sizes += ordinary * np.maximum(read, 0)
        return Encoding(ids, inside, sizes)

    @cached_property
    def _special(self) -> re.Pattern[str]:
        spellings = sorted(self.tokenizer.special_tokens, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, spellings)) or r"(?!)")

    def _render(self, messages: Conversation, prompt: bool = False) -> _Rendered:
        """Return the text of a conversation. `prompt`: end with the start of an answer."""
        contents = "".join(content for _, content in messages)
        unused = [mark for mark in NONCHARACTERS if mark not in contents and mark not in self.text]
        if len(unused) < 3:
            raise ValueError("a conversation has nearly all of the noncharacters U+FDD0 to U+FDEF: remove them")
        opening, closing, mark = unused[:3]
        variables = {
            **self.names,
            "messages": [{"role": role, "content": self._broken(text, mark)} for role, text in messages],
            "add_generation_prompt": prompt,
            "tools": None,
            "documents": None,
            MARKS: [opening, closing],
        }
        written = (render if self.text == CHATML else render_apart)(self.text, variables)
        if prompt or GENERATION.search(self.text):
            marked = written.replace(opening, "").replace(closing, "")
            return _Rendered(marked, mark, list(_enclosed(written.replace(mark, ""), opening, closing)))
        whole = written.replace(mark, "")
        return _Rendered(written, mark, list(self._answers(messages, whole)))

    def _answers(self, messages: Conversation, whole: str) -> Iterator[tuple[int, int]]:
        """Yield the offsets of answers in the text of a template without {% generation %}.

        An answer begins after the prompt of the preceding messages, and ends with its last special token.
        """
        for place in [place for place, message in enumerate(messages) if message.role == "assistant"]:
            before = self._render(messages[:place], prompt=True).text
            after = self._whole_text(messages[: place + 1])
            if not (whole.startswith(after) and after.startswith(before)):
                raise ValueError(
                    "the chat template writes earlier messages differently when others follow, so answers cannot "
                    "be found: enclose them in {% generation %} and {% endgeneration %}"
                )
            ends = [found.end() for found in self._special.finditer(after, len(before))]
            yield len(before), ends[-1] if ends else len(after)

    def _whole_text(self, messages: Conversation) -> str:
        """Return the text of a conversation without a prompt for a further answer."""
        variables = {**self.names, "messages": [message._asdict() for message in messages]}
        return render_apart(self.text, {**variables, "add_generation_prompt": False, "tools": None, "documents": None})

    def _broken(self, text: str, mark: str) -> str:
        """Return a text with `mark` inside each special token that it spells, or that the template could complete."""
        if not any(spelling[0] in text for spelling in self.tokenizer.special_tokens):
            return text
        places = set()
        for spelling in self.tokenizer.special_tokens:
            at = text.find(spelling)
            while at >= 0:
                places.add(at + 1)
                at = text.find(spelling, at + 1)
            places |= {len(text) - n + 1 for n in range(1, len(spelling)) if text.endswith(spelling[:n])}
        cuts = [0, *sorted(places), len(text)]
        return mark.join(text[start:end] for start, end in pairwise(cuts))

    def _tokens(self, rendered: _Rendered) -> list[Token]:
        """Return the tokens of a text. Only special tokens without a mark are special."""
        tok = self.tokenizer
        if rendered.mark not in rendered.marked:
            ids, spans = tok.encode_with_offsets(rendered.marked, allowed_special="all", disallowed_special=())
            return list(zip(ids, spans, strict=True))
        tokens: list[Token] = []
        at = 0
        for piece in re.split(f"({self._special.pattern})", rendered.marked):
            text = piece.replace(rendered.mark, "")
            if piece in tok.special_tokens:
                tokens.append((tok.special_tokens[piece], (at, at + len(text))))
            else:
                ids, spans = tok.encode_with_offsets(text, disallowed_special=())
                tokens += [(i, (at + low, at + high)) for i, (low, high) in zip(ids, spans, strict=True)]
            at += len(text)
        return tokens


def _enclosed(text: str, opening: str, closing: str) -> Iterator[tuple[int, int]]:
    """Yield the offsets of the parts between `opening` and `closing`, counted without these marks."""
    start = at = 0
    for part in re.split(f"([{opening}{closing}])", text):
        if part == opening:
            start = at
        elif part == closing:
            yield start, at
        else:
            at += len(part)


def _byte_offsets(text: str) -> Array:
    """Return the UTF-8 byte offset of each of N characters, and of the end: (N + 1,) int64."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    lengths = 1 + (codes >= 1 << 7) + (codes >= 1 << 11) + (codes >= 1 << 16)
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

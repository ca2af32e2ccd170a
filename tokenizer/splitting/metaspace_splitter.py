"""SentencePiece's words: text normalized, then cut before each `▁`, which stands for a space.

The steps are those of `tokenizers`: normalizers, WhitespaceSplit and Metaspace. Pretokens have a space for each `▁`,
which saves two bytes; they have no other spaces. This plain Python splits short texts and is the reference for the
kernel in `kernels/metaspace_words.py`.
"""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Iterator
from functools import cached_property

from tokenizer.splitting.normalizers import (
    MARK,
    REGEXES,
    SPACES_TO_MARKS,
    Normalizer,
    Precompiled,
    Prepend,
    Replace,
    normalize_by,
    normalizer_of,
)
from tokenizer.splitting.splitter import Splitter
from tokenizer.text import WHITE_SPACE, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np

    from tokenizer.document_blocks import Block

ALWAYS, FIRST, NEVER = "always", "first", "never"
# The first normalizes nothing; the others are in `splitting.nfkc`.
METASPACE_NAMES = ("metaspace", "nmt_nfkc", "nfkc")
KEPT = "keep-whitespace"  # words that keep all white space, for Unigram
RUNS = "runs"
RUNS_REGEX = f"{MARK}*[^{MARK}]+|{MARK}+"
"""What tokenizer.json splits by after Metaspace, so that a word may begin with several marks"""


class MetaspaceWords(namedtuple("_MetaspaceWords", ["normalizers", "whitespace_split", "prepend", "cuts"]), Splitter):
    """A splitter into normalized words, used in place of a `Pattern`. Its words, joined, are not the text.

    normalizers: steps, in order. whitespace_split: whether to cut at white space first, which is dropped.
    prepend: ALWAYS: `▁` goes before each of these parts; FIRST: before a part at the start of the text; NEVER.
    cuts: whether to cut before each `▁`; RUNS: only before the first one of a run. Each byte of invalid UTF-8 is read
    as U+FFFD.
    """

    normalizers: tuple[Normalizer, ...]
    prepend: str
    cuts: bool | str
    marks_spaces = True

    @property
    def name(self) -> str | None:
        """The name of the words without normalizers and of the words that keep all spaces, None for others."""
        return {PLAIN_WORDS: _NAME, SPACED_WORDS: SPACED, KEPT_WORDS: KEPT}.get(self)

    @cached_property
    def inside(self) -> MetaspaceWords:
        """The words of text that follows a special token: with FIRST, no mark goes before them."""
        return self._replace(prepend=NEVER) if self.prepend == FIRST else self

    @property
    def spelling(self) -> str:
        """The text that `metaspace_of` parses."""
        return self.name or f"{_NAME}:{json.dumps([[step.field for step in self.normalizers], *self[1:]])}"

    @property
    def prepends(self) -> bool:
        """Whether a mark goes before some part of the text."""
        return self.prepend != NEVER

    @property
    def begins_with_mark(self) -> bool:
        """Whether words at the start of a text begin with a mark that the text need not have."""
        return self.prepends or Prepend(MARK) in self.normalizers

    @property
    def keeps_characters(self) -> bool:
        """Whether only spaces change, and at most one mark is added."""
        steps = [step for step in self.normalizers if step != SPACES_TO_MARKS]
        return not self.whitespace_split and steps in ([], [Prepend(MARK)])

    @property
    def field(self) -> dict[str, object]:
        """The Metaspace step, pre-tokenizer or decoder, as tokenizer.json writes it."""
        return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": self.prepend, "split": self.cuts is True}

    def __str__(self) -> str:
        kinds = [type(step).__name__.lower() for step in self.normalizers]
        split = ["whitespace"] if self.whitespace_split else []
        how = {True: "", RUNS: ", runs", False: ", whole"}[self.cuts]
        metaspace = f"metaspace({self.prepend}{how})"
        return " + ".join([*kinds, *split, metaspace])

    @property
    def identity(self) -> str:
        """The text that fingerprints hash: all options and the digest of the table of grapheme clusters."""
        from tokenizer.splitting.graphemes import table_digest

        steps = json.dumps([step.field for step in self.normalizers], sort_keys=True)
        return f"metaspace {steps} {self.whitespace_split} {self.prepend} {self.cuts}\n{table_digest()}"

    @cached_property
    def splits_at_spaces(self) -> bool:
        """Whether a text can be cut between an ASCII letter and white space without changing its words."""
        steps = [step for step in self.normalizers if not self._is_harmless(step)]
        # A line feed that does not become a space would get a mark before it at the start of a part.
        spaces = all(self.normalize(f"a{c}a") == "a a" for c in " \n")
        splits = self.whitespace_split or (spaces and self.prepend == ALWAYS)
        return bool(self.cuts) and not steps and splits and all(map(self._splits_before, (b" ", b"\n", b"  ", b"\n\n")))

    def _splits_before(self, white: bytes) -> bool:
        """Return whether a word ends between a letter and this white space."""
        return [*self.pretokens(b"a" + white + b"a")] == [*self.pretokens(b"a"), *self.pretokens(white + b"a")]

    def _is_harmless(self, step: Normalizer) -> bool:
        """Return whether a word still ends between an ASCII letter and white space after this normalizer.

        No match may extend from the letter into the white space. If a match starts at the white space, its replacement
        must begin with white space or the mark.
        """
        if not isinstance(step, Replace):
            return isinstance(step, Precompiled)
        if step.find not in REGEXES and (step.is_regex or _WHITE_SPACE.search(step.find, 1)):
            return False
        replaces_break = step.find in REGEXES or _WHITE_SPACE.match(step.find) is not None
        return self.whitespace_split and (not replaces_break or _BREAK.match(step.content) is not None)

    def normalize(self, text: str) -> str:
        """Return the normalized text. Raises ValueError if replacements make it far longer."""
        return normalize_by(self.normalizers, text)

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the words of one text in order."""
        normalized = self.normalize(read_text(text))
        for part in _WHITE_SPACE.split(normalized) if self.whitespace_split else [normalized]:
            if not part:
                continue
            part = part.replace(" ", MARK)
            if self.prepends and not part.startswith(MARK):
                part = MARK + part
            for word in _CUTS[self.cuts].split(part) if self.cuts else [part]:
                if word:
                    yield word.replace(MARK, " ").encode()

    def rewrite(self, block: Block) -> tuple[Block, np.ndarray]:
        """Return the block of joined words, and the end of each word, int64. A kernel has the usual normalizers."""
        from tokenizer.splitting.metaspace_blocks import has_kernel, metaspace_block

        return metaspace_block(block, self) if has_kernel(self) else super().rewrite(block)


_NAME = "metaspace"
PLAIN_WORDS = MetaspaceWords((), True, ALWAYS, True)
# Llama 2's words: every space is kept, and one goes before the text.
SPACED = "llama2"
SPACED_WORDS = MetaspaceWords((Prepend(MARK),), False, NEVER, True)
KEPT_WORDS = MetaspaceWords((Prepend(MARK),), False, NEVER, RUNS)


def metaspace_of(spelling: str) -> MetaspaceWords | None:
    """Return the words with this name or `spelling`, None if it is that of another splitter.

    The names are `METASPACE_NAMES` and `SPACED`. Raises ValueError for a damaged spelling.
    """
    if spelling == _NAME:
        return PLAIN_WORDS
    if spelling == SPACED:
        return SPACED_WORDS
    if spelling == KEPT:
        return KEPT_WORDS
    if spelling in METASPACE_NAMES:
        from tokenizer.splitting.nfkc import named_map

        return PLAIN_WORDS._replace(normalizers=(Precompiled(named_map(spelling)),))
    if not spelling.startswith(f"{_NAME}:"):
        return None
    try:
        steps, whitespace_split, prepend, cuts = json.loads(spelling.removeprefix(f"{_NAME}:"))
        kept = RUNS if cuts == RUNS else bool(cuts)
        return MetaspaceWords(tuple(map(normalizer_of, steps)), bool(whitespace_split), str(prepend), kept)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{spelling[:80]!r} does not spell words of Metaspace: {error!r}") from None


_WHITE_SPACE = re.compile(f"[{WHITE_SPACE}]+")
_BREAK = re.compile(f"[{WHITE_SPACE}{MARK}]")
_CUTS = {True: re.compile(f"(?={MARK})"), RUNS: re.compile(f"(?<=[^{MARK}])(?={MARK})")}

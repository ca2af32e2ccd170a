"""Split patterns: the named ones as automata over code-point classes, any other as a regex.

A named pattern is a table `actions[state, class]` that one scanner (`scanning`) runs over the text. The
automaton reads one code point at a time; at every step it either takes the code point into the current
pretoken or ends the pretoken, at the current position or at a mark made earlier (which is how `\\s+(?!\\S)`
leaves the last space to the next word).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from tokenizer import unicode_classes

# Scanner classes. APOSTROPHE, SPACE and NEWLINE are told from their neighbours by name in the patterns.
LETTER, NUMBER, OTHER, APOSTROPHE, SPACE, BLANK, NEWLINE, END = range(8)
MULTIBYTE = 15  # in the table of first bytes: look the code point up

# An action: the low four bits are the next state; the others are flags.
MARK_BEFORE, MARK_AFTER, EMIT, EMIT_AT_MARK = 16, 32, 64, 128

# States. START is where a pretoken begins; 0 so that the scanner can reset cheaply.
(
    START,
    LETTERS,
    NUMBERS,
    NUMBERS_2,
    NUMBERS_3,
    OTHER_FIRST,
    OTHERS,
    OTHERS_NEWLINES,
    SPACE_FIRST,
    BLANK_FIRST,
    SPACES,
    SPACES_NEWLINE,
) = range(12)
STATES = 16  # rows of the table, a power of two


@dataclass(frozen=True, kw_only=True)
class Automaton:
    """What the scanner runs: `actions` (16 states, 8 classes), classes, and how contractions are read."""

    actions: np.ndarray  # uint8 (STATES * 8,)
    loops: np.ndarray  # uint8 (STATES,): the class in which a state stays and marks nothing, else 255
    byte_classes: np.ndarray  # uint8 (256,): class of each ASCII byte, MULTIBYTE from 0x80
    code_point_classes: np.ndarray  # uint8 (0x110000,)
    fold_contractions: bool  # 'S as well as 's, and the long s


@dataclass(frozen=True)
class Pattern:
    """A split pattern. `regex` is the canonical spelling, which goes into tokenizer.json and fingerprints."""

    regex: str
    name: str | None = None

    @cached_property
    def automaton(self) -> Automaton | None:
        """The scanner's tables, or None where only a regex engine will do."""
        return _named_automaton(self.name) if self.name else None

    @cached_property
    def identity(self) -> str:
        """What a fingerprint says of the pattern: its spelling, and the Unicode version it is read with."""
        return f"{self.regex}\n{unicode_classes.classes_digest()}" if self.name else self.regex

    def __str__(self) -> str:
        return self.name or self.regex


GPT2_REGEX = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# tiktoken's cl100k since 2024 takes white space at the very end of a text whole (`\s++$`), also across line
# ends; the spelling before that cut it after the last line end. Both are exact here, under two names. The
# first is spelled without possessive quantifiers because Oniguruma reads `{1,3}+` as a repetition.
CL100K_REGEX = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+(?![\s\S])|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K_2023_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

NAMES = {
    "gpt2": "gpt2",
    "r50k": "gpt2",
    "p50k": "gpt2",
    "cl100k": "cl100k",
    "cl100k-2023": "cl100k-2023",
}
_REGEX_OF = {"gpt2": GPT2_REGEX, "cl100k": CL100K_REGEX, "cl100k-2023": CL100K_2023_REGEX}

# Other spellings in use that split every text as the canonical one does.
_SPELLINGS = {regex: name for name, regex in _REGEX_OF.items()} | {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s": "gpt2",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s": "cl100k",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "cl100k-2023",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "cl100k-2023",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "cl100k-2023",
}


def resolve_pattern(pattern: str | Pattern) -> Pattern:
    """Return the pattern meant by a name (`gpt2`, `r50k`, `p50k`, `cl100k`) or by a regex in `regex` syntax.

    Any known spelling of a named pattern is that pattern. Raises ValueError for a regex that does not
    compile, or that is empty.
    """
    if isinstance(pattern, Pattern):
        return pattern
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"pattern must be a name ({', '.join(NAMES)}) or a regex, not {pattern!r}")
    name = NAMES.get(pattern) or _SPELLINGS.get(pattern)
    if name:
        return Pattern(_REGEX_OF[name], name)
    compile_regex(pattern)
    if pattern not in _warned:
        _warned.add(pattern)
        hint = f" (named patterns: {', '.join(NAMES)})" if pattern.isalnum() else ""
        warnings.warn(
            f"the split pattern {pattern!r} has no scanner of its own: "
            f"it runs through the regex module, exactly but slower{hint}",
            stacklevel=3,
        )
    return Pattern(pattern)


_warned: set[str] = set()


def compile_regex(pattern: str):
    """Compile with the `regex` module; ValueError where it does not."""
    import regex

    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"the split pattern {pattern!r} is not a valid regex: {error}") from None


def _automaton(rules: dict[int, dict[int, int]], *, newlines_matter: bool, fold: bool) -> Automaton:
    actions = np.full((STATES, 8), EMIT, dtype=np.uint8)
    loops = np.full(STATES, 255, dtype=np.uint8)
    for state, row in rules.items():
        for scanner_class, action in row.items():
            actions[state, scanner_class] = action
            if action == state:
                loops[state] = scanner_class
    table = np.full(unicode_classes.CODE_POINTS, OTHER, dtype=np.uint8)
    classes = unicode_classes.code_point_classes()
    table[np.isin(classes, unicode_classes.LETTERS)] = LETTER
    table[classes == unicode_classes.NUMBER] = NUMBER
    table[classes == unicode_classes.SPACE] = BLANK
    table[ord(" ")] = SPACE
    table[ord("'")] = APOSTROPHE
    if newlines_matter:
        table[[ord("\r"), ord("\n")]] = NEWLINE
    byte_classes = table[:256].copy()
    byte_classes[128:] = MULTIBYTE
    return Automaton(
        actions=actions.reshape(-1),
        loops=loops,
        byte_classes=byte_classes,
        code_point_classes=table,
        fold_contractions=fold,
    )


def _gpt2() -> Automaton:
    others = {OTHER: OTHERS, APOSTROPHE: OTHERS}
    spaces = {SPACE: SPACES | MARK_BEFORE, BLANK: SPACES | MARK_BEFORE}
    rules = {
        START: {LETTER: LETTERS, NUMBER: NUMBERS, SPACE: SPACE_FIRST, BLANK: BLANK_FIRST} | others,
        LETTERS: {LETTER: LETTERS},
        NUMBERS: {NUMBER: NUMBERS},
        OTHERS: {APOSTROPHE: OTHERS, OTHER: OTHERS},
        SPACE_FIRST: {LETTER: LETTERS, NUMBER: NUMBERS} | others | spaces,
        BLANK_FIRST: spaces,
        SPACES: dict.fromkeys((LETTER, NUMBER, OTHER, APOSTROPHE), EMIT_AT_MARK) | spaces,
    }
    return _automaton(rules, newlines_matter=False, fold=False)


def _cl100k(take_final_space_whole: bool) -> Automaton:
    others = {APOSTROPHE: OTHERS, OTHER: OTHERS}
    spaces = {
        SPACE: SPACES | MARK_BEFORE,
        BLANK: SPACES | MARK_BEFORE,
        NEWLINE: SPACES_NEWLINE | MARK_AFTER,
    }
    at_mark = dict.fromkeys((LETTER, NUMBER, OTHER, APOSTROPHE), EMIT_AT_MARK)
    rules = {
        START: {
            LETTER: LETTERS,
            NUMBER: NUMBERS,
            OTHER: OTHER_FIRST,
            APOSTROPHE: OTHER_FIRST,
            SPACE: SPACE_FIRST,
            BLANK: BLANK_FIRST,
            NEWLINE: SPACES_NEWLINE | MARK_AFTER,
        },
        LETTERS: {LETTER: LETTERS},
        NUMBERS: {NUMBER: NUMBERS_2},
        NUMBERS_2: {NUMBER: NUMBERS_3},
        OTHER_FIRST: {LETTER: LETTERS, NEWLINE: OTHERS_NEWLINES} | others,
        OTHERS: {NEWLINE: OTHERS_NEWLINES} | others,
        OTHERS_NEWLINES: {NEWLINE: OTHERS_NEWLINES},
        SPACE_FIRST: {LETTER: LETTERS} | others | spaces,
        BLANK_FIRST: {LETTER: LETTERS} | spaces,
        SPACES: at_mark | spaces,
        SPACES_NEWLINE: at_mark
        | {SPACE: SPACES_NEWLINE, BLANK: SPACES_NEWLINE, NEWLINE: SPACES_NEWLINE | MARK_AFTER}
        | ({} if take_final_space_whole else {END: EMIT_AT_MARK}),
    }
    return _automaton(rules, newlines_matter=True, fold=True)


@cache
def _named_automaton(name: str) -> Automaton:
    if name == "gpt2":
        return _gpt2()
    return _cl100k(take_final_space_whole=name == "cl100k")

"""Split patterns: the named ones as automata over code-point classes, any other as a regex.

A named pattern is a table `actions[state, class]` that one scanner runs over the text: `scanner.py` in plain Python,
`scan_kernel.py` in machine code. The automaton reads one code point at a time; at every step it either takes the code
point into the current pretoken or ends the pretoken, at the current position or at a mark made earlier (which is how
`\\s+(?!\\S)` leaves the last space to the next word). After a mark at most one stretch is read a second time, so any
text takes linear time. All of it is bytes and numbers: importing this module loads no numpy.
"""

from __future__ import annotations

import re
import warnings
from collections import namedtuple
from functools import cache, cached_property, lru_cache, partial

from tokenizer.splitting import unicode_classes

# Scanner classes. Each pattern tells apart only those that it names; END is the end of the text, or of its valid UTF-8.
(
    LETTER,
    UPPER,
    LOWER,
    CASELESS,
    COMBINING,
    NUMBER,
    OTHER,
    APOSTROPHE,
    SLASH,
    SPACE,
    BLANK,
    NEWLINE,
    END,
) = range(13)
CLASSES = 16  # columns of the table, a power of two
MULTIBYTE = 15  # in the table of first bytes: look the code point up

# An action below EMIT takes the code point: its low four bits are the next state, MARK_BEFORE and MARK_AFTER flags.
# The others end the pretoken: EMIT here, EMIT_BYTE after one byte that is no UTF-8, EMIT_AT_MARK at the mark.
# CONTRACTION stands for an apostrophe: the contraction that it begins ends the pretoken, or else it is read as OTHER.
MARK_BEFORE, MARK_AFTER, EMIT, EMIT_BYTE, EMIT_AT_MARK, CONTRACTION = 16, 32, 64, 65, 128, 192

# States. START is where a pretoken begins.
(
    START,
    LETTERS,
    UPPERS,
    CASELESS_LAST,
    UPPERS_AFTER_CASELESS,
    LOWERS,
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
) = range(16)
STATES = 16  # rows of the table

# The rules that `ascii_kernel` has.
ASCII_GPT2, ASCII_CL100K, ASCII_QWEN2, ASCII_O200K = range(4)


# Named tuples and no dataclasses: these take longer to import than a short text to encode.
_Tables = namedtuple("_Tables", ["actions", "loops", "byte_classes", "of_unicode", "fold_contractions", "ascii_rules"])


class Automaton(_Tables):
    """What the scanner runs, as plain bytes.

    actions: (STATES * CLASSES,), the action in a state on a class at state * CLASSES + class. loops: (STATES,), the
    first class in its rules on which a state stays and marks nothing, or 255. byte_classes: (256,), the class of each
    ASCII byte, MULTIBYTE from 0x80. of_unicode: (256,), the scanner class of each Unicode class. fold_contractions:
    'S as well as 's, and the long s. ascii_rules: which rules of `ascii_kernel` say the same of ASCII text.
    """

    @cached_property
    def code_point_classes(self) -> bytes:
        """(0x110000,): class of each code point. Surrogates, which stand for bytes that are no UTF-8, are END."""
        table = unicode_classes.code_point_classes().translate(self.of_unicode)
        return b"".join([self.byte_classes[:0x80], table[0x80:0xD800], bytes([END]) * 0x800, table[0xE000:]])


class Pattern(namedtuple("_Pattern", ["regex", "name"], defaults=[None])):
    """A split pattern. `regex` is the canonical spelling, which goes into tokenizer.json and fingerprints; `name` is
    that of the scanner, None where there is none."""

    @cached_property
    def automaton(self) -> Automaton | None:
        """The scanner's tables, or None where only a regex engine will do."""
        return _named_automaton(self.name) if self.name else None

    @cached_property
    def identity(self) -> str:
        """Return what a fingerprint says about the pattern.

        For a named pattern: its spelling and the digest of its class table. For a custom pattern: its spelling alone,
        so that datasets of earlier versions still match. Its meaning depends on the table of `unicode_properties`: if
        that table moves to another Unicode version, add its digest here.
        """
        return f"{self.regex}\n{unicode_classes.classes_digest()}" if self.name else self.regex

    def __str__(self) -> str:
        return self.name or self.regex


GPT2_REGEX = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# tiktoken's cl100k since 2024 takes white space at the very end of a text whole (`\s++$`), also across line
# ends; the spelling before that, which is Llama 3's to the letter, cuts it after the last line end. Both are exact
# here, under two names. The first is spelled without possessive quantifiers because Oniguruma reads `{1,3}+` as a
# repetition.
CL100K_REGEX = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+(?![\s\S])|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_REGEX = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

NAMES = {
    "gpt2": "gpt2",
    "r50k": "gpt2",
    "p50k": "gpt2",
    "cl100k": "cl100k",
    "cl100k-2023": "llama3",
    "o200k": "o200k",
    "llama3": "llama3",
    "qwen2": "qwen2",
}
_REGEX_OF = {
    "gpt2": GPT2_REGEX,
    "cl100k": CL100K_REGEX,
    "o200k": O200K_REGEX,
    "llama3": LLAMA3_REGEX,
    "qwen2": QWEN2_REGEX,
}

# Every spelling in use that is known to split any text as a named pattern does: the canonical ones, and others.
SPELLINGS = {regex: name for name, regex in _REGEX_OF.items()} | {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": "gpt2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s": "gpt2",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s": "cl100k",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "llama3",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "llama3",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "llama3",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "llama3",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+": "qwen2",
}


def resolve_pattern(pattern: str | Pattern) -> Pattern:
    """Return the pattern meant by a name (those in `NAMES`) or by a regex in `regex` syntax.

    Any known spelling of a named pattern is that pattern. In a custom regex, Unicode properties and case have
    the meaning that `tokenizers` gives them. Raises ValueError for a regex that is empty, not valid or too large, or
    that `regex_translation` refuses. The message names the cause.
    """
    if isinstance(pattern, Pattern):
        return pattern
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"pattern must be a name ({', '.join(NAMES)}) or a regex, not {pattern!r}")
    name = NAMES.get(pattern) or SPELLINGS.get(pattern)
    if name:
        return Pattern(_REGEX_OF[name], name)
    compile_regex(pattern)
    if pattern not in _warned:
        _warned.add(pattern)
        hint = f" (named patterns: {', '.join(NAMES)})" if pattern.isalnum() else ""
        warnings.warn(
            f"the split pattern {pattern[:80]!r} has no scanner of its own: "
            f"it runs through the regex module, exactly but slower{hint}",
            stacklevel=3,
        )
    return Pattern(pattern)


_warned: set[str] = set()


_POSSESSIVE_INTERVAL = re.compile(r"\{\d*,?\d*\}\+")
_SHORT_PROPERTY = re.compile(r"\\(?:([pP])([A-Za-z])|.)", re.DOTALL)


def refuse_misread_by_tokenizers(pattern: Pattern) -> None:
    """Raise ValueError for a custom pattern that tokenizer.json cannot hold because `tokenizers` reads it differently.

    {1,3}+ is possessive in tiktoken and here, and a repeated repetition in `tokenizers`, which takes \\pL for the
    letters pL.
    """
    if pattern.name:
        return
    outside = re.sub(r"\\.|\[(?:\\.|[^\\\]])*\]", "x", pattern.regex, flags=re.DOTALL)
    if found := _POSSESSIVE_INTERVAL.search(outside):
        raise ValueError(
            f"the split pattern {pattern.regex[:80]!r} has {found[0]!r}, which repeats a repetition in tokenizer.json "
            f"and gives nothing back elsewhere: write (?>x{found[0][:-1]}) for x{found[0]}"
        )
    for found in _SHORT_PROPERTY.finditer(pattern.regex):
        if found[1]:
            raise ValueError(
                f"the split pattern {pattern.regex[:80]!r} has {found[0]}, which is plain letters in tokenizer.json: "
                f"write \\{found[1]}{{{found[2]}}}"
            )


@lru_cache(maxsize=64)
def compile_regex(pattern: str):
    """Return the pattern compiled by the `regex` module, with the Unicode classes of `regex_translation`.

    Raises ValueError for a pattern that is not valid or that `regex_translation` refuses.
    """
    import regex

    from tokenizer.splitting.regex_translation import translate

    translated = translate(pattern)
    try:
        return regex.compile(translated)
    except regex.error as error:
        raise ValueError(f"the split pattern {pattern[:80]!r} is not a valid regex: {error.msg}") from None


Rules = dict[int, dict[int, int]]  # the action by state and class

# The scanner class of each Unicode class: of what has none of their properties, then Lu, Ll, Lt, Lm, Lo, M, N, \s.
_WITHOUT_CASE = bytes([OTHER, LETTER, LETTER, LETTER, LETTER, LETTER, OTHER, NUMBER, BLANK])
_WITH_CASE = bytes([OTHER, UPPER, LOWER, UPPER, CASELESS, CASELESS, COMBINING, NUMBER, BLANK])


def _automaton(
    rules: Rules, *, of_unicode: bytes, of_characters: dict[str, int], fold: bool, ascii_rules: int
) -> Automaton:
    """A state that has no rule for a class ends the pretoken there."""
    actions = bytearray([EMIT] * (STATES * CLASSES))
    loops = bytearray([255] * STATES)
    actions[START * CLASSES + END] = EMIT_BYTE
    for state, row in rules.items():
        for scanner_class, action in row.items():
            actions[state * CLASSES + scanner_class] = action
            if action == state and loops[state] == 255:
                loops[state] = scanner_class
    of_unicode = of_unicode.ljust(256, b"\0")
    byte_classes = bytearray([MULTIBYTE] * 256)
    byte_classes[:0x80] = unicode_classes.code_point_classes()[:0x80].translate(of_unicode)
    for characters, scanner_class in of_characters.items():
        for character in characters:
            byte_classes[ord(character)] = scanner_class
    return Automaton(
        actions=bytes(actions),
        loops=bytes(loops),
        byte_classes=bytes(byte_classes),
        of_unicode=of_unicode,
        fold_contractions=fold,
        ascii_rules=ascii_rules,
    )


def _together(*parts: Rules) -> Rules:
    rules: Rules = {}
    for part in parts:
        for state, row in part.items():
            rules[state] = rules.get(state, {}) | row
    return rules


def _gpt2() -> Automaton:
    others = {OTHER: OTHERS, APOSTROPHE: OTHERS}
    spaces = {SPACE: SPACES | MARK_BEFORE, BLANK: SPACES | MARK_BEFORE}
    rules = {
        START: {LETTER: LETTERS, NUMBER: NUMBERS, OTHER: OTHERS, APOSTROPHE: CONTRACTION}
        | {SPACE: SPACE_FIRST, BLANK: BLANK_FIRST},
        LETTERS: {LETTER: LETTERS},
        NUMBERS: {NUMBER: NUMBERS},
        OTHERS: others,
        SPACE_FIRST: {LETTER: LETTERS, NUMBER: NUMBERS} | others | spaces,
        BLANK_FIRST: spaces,
        SPACES: dict.fromkeys(range(END), EMIT_AT_MARK) | spaces,
    }
    return _automaton(
        rules,
        of_unicode=_WITHOUT_CASE,
        of_characters={" ": SPACE, "'": APOSTROPHE},
        fold=False,
        ascii_rules=ASCII_GPT2,
    )


def _white_space_rules(final_space_whole: bool = False) -> Rules:
    """`\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`, with `\\s+(?![\\s\\S])` before them where the final space is taken whole."""
    at_mark = dict.fromkeys(range(END), EMIT_AT_MARK)
    spaces = {
        SPACE: SPACES | MARK_BEFORE,
        BLANK: SPACES | MARK_BEFORE,
        NEWLINE: SPACES_NEWLINE | MARK_AFTER,
    }
    return {
        START: {SPACE: SPACE_FIRST, BLANK: BLANK_FIRST, NEWLINE: SPACES_NEWLINE | MARK_AFTER},
        SPACE_FIRST: spaces,
        BLANK_FIRST: spaces,
        SPACES: at_mark | spaces,
        SPACES_NEWLINE: at_mark
        | {SPACE: SPACES_NEWLINE, BLANK: SPACES_NEWLINE, NEWLINE: SPACES_NEWLINE | MARK_AFTER}
        | ({} if final_space_whole else {END: EMIT_AT_MARK}),
    }


_UP_TO_THREE_DIGITS = {NUMBERS: {NUMBER: NUMBERS_2}, NUMBERS_2: {NUMBER: NUMBERS_3}}


def _cl100k(
    *, numbers: Rules = _UP_TO_THREE_DIGITS, final_space_whole: bool = False, ascii_rules: int = ASCII_CL100K
) -> Automaton:
    """cl100k, Llama 3 and Qwen 2, which differ in how many digits go together and in white space at the end."""
    others = {OTHER: OTHERS, APOSTROPHE: OTHERS}
    rules = {
        START: {LETTER: LETTERS, NUMBER: NUMBERS, OTHER: OTHER_FIRST, APOSTROPHE: CONTRACTION},
        LETTERS: {LETTER: LETTERS},
        OTHER_FIRST: {LETTER: LETTERS, NEWLINE: OTHERS_NEWLINES} | others,
        OTHERS: {NEWLINE: OTHERS_NEWLINES} | others,
        OTHERS_NEWLINES: {NEWLINE: OTHERS_NEWLINES},
        SPACE_FIRST: {LETTER: LETTERS} | others,
        BLANK_FIRST: {LETTER: LETTERS},
    }
    return _automaton(
        _together(rules, numbers, _white_space_rules(final_space_whole)),
        of_unicode=_WITHOUT_CASE,
        of_characters={" ": SPACE, "'": APOSTROPHE, "\r\n": NEWLINE},
        fold=True,
        ascii_rules=ascii_rules,
    )


def _o200k() -> Automaton:
    """o200k, whose words split on case.

    Combining marks are caseless. Of a run of upper-case and caseless code points, `[upper caseless]*[lower caseless]+`
    takes all where a lower-case one follows, and else up to the last caseless one: that is where the mark is. A run of
    upper case alone is left to `[upper caseless]+[lower caseless]*`. Either may begin with one code point that is no
    letter; a combining mark there is as well the first of the run.
    """
    word = {UPPER: UPPERS, LOWER: LOWERS} | dict.fromkeys((CASELESS, COMBINING), CASELESS_LAST | MARK_AFTER)
    others = {OTHER: OTHERS, APOSTROPHE: OTHERS, SLASH: OTHERS}
    rules = {
        START: word | {NUMBER: NUMBERS} | dict.fromkeys((OTHER, APOSTROPHE, SLASH), OTHER_FIRST),
        UPPERS: word | {APOSTROPHE: CONTRACTION},
        CASELESS_LAST: word | {UPPER: UPPERS_AFTER_CASELESS, APOSTROPHE: CONTRACTION},
        UPPERS_AFTER_CASELESS: dict.fromkeys(range(END + 1), EMIT_AT_MARK) | word | {UPPER: UPPERS_AFTER_CASELESS},
        LOWERS: {LOWER: LOWERS, CASELESS: LOWERS, COMBINING: LOWERS, APOSTROPHE: CONTRACTION},
        OTHER_FIRST: word | {NEWLINE: OTHERS_NEWLINES} | others,
        OTHERS: others | {COMBINING: OTHERS, NEWLINE: OTHERS_NEWLINES},
        OTHERS_NEWLINES: {NEWLINE: OTHERS_NEWLINES, SLASH: OTHERS_NEWLINES},
        SPACE_FIRST: word | others,
        BLANK_FIRST: word,
    }
    return _automaton(
        _together(rules, _UP_TO_THREE_DIGITS, _white_space_rules()),
        of_unicode=_WITH_CASE,
        of_characters={" ": SPACE, "'": APOSTROPHE, "/": SLASH, "\r\n": NEWLINE},
        fold=True,
        ascii_rules=ASCII_O200K,
    )


_AUTOMATA = {
    "gpt2": _gpt2,
    "cl100k": partial(_cl100k, final_space_whole=True),
    "o200k": _o200k,
    "llama3": _cl100k,
    "qwen2": partial(_cl100k, numbers={}, ascii_rules=ASCII_QWEN2),
}


@cache
def _named_automaton(name: str) -> Automaton:
    return _AUTOMATA[name]()

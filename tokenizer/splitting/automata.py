"""The automata of the named split patterns, over classes of code points.

An automaton is a table `actions[state, class]`. One scanner runs it over a text: `scanner.py` in plain Python,
`kernels/scan.py` in machine code. The scanner reads one code point at a time. It either takes the code point into the
current pretoken or ends the pretoken, at the current position or at an earlier mark. Marks let `\\s+(?!\\S)` leave the
last space to the next word. After a mark the scanner rereads at most one stretch, so any text takes linear time.

All tables are bytes and numbers: importing this module loads no numpy.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import cache, cached_property, partial

from tokenizer.splitting import unicode_classes

# Scanner classes. A pattern uses only the classes that it names. END is the end of the text or of its valid UTF-8.
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
MULTIBYTE = 15  # in `byte_classes`: look the code point up in `code_point_classes`

# An action below EMIT takes the code point. Its low four bits are the next state; MARK_BEFORE and MARK_AFTER are flags.
# The other actions end the pretoken: EMIT here, EMIT_BYTE after one byte of invalid UTF-8, EMIT_AT_MARK at the mark.
# CONTRACTION handles an apostrophe. If a contraction starts there, it ends the pretoken. Otherwise the class is OTHER.
MARK_BEFORE, MARK_AFTER, EMIT, EMIT_BYTE, EMIT_AT_MARK, CONTRACTION = 16, 32, 64, 65, 128, 192

# States. Every pretoken begins in START.
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

# The rule sets of `kernels/ascii.py`.
ASCII_GPT2, ASCII_CL100K, ASCII_QWEN2, ASCII_O200K = range(4)


# A named tuple, because importing `dataclasses` takes longer than encoding a short text.
_Tables = namedtuple("_Tables", ["actions", "loops", "byte_classes", "of_unicode", "fold_contractions", "ascii_rules"])


class Automaton(_Tables):
    """The tables that the scanner runs, as plain bytes.

    actions: (STATES * CLASSES,), the action for (state, class) at state * CLASSES + class.
    loops: (STATES,), the first class in a state's rules that keeps the state and sets no mark, or 255.
    byte_classes: (256,), the class of each ASCII byte, and MULTIBYTE from 0x80.
    of_unicode: (256,), the scanner class of each Unicode class.
    fold_contractions: whether contractions ignore case ('S like 's) and accept the long s.
    ascii_rules: the rule set of `kernels/ascii.py` that splits ASCII text in the same way.
    """

    @cached_property
    def code_point_classes(self) -> bytes:
        """Return the class of each code point, (0x110000,). Surrogates, which encode invalid UTF-8, are END."""
        table = unicode_classes.code_point_classes().translate(self.of_unicode)
        return b"".join([self.byte_classes[:0x80], table[0x80:0xD800], bytes([END]) * 0x800, table[0xE000:]])


Rules = dict[int, dict[int, int]]  # state -> class -> action

# The scanner class of each Unicode class, in this order: no listed property, Lu, Ll, Lt, Lm, Lo, M, N, \s.
_WITHOUT_CASE = bytes([OTHER, LETTER, LETTER, LETTER, LETTER, LETTER, OTHER, NUMBER, BLANK])
_WITH_CASE = bytes([OTHER, UPPER, LOWER, UPPER, CASELESS, CASELESS, COMBINING, NUMBER, BLANK])


def _automaton(
    rules: Rules, *, of_unicode: bytes, of_characters: dict[str, int], fold: bool, ascii_rules: int
) -> Automaton:
    """Return the automaton for these rules. A state without a rule for a class ends the pretoken there."""
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


def _merged(*parts: Rules) -> Rules:
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


def _white_space_rules(keep_final_space: bool = False) -> Rules:
    """Return the rules of `\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`.

    keep_final_space: put `\\s+(?![\\s\\S])` first, so that white space at the end of the text is one pretoken.
    """
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
        | ({} if keep_final_space else {END: EMIT_AT_MARK}),
    }


_UP_TO_THREE_DIGITS = {NUMBERS: {NUMBER: NUMBERS_2}, NUMBERS_2: {NUMBER: NUMBERS_3}}


def _cl100k(
    *, numbers: Rules = _UP_TO_THREE_DIGITS, keep_final_space: bool = False, ascii_rules: int = ASCII_CL100K
) -> Automaton:
    """Return the automaton of cl100k, Llama 3 or Qwen 2.

    They differ in how many digits they group, and in white space at the end of the text.
    """
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
        _merged(rules, numbers, _white_space_rules(keep_final_space)),
        of_unicode=_WITHOUT_CASE,
        of_characters={" ": SPACE, "'": APOSTROPHE, "\r\n": NEWLINE},
        fold=True,
        ascii_rules=ascii_rules,
    )


def _o200k() -> Automaton:
    """Return the automaton of o200k, which splits words on case.

    Combining marks are caseless. `[upper caseless]*[lower caseless]+` takes a whole run of upper-case and caseless code
    points if a lower-case one follows. Otherwise it takes the run up to the last caseless one, where the mark is set.
    A run of upper case alone matches `[upper caseless]+[lower caseless]*`. Both may begin with one code point that is
    no letter. A combining mark in that place is also the first code point of the run.
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
        _merged(rules, _UP_TO_THREE_DIGITS, _white_space_rules()),
        of_unicode=_WITH_CASE,
        of_characters={" ": SPACE, "'": APOSTROPHE, "/": SLASH, "\r\n": NEWLINE},
        fold=True,
        ascii_rules=ASCII_O200K,
    )


_AUTOMATA: dict[str, Callable[[], Automaton]] = {
    "gpt2": _gpt2,
    "cl100k": partial(_cl100k, keep_final_space=True),
    "o200k": _o200k,
    "llama3": _cl100k,
    "qwen2": partial(_cl100k, numbers={}, ascii_rules=ASCII_QWEN2),
}


@cache
def named_automaton(name: str) -> Automaton:
    """Return the automaton of a named pattern, such as "gpt2"."""
    return _AUTOMATA[name]()

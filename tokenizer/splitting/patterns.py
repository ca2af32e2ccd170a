"""Split patterns: the named ones with their regexes, and custom regexes.

A pattern runs through the automaton that is made from its regex (`automata.py`). The few regexes without an automaton
run through the `regex` module.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from functools import cached_property, lru_cache

from tokenizer.splitting import unicode_classes
from tokenizer.splitting.automata import (
    ASCII_CL100K,
    ASCII_GPT2,
    ASCII_O200K,
    ASCII_QWEN2,
    NO_ASCII_RULES,
    Automaton,
    store_automata,
    stored_automata,
)
from tokenizer.splitting.splitter import Splitter
from tokenizer.warn import warn


class Pattern(namedtuple("_Pattern", ["regex", "name"], defaults=[None]), Splitter):
    """A split pattern.

    regex: the canonical spelling, as written to tokenizer.json and hashed by fingerprints.
    name: the name in `NAMES`, or None for a custom pattern.
    """

    rewrites = False

    def __reduce__(self) -> tuple[type[Pattern], tuple[str, str | None]]:
        return Pattern, (self.regex, self.name)  # without the automaton, which every process has or makes

    @property
    def splits_at_spaces(self) -> bool:
        """Return whether a pretoken always ends before a space or line feed that follows an ASCII letter or digit."""
        return self.automaton is not None and bool(self.automaton.splits_at_spaces)

    @property
    def spelling(self) -> str:
        """Return the regex, from which `resolve_pattern` makes this pattern again."""
        return str(self.regex)

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the pretokens of one text in order. Joined, they give the text."""
        from tokenizer.splitting import scanner

        if self.automaton is None:
            return scanner.regex_pretokens(text, self.regex)
        return scanner.pretokens(text, self.automaton)

    @cached_property
    def automaton(self) -> Automaton | None:
        """Return the scanner's tables, or None if only the `regex` module can run the regex."""
        return automaton_of(self.regex)

    @property
    def ascii_rules(self) -> int:
        """Return the rule set of `kernels/ascii.py` that splits ASCII text in the same way, or NO_ASCII_RULES."""
        return _ASCII_RULES.get(self.name, NO_ASCII_RULES)

    @cached_property
    def identity(self) -> str:
        """Return the text that fingerprints hash.

        A named pattern gives its regex and the digest of its class table. A custom pattern gives its regex alone. Its
        meaning depends on the table of `unicode_properties`. If that table moves to another Unicode version, add its
        digest here.
        """
        return f"{self.regex}\n{unicode_classes.classes_digest()}" if self.name else str(self.regex)

    def __str__(self) -> str:
        return str(self.name or self.regex)


GPT2_REGEX = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Since 2024, tiktoken's cl100k keeps white space at the end of a text in one pretoken (`\s++$`), even across line
# ends. The older regex, which Llama 3 uses unchanged, cuts it after the last line end. Both are exact here: cl100k and
# llama3. CL100K_REGEX has no possessive quantifiers, because Oniguruma reads `{1,3}+` as a repetition.
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
# No named pattern: the words that CLIP keeps. White space between them is dropped.
CLIP_REGEX = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
# Of SuperBPE's published models: numbers, cut into groups of three digits from the right (Liu et al. 2025).
SUPERWORD_REGEXES = (r"\p{N}+", r"(?=(\d{3})+(?!\d))")
SUPERWORD_STEPS: tuple[dict[str, object], ...] = (
    *(
        {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": regex}}
        for regex in SUPERWORD_REGEXES
    ),
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
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

# Patterns with a fast path in `kernels/ascii.py`.
_ASCII_RULES = {
    "gpt2": ASCII_GPT2,
    "cl100k": ASCII_CL100K,
    "o200k": ASCII_O200K,
    "llama3": ASCII_CL100K,
    "qwen2": ASCII_QWEN2,
}

# Regexes that split every text as a named pattern does: the canonical ones and other spellings in use.
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
    """Return the pattern for a name in `NAMES` or for a regex, as `pattern_of`; warn once if it runs slower."""
    found = pattern_of(pattern)
    if found is not pattern:
        warn_if_slow(found)
    return found


def pattern_of(pattern: str | Pattern) -> Pattern:
    """Return the pattern for a name in `NAMES` or for a regex in `regex` syntax.

    A regex in `SPELLINGS` gives the named pattern. The Unicode properties and case of a regex mean what they mean in
    `tokenizers`. Raises ValueError, which names the cause, for a regex that is empty, invalid or too large, or that
    `regex_parsing` refuses.
    """
    if isinstance(pattern, Pattern):
        return pattern
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"pattern must be a name ({', '.join(NAMES)}) or a regex, not {pattern!r}")
    name = NAMES.get(pattern) or SPELLINGS.get(pattern)
    if name:
        return Pattern(_REGEX_OF[name], name)
    if automaton_of(pattern) is None:
        from tokenizer.splitting.regex_translation import compile_regex

        compile_regex(pattern)
    return Pattern(pattern)


def warn_if_slow(pattern: Pattern) -> None:
    """Warn once about a pattern without an automaton, which the `regex` module runs."""
    regex = pattern.regex
    if pattern.automaton is None and regex not in _warned:
        _warned.add(regex)
        hint = f" (named patterns: {', '.join(NAMES)})" if regex.isalnum() else ""
        warn(
            f"the split pattern {regex[:80]!r} is not a named pattern: "
            f"it runs through the regex module, exactly but slower{hint}"
        )


_warned: set[str] = set()


@lru_cache(maxsize=64)
def automaton_of(regex: str) -> Automaton | None:
    """Return the automaton of a regex, or None if only the `regex` module can run it.

    Raises ValueError for a pattern that `regex_parsing` refuses.
    """
    if stored := stored_automata().get(regex):
        return stored
    from tokenizer.splitting.regex_compilation import compile_automaton

    return compile_automaton(regex)


def _store_named_automata() -> None:
    from tokenizer.splitting.regex_compilation import compile_automaton

    compiled = {regex: compile_automaton(regex) for regex in _REGEX_OF.values()}
    store_automata({regex: automaton for regex, automaton in compiled.items() if automaton})


if __name__ == "__main__":
    _store_named_automata()

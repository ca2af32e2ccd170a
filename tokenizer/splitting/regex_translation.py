"""Translation of custom split patterns, so that the `regex` module reads them as `tokenizers` does.

The `regex` module uses another Unicode version, so properties become explicit sets from `unicode_properties`.
"""

from __future__ import annotations

from functools import cache, lru_cache

from tokenizer.splitting.regex_parsing import Group, Node, Part, Repeat, parse, spell
from tokenizer.splitting.unicode_properties import Ranges, complement, find_property, intersection

TYPE_CHECKING = False
if TYPE_CHECKING:
    import regex

_FEW_RANGES = 16  # a set with at most this many ranges is written out


def translate(pattern: str) -> str:
    """Return the pattern in the syntax of `regex`, independent of that module's Unicode tables.

    Raises ValueError as `parse` does.
    """
    return "(?V1)" + _alternatives(parse(pattern))


def _alternatives(group: Group) -> str:
    return "|".join("".join(map(_spell, branch)) for branch in group.branches)


def _spell(node: Node) -> str:
    if isinstance(node, Repeat):
        return _spell(node.body) + node.text
    if isinstance(node, Group):
        return f"{node.opening}{_alternatives(node)})"
    return "".join(map(_text, node.parts))


def _text(part: Part) -> str:
    return part if isinstance(part, str) else _set_text(*part)


@cache
def _set_text(name: str, in_class: bool) -> str:
    """Return the text of a known property inside a set of `regex`.

    Matching a set of hundreds of ranges is slow. So a large property uses the property of the installed `regex`, and
    adds or removes the few ranges that differ. ASCII members come first, because `regex` tests them fastest.
    """
    import regex

    ranges = find_property(name, in_class)
    assert ranges is not None
    native = name if name[0] in "\\[" else rf"\p{{{name}}}"
    try:
        expression = regex.compile(f"[{native}]+")
    except regex.error:
        return spell(ranges)
    found = _match(expression) if len(ranges) > _FEW_RANGES else ()
    extra, missing = intersection(found, complement(ranges)), intersection(ranges, complement(found))
    if len(ranges) <= _FEW_RANGES or len(extra) + len(missing) >= len(ranges):
        return spell(ranges)
    ascii_members = spell(intersection(ranges, ((0, 0x7F),)))
    return ascii_members + (f"[{native}--[{spell(extra)}]]" if extra else native) + spell(missing)


def _match(expression: regex.Pattern[str]) -> Ranges:
    """Return the code points that match a compiled, repeated set."""
    spans = ((match.start(), match.end() - 1) for match in expression.finditer(_every_character()))
    return tuple((first + 0x800 * (first >= 0xD800), last + 0x800 * (last >= 0xD800)) for first, last in spans)


@cache
def _every_character() -> str:
    return "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))


@lru_cache(maxsize=64)
def compile_regex(pattern: str) -> regex.Pattern[str]:
    """Return the `regex.Pattern` of a custom pattern, with the Unicode classes of this module.

    Raises ValueError for a pattern that is not valid or that `regex_parsing` refuses.
    """
    import regex

    translated = translate(pattern)
    try:
        return regex.compile(translated)
    except regex.error as error:
        raise ValueError(f"the split pattern {pattern[:80]!r} is not a valid regex: {error.msg}") from None

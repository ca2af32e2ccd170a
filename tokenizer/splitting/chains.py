"""Pre-tokenizers of several steps, as tokenizer.json lists them: each step splits the pieces of the step before.

The steps are those of Hugging Face's tokenizers. They run in plain Python and in the `regex` module. Over blocks, the
scanner of named patterns runs chains of Splits, Digits and Punctuation, with ByteLevel at the end
(`chain_blocks.py`). The other chains are slower.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import pairwise

from tokenizer.byte_level import spell, unspell
from tokenizer.splitting import unicode_classes
from tokenizer.splitting.automata import Automaton
from tokenizer.splitting.patterns import GPT2_REGEX, SUPERWORD_STEPS, pattern_of, warn_if_slow
from tokenizer.splitting.scanner import match_spans, pretokens, split_by_regex, utf8_stretches
from tokenizer.splitting.splitter import Splitter
from tokenizer.text import WHITE_SPACE, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np

    from tokenizer.document_blocks import Block
    from tokenizer.splitting.chain_blocks import Scan

    # A step turns a piece of text into smaller ones. Some of these may be empty.
    Step = Callable[[str], list[str]]

WHITESPACE = ({"type": "Whitespace"},)
"""The steps that split into words, for vocabularies of words"""
BEHAVIORS = ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", "Removed")

LONGEST_CACHED = 32  # characters
MOST_CACHED = 1 << 17  # pieces
# Numbers that are missing in the table of `unicode_classes`. Digits uses Rust's newer table, which has them.
_NEW_NUMBERS = "11DE0-11DE9 16FF4-16FF6"
# The characters that Punctuation splits off: ASCII punctuation and symbols, and the punctuation of Unicode 8.
_PUNCTUATION = (
    "21-2F 3A-40 5B-60 7B-7E A1 A7 AB B6-B7 BB BF 37E 387 55A-55F 589-58A 5BE 5C0 5C3 5C6 5F3-5F4 609-60A 60C-60D 61B "
    "61E-61F 66A-66D 6D4 700-70D 7F7-7F9 830-83E 85E 964-965 970 AF0 DF4 E4F E5A-E5B F04-F12 F14 F3A-F3D F85 FD0-FD4 "
    "FD9-FDA 104A-104F 10FB 1360-1368 1400 166D-166E 169B-169C 16EB-16ED 1735-1736 17D4-17D6 17D8-17DA 1800-180A "
    "1944-1945 1A1E-1A1F 1AA0-1AA6 1AA8-1AAD 1B5A-1B60 1BFC-1BFF 1C3B-1C3F 1C7E-1C7F 1CC0-1CC7 1CD3 2010-2027 "
    "2030-2043 2045-2051 2053-205E 207D-207E 208D-208E 2308-230B 2329-232A 2768-2775 27C5-27C6 27E6-27EF 2983-2998 "
    "29D8-29DB 29FC-29FD 2CF9-2CFC 2CFE-2CFF 2D70 2E00-2E2E 2E30-2E42 3001-3003 3008-3011 3014-301F 3030 303D 30A0 "
    "30FB A4FE-A4FF A60D-A60F A673 A67E A6F2-A6F7 A874-A877 A8CE-A8CF A8F8-A8FA A8FC A92E-A92F A95F A9C1-A9CD "
    "A9DE-A9DF AA5C-AA5F AADE-AADF AAF0-AAF1 ABEB FD3E-FD3F FE10-FE19 FE30-FE52 FE54-FE61 FE63 FE68 FE6A-FE6B "
    "FF01-FF03 FF05-FF0A FF0C-FF0F FF1A-FF1B FF1F-FF20 FF3B-FF3D FF3F FF5B FF5D FF5F-FF65 10100-10102 1039F 103D0 "
    "1056F 10857 1091F 1093F 10A50-10A58 10A7F 10AF0-10AF6 10B39-10B3F 10B99-10B9C 11047-1104D 110BB-110BC "
    "110BE-110C1 11140-11143 11174-11175 111C5-111C9 111CD 111DB 111DD-111DF 11238-1123D 112A9 114C6 115C1-115D7 "
    "11641-11643 1173C-1173E 12470-12474 16A6E-16A6F 16AF5 16B37-16B3B 16B44 1BC9F 1DA87-1DA8B"
)


class Chain(Splitter):
    """A pre-tokenizer of several steps, in place of a `Pattern`. It has neither a name nor an automaton.

    steps: checked steps in the form of tokenizer.json. Steps after ByteLevel read text in its alphabet.
    as_bytes: whether pretokens are the bytes that this alphabet spells, for byte-level BPE. Otherwise they are UTF-8,
    with U+FFFD for each invalid byte.
    """

    def __init__(self, steps: Sequence[dict[str, Any]], *, as_bytes: bool = True):
        self.steps = tuple(steps)
        self.as_bytes = as_bytes
        kinds = {step["type"] for step in steps}
        # ByteLevel can put a space before a piece, so that pretokens have more bytes than the text. Without ByteLevel,
        # the normalizer has spelled the text in its alphabet.
        self.rewrites = (
            not (as_bytes and {"ByteLevel"} <= kinds <= {"ByteLevel", "Split", "Digits", "Punctuation"})
            or any(step.get("add_prefix_space") for step in steps)
            or any(step.get("behavior") == "Removed" for step in steps)
        )
        self.drops = not kinds <= {"ByteLevel", "Split", "Digits", "Punctuation", "Metaspace", "FixedLength"} or any(
            step.get("behavior") == "Removed" for step in steps
        )

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return partial(Chain, as_bytes=self.as_bytes), (self.steps,)

    def __str__(self) -> str:
        return self.spelling or self._listed

    @property
    def _listed(self) -> str:
        return json.dumps(self.steps, ensure_ascii=False, sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and (other.steps, other.as_bytes) == (self.steps, self.as_bytes)

    def __hash__(self) -> int:
        return hash((self._listed, self.as_bytes))

    @property
    def spelling(self) -> str | None:
        return "whitespace" if self.steps == WHITESPACE and not self.as_bytes else None

    @property
    def splits_at_spaces(self) -> bool:
        """Whether the first step cuts at white space and drops it."""
        return bool(self.steps) and self.steps[0]["type"] in _FOUND

    @property
    def identity(self) -> str:
        """Return the text that fingerprints hash: the steps, and the digests of their Unicode tables."""
        kinds = {step["type"] for step in self.steps}
        digests = [unicode_classes.classes_digest()]
        if kinds & {"BertPreTokenizer", "Whitespace", "UnicodeScripts"}:
            from tokenizer.splitting import bert_characters, step_characters

            digests += [bert_characters.table_digest(), step_characters.table_digest()]
        return "\n".join([self._listed, *digests])

    @cached_property
    def inside(self) -> Chain:
        """The splitter of text that follows a special token: Metaspace puts a mark only before the start of a text."""
        if not any(step.get("prepend_scheme") == "first" for step in self.steps):
            return self
        steps = [step | {"prepend_scheme": "never"} if step["type"] == "Metaspace" else step for step in self.steps]
        return Chain(steps, as_bytes=self.as_bytes)

    def check(self) -> None:
        """Raise ValueError for a regex that does not compile, and warn once about a regex that runs slower."""
        assert self._functions or not self.steps
        for place, step in enumerate(self.steps if self.steps != SUPERWORD_STEPS else ()):
            regex = step.get("pattern", {}).get("Regex")
            if regex and (self.scans is None or self.scans[place].split):
                warn_if_slow(pattern_of(regex))

    def pretokens(self, text: bytes) -> Iterator[bytes]:
        """Yield the pretokens of one text in order.

        As bytes, each stretch of valid UTF-8 is split separately, and every other byte is a pretoken.
        """
        if not self.as_bytes:
            yield from self._split(read_text(text))
            return
        for stretch, is_utf8 in utf8_stretches(text):
            if is_utf8:
                yield from self._split(stretch) if self.steps else [unspell(stretch)]
            else:
                yield stretch.encode(errors="surrogateescape")

    @cached_property
    def spells(self) -> bool:
        """Whether pretokens are in ByteLevel's alphabet."""
        return not self.as_bytes and any(step["type"] == "ByteLevel" for step in self.steps)

    @cached_property
    def scans(self) -> list[Scan] | None:
        """The steps as the scanner runs them over blocks, None if it can run none or they are no Splits."""
        from tokenizer.splitting.chain_blocks import scans_of

        splits = [_as_splits(step) for step in self.steps]
        is_spelled = [step["type"] == "ByteLevel" for step in self.steps]
        if None in splits or any(is_spelled[:-1]) or (self.as_bytes and not any(is_spelled)):
            return None
        steps = zip(splits, self._functions, strict=True)
        return scans_of((split, function) for some, function in steps for split in some or [])

    def rewrite(self, block: Block) -> tuple[Block, np.ndarray]:
        """Return the block of joined pretokens, and the end of each, int64. Most steps run in numpy or a kernel."""
        from tokenizer.splitting.chain_blocks import is_valid, rewriter_of

        rewrite = rewriter_of(self)
        return rewrite(block) if rewrite is not None and is_valid(block) else super().rewrite(block)

    def ends_of_block(self, block: Block) -> np.ndarray | None:
        from tokenizer.splitting.chain_blocks import ends_of

        return ends_of(block, self)

    def _split(self, piece: str, done: int = 0) -> list[bytes]:
        """Return the pretokens of a piece that went through the first `done` steps."""
        if not piece:
            return []
        if done == len(self._functions):
            return [unspell(piece) if self.as_bytes else piece.encode()]
        # Words repeat, so the results of short pieces are cached.
        pretokens: list[bytes] = []
        cache = self._caches[done]
        for part in self._functions[done](piece):
            found = cache.get(part)
            if found is None:
                found = self._split(part, done + 1)
                if len(part) <= LONGEST_CACHED:
                    if len(cache) >= MOST_CACHED:
                        cache.clear()
                    cache[part] = found
            pretokens += found
        return pretokens

    @cached_property
    def _caches(self) -> list[dict[str, list[bytes]]]:
        """The pretokens of short pieces after each step."""
        return [{} for _ in self.steps]

    @cached_property
    def _functions(self) -> list[Step]:
        return [_step(description) for description in self.steps]


def _as_splits(step: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the Splits by regexes that cut as a step does, None if there are none."""
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    match step:
        case {"type": "Split", "pattern": {"String": str(text)}}:
            return [step | {"pattern": {"Regex": re.escape(text)}}]
        case {"type": "Split"}:
            return [step]
        case {"type": "Digits"}:
            return [split | {"pattern": {"Regex": _digits(step["individual_digits"]).pattern}}]
        case {"type": "Punctuation"}:
            return [split | {"pattern": {"Regex": _punctuation().pattern}, "behavior": step["behavior"]}]
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return [split | {"pattern": {"Regex": GPT2_REGEX}}] if step["use_regex"] else []
    return None


def _step(step: dict[str, Any]) -> Step:
    kind = step["type"]
    if kind == "ByteLevel":
        return partial(_byte_level, prefix=step["add_prefix_space"], split=step["use_regex"])
    if kind in _FOUND:
        return _FOUND[kind]().findall
    if kind == "CharDelimiterSplit":
        delimiter: str = step["delimiter"]
        return lambda piece: piece.split(delimiter)
    if kind == "UnicodeScripts":
        return _scripts
    if kind == "FixedLength":
        length: int = step["length"]
        return lambda piece: [piece[start : start + length] for start in range(0, len(piece), length)]
    if kind == "Metaspace":
        return partial(
            _metaspace, mark=step["replacement"], prepends=step["prepend_scheme"] != "never", cuts=step["split"]
        )
    if kind == "Digits":
        return partial(
            _split, find=partial(_spans, regex=_digits(step["individual_digits"])), behavior="Isolated", invert=False
        )
    if kind == "Punctuation":
        return partial(_split, find=partial(_spans, regex=_punctuation()), behavior=step["behavior"], invert=False)
    options = {"behavior": step["behavior"], "invert": step["invert"]}
    if "String" in step["pattern"]:
        return partial(_split, find=partial(_spans, regex=re.compile(re.escape(step["pattern"]["String"]))), **options)
    from tokenizer.splitting.regex_differences import with_line_anchors
    from tokenizer.splitting.regex_translation import compile_regex

    pattern = pattern_of(with_line_anchors(step["pattern"]["Regex"]))
    keeps = {("Isolated", False): True, ("Isolated", True): True, ("Removed", True): False}.get(
        (step["behavior"], step["invert"])
    )
    if keeps is None or compile_regex(pattern.regex).groups or _ends_in_comment(pattern.regex):
        return partial(_split, find=partial(match_spans, pattern=pattern.regex), **options)
    return partial(split_by_regex, pattern=pattern.regex, keeps_others=keeps)


def _ends_in_comment(regex: str) -> bool:
    """Return whether a valid regex ends in a comment of its verbose mode, which would comment out a parenthesis."""
    from tokenizer.splitting.regex_translation import compile_regex

    try:
        compile_regex(f"({regex})")
    except ValueError:
        return True
    return False


def _byte_level(piece: str, *, prefix: bool, split: bool) -> list[str]:
    if prefix and not piece.startswith(" "):
        piece = " " + piece
    data = piece.encode()
    return list(map(spell, pretokens(data, _gpt2()) if split else [data]))


def _gpt2() -> Automaton:
    automaton = pattern_of("gpt2").automaton
    assert automaton is not None
    return automaton


def _spans(piece: str, regex: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    return (match.span() for match in regex.finditer(piece))


def _split(piece: str, *, find: Callable[[str], Iterator[tuple[int, int]]], behavior: str, invert: bool) -> list[str]:
    """Return a piece cut at the spans that `find` yields. `behavior` decides which neighbour a match is merged with."""
    cuts: list[tuple[int, int, bool]] = []  # (start, end, is a match), without gaps
    done = 0
    for start, end in find(piece):
        if done < start:
            cuts.append((done, start, invert))
        cuts.append((start, end, not invert))
        done = end
    if done < len(piece):
        cuts.append((done, len(piece), invert))
    if behavior == "Removed":
        return [piece[start:end] for start, end, is_match in cuts if not is_match]
    if behavior == "Isolated":
        return [piece[start:end] for start, end, _ in cuts]
    if behavior == "MergedWithNext":
        cuts.reverse()
    merged: list[tuple[int, int]] = []
    before = False
    for start, end, is_match in cuts:
        joins = is_match == before if behavior == "Contiguous" else is_match and not before
        if joins and merged:
            merged[-1] = (min(start, merged[-1][0]), max(end, merged[-1][1]))
        else:
            merged.append((start, end))
        before = is_match
    return [piece[start:end] for start, end in sorted(merged)]


def _metaspace(piece: str, *, mark: str, prepends: bool, cuts: bool) -> list[str]:
    piece = piece.replace(" ", mark)
    if prepends and not piece.startswith(mark):
        piece = mark + piece
    if not cuts:
        return [piece]
    first, *others = piece.split(mark)
    return [first, *(mark + part for part in others)]


def _scripts(piece: str) -> list[str]:
    """Return a piece cut where the script changes. The text before the first character with a script is left out."""
    table, last, cuts = _script_table(), 0, []
    for place, character in enumerate(piece):
        script = table[ord(character)]
        if script and script != last:
            cuts.append(place)
            last = script
    return [piece[start:end] for start, end in pairwise([*cuts, len(piece)])]


@cache
def _script_table() -> bytes:
    """Return the number of the script of each code point, 0 for any script."""
    from tokenizer.splitting import step_characters
    from tokenizer.splitting.unicode_properties import ranges_of

    table = bytearray(unicode_classes.CODE_POINTS)
    for number, gaps in enumerate(step_characters.tables().scripts, start=1):
        for first, last in ranges_of(gaps):
            table[first : last + 1] = bytes([number]) * (last + 1 - first)
    return bytes(table)


@cache
def _words() -> re.Pattern[str]:
    """Return the regex of Whitespace: words, and runs of other characters that are not white space."""
    from tokenizer.splitting import step_characters

    word = step_characters.character_class(step_characters.tables().words)
    return re.compile(f"[{word}]+|[^{word}{WHITE_SPACE}]+")


@cache
def _not_space() -> re.Pattern[str]:
    return re.compile(f"[^{WHITE_SPACE}]+")


@cache
def _bert_words() -> re.Pattern[str]:
    """Return the regex of BertPreTokenizer: single punctuation marks, and words between them and white space."""
    from tokenizer.splitting import bert_characters, step_characters

    tables = bert_characters.stored_tables()
    marks, space = map(step_characters.character_class, (tables.punctuation, tables.white_space))
    return re.compile(f"[{marks}]|[^{marks}{space}]+")


# The pre-tokenizers that keep the matches of a regex.
_FOUND = {"Whitespace": _words, "WhitespaceSplit": _not_space, "BertPreTokenizer": _bert_words}


@cache
def _digits(individual: bool) -> re.Pattern[str]:
    table = unicode_classes.code_point_classes()
    numbers = re.finditer(bytes([unicode_classes.NUMBER]) + b"+", table)
    runs = [f"{run.start():X}-{run.end() - 1:X}" for run in numbers]
    return re.compile(f"[{_ranges(' '.join(runs))}{_ranges(_NEW_NUMBERS)}]{'' if individual else '+'}")


@cache
def _punctuation() -> re.Pattern[str]:
    return re.compile(f"[{_ranges(_PUNCTUATION)}]")


def _ranges(runs: str) -> str:
    """Return hexadecimal runs of code points as the content of a character class."""
    ends = (run.split("-") for run in runs.split())
    return "".join(f"\\U{int(run[0], 16):08X}-\\U{int(run[-1], 16):08X}" for run in ends)

"""Special tokens in a text: their positions, and tiktoken's rule for allowed and disallowed ones."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from itertools import chain, groupby

from tokenizer.text import WHITE_SPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from typing import Any, Literal

    from tokenizer.splitting.normalizers import Normalization

    SpecialSet = Literal["all"] | Collection[str]


# The flags of an added token that decide where it is found.
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")
LONGEST_CHARACTER = 4  # bytes
# Word characters besides letters, marks and numbers: connectors, joiners, letters in circles or squares.
_OTHER_WORD_CHARACTERS: tuple[tuple[str, str], ...] = (
    ("_", "_"),
    ("\u200c", "\u200d"),
    ("\u203f", "\u2040"),
    ("\u2054", "\u2054"),
)
_OTHER_WORD_CHARACTERS += (("\u24b6", "\u24e9"), ("\ufe33", "\ufe34"), ("\ufe4d", "\ufe4f"), ("\uff3f", "\uff3f"))
_OTHER_WORD_CHARACTERS += (("\U0001f130", "\U0001f149"), ("\U0001f150", "\U0001f169"), ("\U0001f170", "\U0001f189"))


_NONE: frozenset[str] = frozenset()


class NormalizedText(bytes):
    """A part of a text after normalization."""


class SpecialTokens:
    """Finder of a vocabulary's special tokens in texts.

    flags: the flags of added tokens, by spelling. The search follows `tokenizers`: first tokens without the flag
    normalized, then normalized tokens in the normalized text between them. A single_word token does not match next to
    a word character. lstrip and rstrip extend a token by the white space before and after it.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        flags: Mapping[str, Mapping[str, bool]] | None = None,
        normalizer: Normalization | None = None,
    ):
        self._ids = ids
        self._all = frozenset(ids)
        self._flags = {
            spelling: set_flags
            for spelling, given in (flags or {}).items()
            if (set_flags := {flag for flag in FLAGS if given.get(flag)})
        }
        self._normalizer = normalizer
        self._plan = lru_cache(maxsize=8)(self._plan_of)

    def _plan_of(self, spellings: frozenset[str]) -> tuple[_Spellings, _Spellings | None, bool]:
        """Return the finders of tokens in the text and in normalized text, and whether one of them has flags.

        The result is cached, because files list thousands of added tokens.
        """
        normalized = [s for s in self._ids if s in spellings and "normalized" in self._flags.get(s, ())]
        apply = self._normalizer.apply if self._normalizer is not None else bytes
        # If several tokens have the same normal form, the first in the list is found.
        forms = {form: spelling for spelling in reversed(normalized) if (form := apply(spelling.encode()))}
        plain = {spelling.encode(): spelling for spelling in spellings.difference(normalized)}
        has_flags = not self._flags.keys().isdisjoint(spellings)
        return self._finder(plain), self._finder(forms) if normalized else None, has_flags

    def _finder(self, spellings: dict[bytes, str]) -> _Spellings:
        return _Spellings(spellings, any("lstrip" in self._flags.get(s, ()) for s in spellings.values()))

    def sets(self, allowed: SpecialSet, disallowed: SpecialSet) -> tuple[frozenset[str], frozenset[str]]:
        """Return the allowed and the disallowed spellings. Raises ValueError for a wrong argument."""
        if isinstance(allowed, str) and allowed == "all":
            allowed, others = self._all, _NONE
        else:
            allowed = _as_set("allowed_special", allowed) & self._all
            others = self._all - allowed if allowed else self._all
        if isinstance(disallowed, str) and disallowed == "all":
            return allowed, others
        return allowed, _as_set("disallowed_special", disallowed)

    def allowed_in(self, data: bytes, allowed: SpecialSet, disallowed: SpecialSet) -> frozenset[str]:
        """Return the allowed spellings if the text has one, else none. ValueError if it has a disallowed spelling."""
        return self.found_in(data, *self.sets(allowed, disallowed))

    def found_in(self, data: bytes, allowed: frozenset[str], disallowed: frozenset[str]) -> frozenset[str]:
        """Return what `allowed_in` does, for the result of `sets`."""
        if disallowed and (found := self._first(data, disallowed)):
            raise _disallowed_error(*found)
        return allowed if allowed and self._first(data, allowed) else frozenset()

    def stream(
        self, pieces: Iterable[bytes], allowed: frozenset[str], disallowed: frozenset[str]
    ) -> Iterator[tuple[int, bytes | int]]:
        """Yield the parts of the joined pieces, as `parts` does; text between two tokens may come in several parts.

        Raises ValueError when it comes to a disallowed spelling. If tokens are matched in normalized text, memory holds
        the whole text. Otherwise it holds the last part, as long as the longest spelling and the white space beside it.
        """
        if self.read_normalized(allowed | disallowed):
            data = b"".join(pieces)
            found = self.found_in(data, allowed, disallowed)
            yield from self.parts(data, found) if found else [(0, data)]
            return
        if disallowed:
            pieces = self._refused(pieces, disallowed)
        if not allowed:
            yield from ((0, piece) for piece in pieces)
            return
        for start, part in self._cut_stream(pieces, allowed):
            yield start, self._ids[part] if isinstance(part, str) else part

    def parts(self, data: bytes, allowed: frozenset[str]) -> Iterator[tuple[int, bytes | int]]:
        """Yield the text cut at allowed special tokens: the offset of each part, and its bytes or the token's id."""
        for start, part in self._cut(data, allowed):
            yield start, self._ids[part] if isinstance(part, str) else part

    def read_normalized(self, spellings: frozenset[str]) -> bool:
        """Return whether one of these tokens is matched in normalized text; then text parts are `NormalizedText`."""
        return self._normalizer is not None and self._plan(spellings)[1] is not None

    def check_normalized(self, data: bytes, spellings: frozenset[str]) -> None:
        """Raise ValueError if one of these tokens is matched in normalized text, and the text is not normalized."""
        if self._normalizer is not None and self.read_normalized(spellings) and self._normalizer.apply(data) != data:
            raise ValueError(
                "the text is not in NFC, but allowed_special has an added token that is matched in normalized text: "
                "normalize the text first, or leave this token out"
            )

    def _first(self, data: bytes, spellings: frozenset[str]) -> tuple[int, str] | None:
        """Return the offset and spelling of the first of these special tokens in a text, None if there is none."""
        plain, _, has_flags = self._plan(spellings)
        if not has_flags:
            match = plain.search(data)
            return match and (match.start(), match.group().decode())
        return next(((start, part) for start, part in self._cut(data, spellings) if isinstance(part, str)), None)

    def _cut(self, data: bytes, spellings: frozenset[str]) -> Iterator[tuple[int, bytes | str]]:
        """Yield a text cut at special tokens: the offset of each part, and its bytes or the token's spelling."""
        plain, normalized, _ = self._plan(spellings)
        for start, part in self._cut_at(data, plain):
            if normalized is None or isinstance(part, str):
                yield start, part
            elif self._normalizer is None:
                yield from ((start + offset, piece) for offset, piece in self._cut_at(part, normalized))
            else:
                for offset, piece in self._cut_at(self._normalizer.apply(part), normalized):
                    yield start + offset, piece if isinstance(piece, str) else NormalizedText(piece)

    def _refused(self, pieces: Iterable[bytes], disallowed: frozenset[str]) -> Iterator[bytes]:
        """Yield the joined pieces. Raises ValueError when it comes to a disallowed spelling."""
        for start, part in self._cut_stream(pieces, disallowed):
            if isinstance(part, str):
                raise _disallowed_error(start, part)
            yield part

    def _cut_stream(self, pieces: Iterable[bytes], spellings: frozenset[str]) -> Iterator[tuple[int, bytes | str]]:
        """As `_cut` without normalization. Text between two tokens may come in several parts."""
        plain, normalized, _ = self._plan(spellings)
        first = self._cut_stream_at(pieces, plain)
        if normalized is None:
            yield from first
            return
        for offset, run in runs_of_text(first):
            if isinstance(run, str):
                yield offset, run
                continue
            for start, part in self._cut_stream_at(run, normalized):
                yield offset + start, part

    def _cut_stream_at(self, pieces: Iterable[bytes], wanted: _Spellings) -> Iterator[tuple[int, bytes | str]]:
        held, offset, done, searched, enough = bytearray(), 0, 0, 0, 0
        for piece in pieces:
            held += piece
            if len(held) < enough:
                continue
            done, searched = yield from self._cut_at(bytes(held), wanted, offset, done, searched, complete=False)
            dropped = max(0, min(done, searched) - LONGEST_CHARACTER)  # single_word looks at the character before
            del held[:dropped]
            offset, done, searched = offset + dropped, done - dropped, searched - dropped
            enough = 2 * len(held)  # so that a long undecided part is searched in linear time
        yield from self._cut_at(bytes(held), wanted, offset, done, searched)

    def _cut_at(
        self,
        data: bytes,
        wanted: _Spellings,
        offset: int = 0,
        done: int = 0,
        searched: int = 0,
        *,
        complete: bool = True,
    ) -> Generator[tuple[int, bytes | str], None, tuple[int, int]]:
        """Yield a text from `done` on, cut at these special tokens, of which none starts before `searched`.

        If the text is not complete, leave out what more text could change. Returns the new `done` and `searched`.
        """
        # With more text, a token that starts later can become a longer one, or can touch a word character.
        end_of_decided = len(data) - (0 if complete else wanted.longest + LONGEST_CHARACTER)
        for match in wanted.finditer(data, searched):
            start, end = match.span()
            if start > end_of_decided:
                break
            spelling = wanted.spellings[match.group()]
            flags = self._flags.get(spelling, ())
            if "single_word" in flags and (
                _is_word(data[max(0, start - LONGEST_CHARACTER) : start], -1)
                or _is_word(data[end:][:LONGEST_CHARACTER], 0)
            ):
                searched = end
                continue
            if "rstrip" in flags:
                space = _leading_space().match(data, end)
                assert space is not None, "the pattern matches an empty text too"
                end = space.end()
                if not complete and end + LONGEST_CHARACTER > len(data):
                    end_of_decided = start
                    break
            if "lstrip" in flags:
                start = max(done, start - _trailing_space(data[done:start]))
            if done < start:
                yield offset + done, data[done:start]
            yield offset + start, spelling
            done, searched = end, match.end()
        if not complete:
            end_of_decided = _start_of_character(data, max(0, end_of_decided))
            if done < end_of_decided and wanted.strips_left:
                end_of_decided -= _trailing_space(data[done:end_of_decided])
        if done < end_of_decided:
            yield offset + done, data[done:end_of_decided]
        return max(done, end_of_decided), max(searched, end_of_decided)


def runs_of_text(parts: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield parts of a text with their offsets, but neighbouring parts in bytes as one iterator."""
    for is_text, group in groupby(parts, key=lambda part: isinstance(part[1], bytes)):
        if is_text:
            start, first = next(group)
            yield start, chain([first], (part for _, part in group))
        else:
            yield from group


def _disallowed_error(start: int, spelling: str) -> ValueError:
    return ValueError(
        f"the text has the special token {spelling!r} at byte {start}: to encode it as the "
        f"special token pass allowed_special={{{spelling!r}}}, to encode it as text disallowed_special=()"
    )


def _start_of_character(data: bytes, place: int) -> int:
    """Return the start of the character at a place of a text."""
    for start in range(place, max(-1, place - LONGEST_CHARACTER), -1):
        if start == len(data) or data[start] & 0xC0 != 0x80:
            return start
    return place


def _is_word(data: bytes, place: int) -> bool:
    """Return whether the first or last character is a word character, as in Rust's `regex` crate."""
    if not data:
        return False
    character = data.decode("utf-8", "surrogateescape")[place]
    from tokenizer.splitting.unicode_classes import MARK, NUMBER, UPPER, code_point_classes

    category = code_point_classes()[ord(character)]
    if category == NUMBER:
        import regex

        return regex.match(r"[\p{Nd}\p{Nl}]", character) is not None
    is_other = any(first <= character <= last for first, last in _OTHER_WORD_CHARACTERS)
    return UPPER <= category <= MARK or is_other


def _trailing_space(data: bytes) -> int:
    """Return the number of bytes of white space at the end of a text."""
    text = data.decode("utf-8", "surrogateescape")
    return len(text[len(text.rstrip(WHITE_SPACE)) :].encode())


@cache
def _leading_space() -> re.Pattern[bytes]:
    import re

    return re.compile(b"(?:" + b"|".join(re.escape(character.encode()) for character in WHITE_SPACE) + b")*")


class _Spellings:
    """Search for several spellings at once: the first match, and the longest spelling at that place.

    spellings: from the bytes to find to the token. strips_left: whether a token takes the white space before it.
    """

    def __init__(self, spellings: dict[bytes, str], strips_left: bool):
        self.spellings = spellings
        self.strips_left = strips_left
        self.longest = max(map(len, spellings), default=0)
        # A fast check before the regex: most texts do not even have the first byte of any spelling.
        self._beginnings = [(spelling[0], spelling) for spelling in sorted({spelling[:2] for spelling in spellings})]

    @cached_property
    def regex(self) -> re.Pattern[bytes]:
        import re

        return re.compile(_longest_of(sorted(self.spellings), 0, MOST_NESTED))

    def finditer(self, data: bytes, start: int = 0) -> Iterator[re.Match[bytes]]:
        return self.regex.finditer(data, start) if self.spellings and self.search(data) else iter(())

    def search(self, data: bytes) -> re.Match[bytes] | None:
        for first, beginning in self._beginnings:
            if first in data and beginning in data:
                return self.regex.search(data)
        return None


MOST_NESTED = 50  # groups of a regex


def _longest_of(spellings: list[bytes], start: int, nested: int) -> bytes:
    """Return a regex for the longest of several spellings, which have their first `start` bytes in common.

    Spellings with a common beginning are one branch, because `re` tries all branches at every place.
    spellings: in ascending order.
    """
    import re

    if not nested:
        return b"|".join(re.escape(spelling[start:]) for spelling in reversed(spellings))
    branches = []
    for _, group in groupby(spellings, key=lambda spelling: spelling[start : start + 1]):
        same = list(group)
        first, last = same[0], same[-1]
        common = next((at for at in range(start, len(first)) if first[at] != last[at]), len(first))
        rest = b"" if len(same) == 1 else b"(?:%s)" % _longest_of(same, common, nested - 1)
        branches.append(re.escape(first[start:common]) + rest)
    return b"|".join(reversed(branches))


def _as_set(name: str, value: Collection[str]) -> frozenset[str]:
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        kind = "the string " if isinstance(value, str) else ""
        raise ValueError(f'{name} must be "all" or a collection of special tokens, not {kind}{value!r}')
    spellings = tuple(value)
    for spelling in spellings:
        if not isinstance(spelling, str) or not spelling:
            raise ValueError(f"{name} must hold special tokens, not {spelling!r}")
    return frozenset(spellings)

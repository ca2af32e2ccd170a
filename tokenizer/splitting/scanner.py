"""The scanner in plain Python: it splits short texts before numba is loaded, and is the reference for the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tokenizer.splitting.automata import EMIT, EMIT_AT_MARK, EMIT_BYTE, END, MARK, START, Automaton


def pretokens(text: bytes, automaton: Automaton, *, complete: bool = True) -> Iterator[bytes]:
    """Yield the pretokens of one text in order. Joined, they give the text.

    Each byte of invalid UTF-8 is a pretoken. The text before it is split as if it ended there. If the text is not
    `complete`, stop before the first pretoken that more text could change.
    """
    # An invalid byte is decoded to a surrogate, whose class is END.
    characters = text.decode(errors="surrogateescape")
    if text.isascii():
        classes = text.translate(automaton.byte_classes)
    else:
        table = automaton.code_point_classes
        classes = bytes([table[ord(character)] for character in characters])
    if complete:
        classes += bytes([END])
    actions = automaton.table
    position = 0
    while position < len(characters):
        row, start = START, position
        while True:
            try:
                action = actions[row + classes[position]]
            except IndexError:  # the text is not complete
                return
            if action >= EMIT:
                break
            if action & MARK:
                mark = position
                action -= MARK
            position += 1
            row = action
        if action == EMIT_AT_MARK:
            position = mark
        elif action == EMIT_BYTE:
            position += 1
        yield characters[start:position].encode(errors="surrogateescape")


def regex_pretokens(text: bytes, pattern: str) -> Iterator[bytes]:
    """Yield the pretokens of one text by a regex without an automaton. Text between two matches is a pretoken, too.

    Raises ValueError, which names the pattern, if matching takes too long: see `match_spans`.
    """
    for segment, is_utf8 in utf8_stretches(text):
        if not is_utf8:
            yield segment.encode(errors="surrogateescape")
            continue
        done = 0
        for start, end in match_spans(segment, pattern):
            if start > done:
                yield segment[done:start].encode()
            if end > start:
                yield segment[start:end].encode()
            done = end
        if done < len(segment):
            yield segment[done:].encode()


def match_spans(text: str, pattern: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each match.

    As in Oniguruma, no empty match is where another match ends, and no match starts where an empty one is found.

    Up to 4,096 matches are found before the first is yielded, so that only matching counts towards the time limit. The
    limit is 5 s, plus 1 s for every 100,000 remaining characters. `regex` measures the CPU time of the whole process,
    so the limit is multiplied by the number of threads.
    """
    import threading

    from tokenizer.splitting.regex_translation import compile_regex

    regex = compile_regex(pattern)
    done, last = 0, -1
    while done <= len(text):
        seconds = (5 + (len(text) - done) / 100_000) * threading.active_count()
        spans: list[tuple[int, int]] = []
        try:
            for match in islice(regex.finditer(text, done, timeout=seconds), 4096):
                spans.append(match.span())
                if match.start() == match.end():
                    break
        except TimeoutError:
            raise ValueError(
                f"the split pattern {pattern[:80]!r} took more than {seconds:.0f} s from "
                f"{text[done : done + 20]!r} on: it backtracks too much; use possessive quantifiers such as x++"
            ) from None
        for start, end in spans:
            if start < end or last < start:
                yield start, end
            last = end
        if not spans or (start < end and len(spans) < 4096):
            return
        done = end + (start == end)


def split_by_regex(text: str, pattern: str, *, keeps_others: bool) -> list[str]:
    """Return the matches of a regex, and the text between them if `keeps_others`. Some may be empty.

    pattern: a regex that has no groups and does not end in a comment.
    The time limit is that of `match_spans`.
    """
    import threading

    from tokenizer.splitting.regex_translation import compile_regex

    seconds = (5 + len(text) / 100_000) * threading.active_count()
    try:
        if keeps_others:
            cut: list[str] = compile_regex(f"({pattern})").split(text, timeout=seconds)
        else:
            cut = compile_regex(pattern).findall(text, timeout=seconds)
    except TimeoutError:
        raise ValueError(
            f"the split pattern {pattern[:80]!r} took more than {seconds:.0f} s from {text[:20]!r} on: it backtracks "
            "too much; use possessive quantifiers such as x++"
        ) from None
    if all(cut[1::2] if keeps_others else cut):
        return cut
    pieces, done = [], 0  # after an empty match, `regex` goes on otherwise than Oniguruma
    for start, end in match_spans(text, pattern):
        pieces += [text[done:start], text[start:end]] if keeps_others else [text[start:end]]
        done = end
    return [*pieces, text[done:]] if keeps_others else pieces


def utf8_stretches(text: bytes) -> Iterator[tuple[str, bool]]:
    """Yield the stretches of valid UTF-8 and each invalid byte between them, in order, as (text, is_utf8)."""
    decoded = text.decode(errors="surrogateescape")
    start = 0
    if not decoded.isascii():
        import re

        for invalid in re.finditer("[\udc80-\udcff]", decoded):
            if invalid.start() > start:
                yield decoded[start : invalid.start()], True
            yield invalid.group(), False
            start = invalid.end()
    if start < len(decoded):
        yield decoded[start:], True

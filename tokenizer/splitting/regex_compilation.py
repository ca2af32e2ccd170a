"""Compilation of a regex to an automaton, with the matches of a backtracking engine: leftmost, first alternative first.

The regex becomes a program (`regex_program.py`). A state of the automaton is a list of threads in order of priority. On
each class of code points, the threads that can take it survive, in order. If the match may end here, the mark is set,
and all threads of lower priority end.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tokenizer.splitting.automata import (
    EMIT,
    EMIT_AT_MARK,
    EMIT_BYTE,
    END,
    FIRST_CLASS,
    MARK,
    MULTIBYTE,
    START,
    Automaton,
)
from tokenizer.splitting.regex_parsing import parse
from tokenizer.splitting.regex_program import Program, UnsupportedError, program_of

MOST_STATES = 128
MOST_PAIRS = 1000  # of states, in `_check_look_ahead`
_ASCII_WORDS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

Pair = tuple[int, int | None]  # the numbers of two states


def compile_automaton(pattern: str) -> Automaton | None:
    """Return the automaton of a regex, or None if only the `regex` module can run it.

    A regex has an automaton if every code point begins a match, no match is empty, and any text takes linear time. Only
    `\\Z` may look further ahead than the next code point. Raises ValueError as `parse` does.
    """
    tree = parse(pattern)
    try:
        runs, program, _, entry, classes = program_of(tree)
        states = _checked_states(program, entry, classes)
    except UnsupportedError:
        return None
    return _automaton(runs, states)


class Gaps(NamedTuple):
    """How to recognize text between matches, by the classes of code points.

    runs: the classes that begin no match. A pretoken that starts with one is a gap. alone: for each class, the classes
    before which a pretoken of one code point is a gap, because no match is as short.
    """

    runs: list[bool]
    alone: list[list[bool]]


def compile_with_gaps(pattern: str) -> tuple[Automaton, Gaps] | None:
    """Return an automaton that also takes the text between the matches of a regex, which can be several pretokens.

    None as in `compile_automaton`.
    """
    tree = parse(pattern)
    try:
        runs, program, match, entry, classes = program_of(tree)
        entry, begins = program.before_gaps(entry)
        states = _checked_states(program, entry, classes)
    except UnsupportedError:
        return None
    gaps = Gaps([not begins >> number & 1 for number in range(classes)], states.gaps(match))
    return _automaton(runs, states), gaps


def _checked_states(program: Program, entry: int, classes: int) -> _States:
    states = _States(program, entry, classes)
    _check_look_ahead(states)
    return states


def _automaton(runs: list[tuple[int, int]], states: _States) -> Automaton:
    actions = states.actions()
    packed = struct.pack(f"<{len(runs)}I", *(length << 8 | number for number, length in runs))
    first = b"".join(bytes([number]) * min(length, 0x80) for number, length in runs[:0x80])[:0x80]
    byte_classes = first + bytes([MULTIBYTE]) * 0x80
    splits = _splits_at_spaces(actions, byte_classes, states.classes)
    return Automaton(struct.pack(f"<{len(actions)}H", *actions), byte_classes, packed, splits)


class _States:
    """The states that a program can reach. State 0 begins a pretoken.

    moves: for each state and class, the next state, or None if no thread takes the class.
    ends: for each state, the classes before which a match may end, as a mask.
    safe: for each state, whether a match ends there or later, whatever follows.
    """

    def __init__(self, program: Program, entry: int, classes: int):
        self.classes = classes
        numbers = {program.closure([entry]): 0}
        self.moves: list[list[int | None]] = []
        self.ends: list[int] = []
        for state in (todo := list(numbers)):
            self.ends.append(0)
            taking: list[list[int]] = [[] for _ in range(classes)]
            for step, mask in state:
                kind, *rest = program.steps[step]
                if kind == "match":
                    self.ends[-1] |= mask
                    continue
                for number in range(FIRST_CLASS, classes):
                    if mask >> number & 1:
                        taking[number].append(rest[1])
            self.moves.append([])
            for steps in taking:
                following = program.closure(steps)
                if steps and following not in numbers:
                    if len(numbers) == MOST_STATES:
                        raise UnsupportedError
                    numbers[following] = len(numbers)
                    todo.append(following)
                self.moves[-1].append(numbers[following] if steps else None)
        self.threads = list(numbers)
        self.safe = self._safe_states()
        self._check_matches()

    def _safe_states(self) -> list[bool]:
        """Return, for each state, whether a match ends there or later, whatever follows. It needs no mark before."""
        read = [number for number in range(self.classes) if number != MULTIBYTE]
        safe, before = [True] * len(self.moves), 0
        while before != (before := sum(safe)):
            for state, moves in enumerate(self.moves):
                for number in read:
                    following = moves[number]
                    goes_on = following is not None and safe[following]
                    safe[state] &= goes_on or bool(self.ends[state] >> number & 1)
        return safe

    def _check_matches(self) -> None:
        """Refuse a regex that matches an empty text, or that fails to match somewhere."""
        if self.ends[0]:
            raise UnsupportedError
        seen = {(0, False)}
        for state, has_match in (todo := list(seen)):
            for number, following in enumerate(self.moves[state]):
                now = has_match or bool(self.ends[state] >> number & 1)
                if number == MULTIBYTE or (state, number) == (0, END):
                    continue
                if following is not None and (following, now) not in seen:
                    seen.add((following, now))
                    todo.append((following, now))
                if following is None and not now:
                    raise UnsupportedError

    def gaps(self, match: int) -> list[list[bool]]:
        """Return, for each class, whether no match of one code point ends before each class at the step `match`."""
        table = []
        for following in self.moves[0]:
            ends = 0
            for step, mask in self.threads[following] if following is not None else ():
                ends |= mask if step == match else 0
            table.append([not ends >> number & 1 for number in range(self.classes)])
        return table

    def actions(self) -> list[int]:
        """Return the table of the automaton."""
        table: list[int] = []
        if len(self.moves) * self.classes > MARK:
            raise UnsupportedError
        for state, moves in enumerate(self.moves):
            for number, following in enumerate(moves):
                can_end = self.ends[state] >> number & 1
                if following is None:
                    table.append(EMIT if can_end else EMIT_AT_MARK)
                else:
                    table.append(following * self.classes | (MARK if can_end and not self.safe[following] else 0))
        table[START + END] = EMIT_BYTE
        return table


def _check_look_ahead(states: _States) -> None:
    """Refuse a regex whose scan may read any distance beyond a match, unless the next match covers this text.

    Otherwise text would be read again for every match, in quadratic time, or a pretoken could depend on text far behind
    it. The check follows two scans over the same text: one beyond its mark, and the scan that starts at this mark.
    Wherever the first can loop, the second must go on, too, with longer and longer matches.
    """
    todo: list[Pair] = []
    seen: set[Pair] = set()
    edges: dict[Pair, set[Pair]] = {}
    bad: list[tuple[Pair, Pair]] = []

    def visit(pair: Pair) -> None:
        if pair not in seen:
            seen.add(pair)
            todo.append(pair)
            if len(seen) > MOST_PAIRS:
                raise UnsupportedError

    def unmarked(state: int, number: int) -> int | None:
        following = states.moves[state][number]
        return None if following is None or states.safe[following] else following

    for state, ends in enumerate(states.ends):
        for number in range(FIRST_CLASS, states.classes):
            if ends >> number & 1 and (following := unmarked(state, number)) is not None:
                visit((following, states.moves[0][number]))
    for pair in todo:
        ahead, behind = pair
        for number in range(FIRST_CLASS, states.classes):
            following = unmarked(ahead, number)
            if following is None or states.ends[ahead] >> number & 1:
                continue
            beside = None if behind is None else states.moves[behind][number]
            visit((following, beside))
            edges.setdefault(pair, set()).add((following, beside))
            marks = behind is not None and states.ends[behind] >> number & 1
            if beside is None or not (marks or states.safe[beside]):
                bad.append((pair, (following, beside)))
    for before, after in bad:
        reached = {after}
        for pair in (todo := [after]):
            todo += (fresh := edges.get(pair, set()) - reached)
            reached |= fresh
        if before in reached:
            raise UnsupportedError


def _splits_at_spaces(actions: list[int], byte_classes: bytes, classes: int) -> bool:
    """Return whether every pretoken ends between an ASCII letter or digit and a space or line feed."""
    for number in set(_ASCII_WORDS.translate(byte_classes)):
        for action in actions[number::classes]:
            if action < EMIT:
                row = action & ~MARK
                following = {actions[row + other] for other in (END, byte_classes[ord(" ")], byte_classes[ord("\n")])}
                if len(following) > 1 or min(following) < EMIT:
                    return False
    return True

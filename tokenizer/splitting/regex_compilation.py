"""Compilation of a regex to an automaton, with the matches of a backtracking engine: leftmost, first alternative first.

The regex becomes a program of steps, as for a Pike virtual machine. A state of the automaton is a list of threads in
order of priority. On each class of code points, the threads that can take it survive, in order. If the match may end
here, the mark is set, and all threads of lower priority end. Look-ahead of one code point is a condition on the class
that is read next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

from tokenizer.splitting.automata import (
    EMIT,
    EMIT_AT_MARK,
    EMIT_BYTE,
    END,
    FIRST_CLASS,
    MARK,
    MOST_CLASSES,
    MULTIBYTE,
    START,
    Automaton,
)
from tokenizer.splitting.regex_parsing import Group, Node, Repeat, Set, Text, parse
from tokenizer.splitting.unicode_properties import Ranges

MOST_STEPS = 2000
MOST_STATES = 128
MOST_PAIRS = 1000  # of states, in `_check_look_ahead`
_ASCII_WORDS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

# A thread: its step, and the classes with which it goes on, as a mask with one bit a class.
State = tuple[tuple[int, int], ...]
Pair = tuple[int, int | None]  # the numbers of two states


class _UnsupportedError(Exception):
    """The regex has no automaton."""


def compile_automaton(pattern: str) -> Automaton | None:
    """Return the automaton of a regex, or None if only the `regex` module can run it.

    A regex has an automaton if every code point begins a match, no match is empty, and any text takes linear time. Only
    `\\Z` may look further ahead than the next code point. Raises ValueError as `parse` does.
    """
    tree = parse(pattern)
    try:
        runs, masks, classes = _partition(_sets(tree))
        program = _Program(masks, ((1 << classes) - 1) ^ 1 << MULTIBYTE)
        states = _States(program, program.branches(tree, program.add("match")), classes)
        _check_look_ahead(states)
    except _UnsupportedError:
        return None
    actions = states.actions()
    packed = struct.pack(f"<{len(runs)}I", *(length << 8 | number for number, length in runs))
    first = b"".join(bytes([number]) * min(length, 0x80) for number, length in runs[:0x80])[:0x80]
    byte_classes = first + bytes([MULTIBYTE]) * 0x80
    splits = _splits_at_spaces(actions, byte_classes, classes)
    return Automaton(struct.pack(f"<{len(actions)}H", *actions), byte_classes, packed, splits)


def _sets(node: Node) -> Iterator[Ranges]:
    if isinstance(node, Set):
        yield node.ranges
    elif isinstance(node, Repeat):
        yield from _sets(node.body)
    elif isinstance(node, Group):
        for branch in node.branches:
            for part in branch:
                yield from _sets(part)


def _partition(sets: Iterable[Ranges]) -> tuple[list[tuple[int, int]], dict[Ranges, int], int]:
    """Divide all code points into classes, such that each set is a union of classes.

    Return the runs of code points of one class as (class, length), the classes of each set as a mask, and the number of
    classes.
    """
    distinct = list(dict.fromkeys(sets))
    surrogates = 1 << len(distinct)
    flips = {0: 0, 0xD800: surrogates, 0xE000: surrogates, 0x110000: 0}
    for number, ranges in enumerate(distinct):
        for first, last in ranges:
            for place in (first, last + 1):
                flips[place] = flips.get(place, 0) ^ 1 << number
    class_of: dict[int, int] = {}
    lengths: list[tuple[int, int]] = []
    membership = 0
    for place, following in pairwise(sorted(flips)):
        membership ^= flips[place]
        known = class_of.setdefault(membership, FIRST_CLASS + len(class_of)) if membership < surrogates else END
        lengths.append((known, following - place))
    if FIRST_CLASS + len(class_of) > MOST_CLASSES:
        raise _UnsupportedError
    runs = [(number, sum(length for _, length in run)) for number, run in groupby(lengths, key=lambda run: run[0])]
    masks = {
        ranges: sum(1 << known for member, known in class_of.items() if member >> number & 1)
        for number, ranges in enumerate(distinct)
    }
    return runs, masks, FIRST_CLASS + len(class_of)


def _can_be_empty(node: Node) -> bool:
    if isinstance(node, Repeat):
        return node.least == 0 or _can_be_empty(node.body)
    if isinstance(node, Group):
        return node.opening in ("(?=", "(?!") or any(all(map(_can_be_empty, branch)) for branch in node.branches)
    return isinstance(node, Text)


class _Program:
    """The steps of a regex: ("match",), ("take", mask, next), ("if", mask, next) or ("either", *next by priority).

    The steps are made from the end of the regex to its beginning. masks: the classes of each set. every: all classes.
    """

    def __init__(self, masks: dict[Ranges, int], every: int):
        self.masks, self.every = masks, every
        self.steps: list[tuple[str, *tuple[int, ...]]] = []

    def add(self, kind: str, *numbers: int) -> int:
        if len(self.steps) == MOST_STEPS:
            raise _UnsupportedError
        self.steps.append((kind, *numbers))
        return len(self.steps) - 1

    def branches(self, group: Group, following: int) -> int:
        return self.add("either", *(self._sequence(branch, following) for branch in group.branches))

    def _sequence(self, nodes: list[Node], following: int) -> int:
        for node in reversed(nodes):
            following = self._node(node, following)
        return following

    def _node(self, node: Node, following: int) -> int:
        if isinstance(node, Set):
            return self.add("take", self.masks[node.ranges], following)
        if isinstance(node, Repeat):
            return self._repeat(node, following)
        if isinstance(node, Text):
            if node.is_empty:
                return following
            return self.add("if", self._classes([node]), following)
        if node.opening in ("(?=", "(?!"):
            mask = 0
            for branch in node.branches:
                mask |= self._classes(branch)
            return self.add("if", mask if node.opening == "(?=" else self.every & ~mask, following)
        if node.opening == "(?>" and len(node.branches) == 1 and len(node.branches[0]) == 1:
            (inner,) = node.branches[0]
            if isinstance(inner, Repeat) and inner.mode != "?":
                return self._repeat(inner._replace(mode="+"), following)
        if node.opening == "(" or (node.opening[:2] == "(?" and node.opening[-1] == ":"):
            return self.branches(node, following)
        raise _UnsupportedError

    def _classes(self, nodes: list[Node]) -> int:
        """Return the classes that the nodes match as one code point, or END for `\\Z`."""
        if len(nodes) == 1:
            (node,) = nodes
            if isinstance(node, Set):
                return self.masks[node.ranges]
            if isinstance(node, Text) and node.parts == (r"\Z",):
                return 1 << END
        raise _UnsupportedError

    def _repeat(self, node: Repeat, following: int) -> int:
        if node.mode == "?" or isinstance(node.body, Repeat) or _can_be_empty(node.body):
            raise _UnsupportedError
        # A possessive repetition of a set goes on as long as it can.
        stop = following
        if node.mode == "+":
            stop = self.add("if", self.every & ~self._classes([node.body]), following)
        if node.most is None:
            following = self.add("either")
            body = self._node(node.body, following)
            self.steps[following] = ("either", body, stop)
        else:
            if node.most < node.least:
                raise _UnsupportedError
            for _ in range(node.most - node.least):
                following = self.add("either", self._node(node.body, following), stop)
        for _ in range(node.least):
            following = self._node(node.body, following)
        return following


class _States:
    """The states that a program can reach. State 0 begins a pretoken.

    moves: for each state and class, the next state, or None if no thread takes the class.
    ends: for each state, the classes before which a match may end, as a mask.
    safe: for each state, whether a match ends there or later, whatever follows.
    """

    def __init__(self, program: _Program, entry: int, classes: int):
        self._program, self.classes = program, classes
        numbers = {self._closure([entry]): 0}
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
                following = self._closure(steps)
                if steps and following not in numbers:
                    if len(numbers) == MOST_STATES:
                        raise _UnsupportedError
                    numbers[following] = len(numbers)
                    todo.append(following)
                self.moves[-1].append(numbers[following] if steps else None)
        self.safe = self._safe_states()
        self._check_matches()

    def _closure(self, steps: list[int]) -> State:
        """Return the threads that begin at these steps, in order of priority, up to what each takes next."""
        threads: list[tuple[int, int]] = []
        seen: dict[int, int] = {}
        ended = 0  # classes before which a thread of higher priority has ended the match
        todo = [(step, self._program.every) for step in reversed(steps)]
        while todo:
            step, mask = todo.pop()
            mask &= ~(seen.get(step, 0) | ended)
            if not mask:
                continue
            seen[step] = seen.get(step, 0) | mask
            kind, *rest = self._program.steps[step]
            if kind == "either":
                todo += [(target, mask) for target in reversed(rest)]
            elif kind == "if":
                todo.append((rest[1], mask & rest[0]))
            elif kind == "match":
                threads.append((step, mask))
                ended |= mask
            elif mask & rest[0]:
                threads.append((step, mask & rest[0]))
        return tuple(threads)

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
            raise _UnsupportedError
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
                    raise _UnsupportedError

    def actions(self) -> list[int]:
        """Return the table of the automaton."""
        table: list[int] = []
        if len(self.moves) * self.classes > MARK:
            raise _UnsupportedError
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
                raise _UnsupportedError

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
            raise _UnsupportedError


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

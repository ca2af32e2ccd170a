"""The program of a regex: steps over classes of code points, as for a Pike virtual machine.

Look-ahead of one code point is a condition on the class that is read next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

from tokenizer.splitting.automata import END, FIRST_CLASS, MOST_CLASSES, MULTIBYTE
from tokenizer.splitting.regex_parsing import Group, Node, Repeat, Set, Text
from tokenizer.splitting.unicode_properties import Ranges

MOST_STEPS = 2000

# A thread: its step, and the classes with which it goes on, as a mask with one bit a class.
State = tuple[tuple[int, int], ...]


class UnsupportedError(Exception):
    """The regex has no automaton."""


def program_of(tree: Group) -> tuple[list[tuple[int, int]], Program, int, int, int]:
    """Return the runs of classes, the program of a tree, its steps of match and entry, and the number of classes."""
    runs, masks, classes = _partition(_sets(tree))
    program = Program(masks, ((1 << classes) - 1) ^ 1 << MULTIBYTE)
    match = program.add("match")
    return runs, program, match, program.branches(tree, match), classes


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
        raise UnsupportedError
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


class Program:
    """The steps of a regex: ("match",), ("take", mask, next), ("if", mask, next) or ("either", *next by priority).

    The steps are made from the end of the regex to its beginning. masks: the classes of each set. every: all classes.
    """

    def __init__(self, masks: dict[Ranges, int], every: int):
        self.masks, self.every = masks, every
        self.steps: list[tuple[str, *tuple[int, ...]]] = []

    def add(self, kind: str, *numbers: int) -> int:
        if len(self.steps) == MOST_STEPS:
            raise UnsupportedError
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
        raise UnsupportedError

    def _classes(self, nodes: list[Node]) -> int:
        """Return the classes that the nodes match as one code point, or END for `\\Z`."""
        if len(nodes) == 1:
            (node,) = nodes
            if isinstance(node, Set):
                return self.masks[node.ranges]
            if isinstance(node, Text) and node.parts == (r"\Z",):
                return 1 << END
        raise UnsupportedError

    def _repeat(self, node: Repeat, following: int) -> int:
        if node.mode == "?" or isinstance(node.body, Repeat) or _can_be_empty(node.body):
            raise UnsupportedError
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
                raise UnsupportedError
            for _ in range(node.most - node.least):
                following = self.add("either", self._node(node.body, following), stop)
        for _ in range(node.least):
            following = self._node(node.body, following)
        return following

    def before_gaps(self, entry: int) -> tuple[int, int]:
        """Return an entry that also takes text without a match, and the classes that begin a match.

        Such text is a run of classes that begin no match, or one code point of the others.
        """
        first = 0
        for step, mask in self.closure([entry]):
            first |= mask if self.steps[step][0] == "take" else 0
        match = self.add("match")
        loop = self.add("either")
        run = self.add("take", self.every & ~first, loop)
        self.steps[loop] = ("either", run, match)
        return self.add("either", entry, run, self.add("take", first, match)), first

    def closure(self, steps: list[int]) -> State:
        """Return the threads that begin at these steps, in order of priority, up to what each takes next."""
        threads: list[tuple[int, int]] = []
        seen: dict[int, int] = {}
        ended = 0  # classes before which a thread of higher priority has ended the match
        todo = [(step, self.every) for step in reversed(steps)]
        while todo:
            step, mask = todo.pop()
            mask &= ~(seen.get(step, 0) | ended)
            if not mask:
                continue
            seen[step] = seen.get(step, 0) | mask
            kind, *rest = self.steps[step]
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

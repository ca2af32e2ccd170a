"""The format of precompiled character maps: a double array of Darts-clone (Yata), and the texts that it leads to.

The bytes of a map are the size of the trie, the trie, and the texts, each ended by NUL. The trie is an array of
little-endian uint32 units. The children of the unit at `place` are at `base ^ byte`, where base = place ^ offset(unit).
A unit stores the byte that leads to it. The child 0 of the end of a key stores the offset of its text.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Bits of units: whether it ends a key, the byte that leads to it, and whether it is a leaf.
HAS_LEAF = 1 << 8
LABEL = 1 << 31 | 0xFF
LEAF = 1 << 31


def offset_of(unit: int) -> int:
    """Return the offset from the place of a unit to the base of its children, by exclusive or."""
    return unit >> 10 << ((unit & 1 << 9) >> 6)


Node = tuple[bytes | None, tuple[tuple[int, int], ...]]  # the text of the key that ends here; bytes and next nodes
OPEN_BLOCKS = 16


def compile_map(replacements: Mapping[bytes, bytes]) -> bytes:
    """Return the bytes of a map. Keys must not contain NUL. Equal subtrees of the trie are stored once."""
    nodes = _nodes_of(replacements)
    texts = bytearray()
    starts: dict[bytes, int] = {}
    free = _FreeUnits()
    root = free.base_of([0])
    units = [0]
    bases: dict[int, int] = {}
    waiting = [(root, len(nodes) - 1)]
    while waiting:
        place, node = waiting.pop()
        text, children = nodes[node]
        if node not in bases:
            bases[node] = base = free.base_of([*([0] if text is not None else []), *(byte for byte, _ in children)])
            units += [0] * (len(free) - len(units))
            if text is not None:
                if text not in starts:
                    starts[text] = len(texts)
                    texts += text + b"\0"
                units[base] = LEAF | starts[text]
            for byte, child in children:
                units[base ^ byte] = byte
                waiting.append((base ^ byte, child))
        offset = place ^ bases[node]
        assert offset < 1 << 21, "too many nodes"
        units[place] |= offset << 10 | (HAS_LEAF if text is not None else 0)
    for place, label in free.unused():
        units[place] = label
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(trie).to_bytes(4, "little") + trie + bytes(texts)


def _nodes_of(replacements: Mapping[bytes, bytes]) -> list[Node]:
    """Return the distinct nodes of the trie of all keys, children before parents."""
    numbers: dict[Node, int] = {}

    def number_of(keys: list[tuple[bytes, bytes]], depth: int) -> int:
        text = None
        below: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, replacement in keys:
            if len(key) == depth:
                text = replacement
            else:
                below.setdefault(key[depth], []).append((key, replacement))
        node = text, tuple((byte, number_of(longer, depth + 1)) for byte, longer in sorted(below.items()))
        return numbers.setdefault(node, len(numbers))

    number_of(list(replacements.items()), 0)
    return list(numbers)


class _FreeUnits:
    """The free units of a double array, in blocks of 256: the children of a base are in its block."""

    def __init__(self) -> None:
        import numpy as np

        self._places = np.arange(256)
        self._units = np.ones((0, 256), dtype=np.bool_)
        self._bases = np.ones((0, 256), dtype=np.bool_)

    def base_of(self, labels: list[int]) -> int:
        """Return a base that was not returned before, with free units for the children, which are then used."""
        import numpy as np

        first = max(0, len(self._units) - OPEN_BLOCKS)
        possible = self._bases[first:].copy()
        for label in labels:
            possible &= self._units[first:, self._places ^ label]
        if not possible.any():
            self._units, self._bases = (
                np.concatenate([free, np.ones((1, 256), np.bool_)]) for free in (self._units, self._bases)
            )
            return self.base_of(labels)
        base = 256 * first + int(possible.argmax())
        self._bases.flat[base] = False
        self._units.flat[[base ^ label for label in labels]] = False
        return base

    def unused(self) -> Iterator[tuple[int, int]]:
        """Yield the free units, each with a label that no walk matches: it belongs to a base that no node has."""
        for block in range(len(self._units)):
            base = int(self._bases[block].argmax())
            for place in self._units[block].nonzero()[0].tolist():
                yield 256 * block + place, place ^ base

    def __len__(self) -> int:
        return self._units.size

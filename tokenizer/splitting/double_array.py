"""The format of precompiled character maps: a double array of Darts-clone (Yata), and the texts that it leads to.

The bytes of a map are the size of the trie, the trie, and the texts, each ended by NUL. The trie is an array of
little-endian uint32 units. The children of the unit at `place` are at `base ^ byte`, where base = place ^ offset(unit).
A unit stores the byte that leads to it. The child 0 of the end of a key stores the offset of its text.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# Bits of units: whether it ends a key, the byte that leads to it, and whether it is a leaf.
HAS_LEAF = 1 << 8
LABEL = 1 << 31 | 0xFF
LEAF = 1 << 31


def offset_of(unit: int) -> int:
    """Return the offset from the place of a unit to the base of its children, by exclusive or."""
    return unit >> 10 << ((unit & 1 << 9) >> 6)


def compile_map(replacements: Mapping[bytes, bytes]) -> bytes:
    """Return the bytes of a map. Every node takes 256 units, so this is for small maps. Keys must not contain NUL."""
    units, texts = [0] * 256, bytearray()

    def place_children(keys: dict[bytes, bytes], place: int, depth: int) -> None:
        base = len(units)
        units.extend([0] * 256)
        offset = place ^ base
        units[place] |= offset << 10 if offset < 1 << 21 else offset >> 8 << 10 | 1 << 9
        assert offset < 1 << 21 or not offset & 0xFF, "too many nodes"
        below: dict[int, dict[bytes, bytes]] = {}
        for key, text in keys.items():
            if len(key) == depth:
                units[place] |= HAS_LEAF
                units[base] = LEAF | len(texts)
                texts.extend(text + b"\0")
            else:
                below.setdefault(key[depth], {})[key] = text
        for byte, longer in below.items():
            units[base ^ byte] |= byte
            place_children(longer, base ^ byte, depth + 1)

    place_children(dict(replacements), 0, 0)
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(trie).to_bytes(4, "little") + trie + bytes(texts)

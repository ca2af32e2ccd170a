"""SentencePiece's precompiled character map: a trie of UTF-8 strings with the text that replaces each."""

from __future__ import annotations

import sys
from array import array
from functools import cached_property

from tokenizer.splitting.double_array import HAS_LEAF, LABEL, LEAF, offset_of
from tokenizer.splitting.graphemes import BOUNDARY, CLASSES, START, code_point_classes, transitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_UNITS = 1 << 20
LONGEST_REPLACEMENT = 1 << 10  # bytes
SHORT_CLUSTER = 6  # bytes; `tokenizers` replaces clusters below this size as a whole


class CharacterMap:
    """A checked map. Raises ValueError, which completes a sentence about the field, for damaged bytes.

    compiled: the bytes as files store them. units: the double array. texts: the replacements.
    """

    def __init__(self, compiled: bytes):
        self.compiled = compiled
        size = int.from_bytes(compiled[:4], "little")
        if not 4 <= size <= len(compiled) - 4 or size % 4:
            raise ValueError(f"says that its trie has {size:,} bytes; the whole field has {len(compiled):,}")
        if size > 4 * MOST_UNITS:
            raise ValueError(f"has a trie of {size // 4:,} units; at most {MOST_UNITS:,} are supported")
        self.units: Sequence[int] = array("I", compiled[4 : 4 + size])
        if sys.byteorder == "big":
            self.units.byteswap()
        self.texts = compiled[4 + size :]
        self._check()

    def __reduce__(self) -> tuple[type[CharacterMap], tuple[bytes]]:
        return CharacterMap, (self.compiled,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharacterMap) and self.compiled == other.compiled

    def __hash__(self) -> int:
        return hash(self.compiled)

    def _check(self) -> None:
        """Check that walks stay in the trie and end, and that every key has a text in UTF-8."""
        try:
            self.texts.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"has a replacement that is not UTF-8, at byte {error.start} of the texts") from None
        units = self.units
        children: dict[int, list[int]] = {}  # from each base to the places of its children
        for place, unit in enumerate(units):
            if unit < LEAF and (byte := unit & 0xFF):
                children.setdefault(place ^ byte, []).append(place)
        done: set[int] = set()
        open_bases: set[int] = set()
        stack = [(offset_of(units[0]), False)]
        while stack:
            base, left = stack.pop()
            if left:
                open_bases.discard(base)
                done.add(base)
                continue
            if base in open_bases:
                raise ValueError("has a trie with a cycle")
            if base in done:
                continue
            open_bases.add(base)
            stack.append((base, True))
            for place in children.get(base, ()):
                unit = units[place]
                below = place ^ offset_of(unit)
                if below >= len(units):
                    raise ValueError(f"has a trie that is cut off: unit {place:,} leads beyond the last one")
                if unit & HAS_LEAF:
                    self._check_leaf(below)
                stack.append((below, False))

    def _check_leaf(self, place: int) -> None:
        start = self.units[place] & ~LEAF
        end = self.texts.find(b"\0", start, start + LONGEST_REPLACEMENT + 1) if start < len(self.texts) else -1
        if end < 0 or self.texts[start] & 0xC0 == 0x80:
            raise ValueError(
                f"has a key with a replacement at byte {start:,} of the texts, where no text of up to "
                f"{LONGEST_REPLACEMENT:,} bytes starts"
            )

    def shortest(self, key: bytes) -> bytes | None:
        """Return the replacement of the shortest key that `key` starts with, None if there is none."""
        units, base = self.units, offset_of(self.units[0])
        for byte in key:
            place = base ^ byte
            if byte == 0 or place >= len(units) or units[place] & LABEL != byte:
                return None
            base = place ^ offset_of(units[place])
            if units[place] & HAS_LEAF:
                return self._text(base)
        return None

    def longest(self, text: bytes, place: int) -> tuple[bytes, int] | None:
        """Return the replacement of the longest key at a place of a text, and the place after it; None if none."""
        units, base = self.units, offset_of(self.units[0])
        found = None
        for end in range(place, len(text)):
            child = base ^ text[end]
            if text[end] == 0 or child >= len(units) or units[child] & LABEL != text[end]:
                break
            base = child ^ offset_of(units[child])
            if units[child] & HAS_LEAF:
                found = base, end + 1
        return None if found is None else (self._text(found[0]), found[1])

    def _text(self, leaf: int) -> bytes:
        start = self.units[leaf] & ~LEAF
        return self.texts[start : self.texts.index(b"\0", start)]

    def normalize(self, text: str) -> str:
        """Return a text with its characters replaced as in `tokenizers`.

        A grapheme cluster of less than SHORT_CLUSTER bytes becomes the replacement of the shortest key that it starts
        with; the rest of the cluster is lost. Other clusters are replaced code point by code point.
        """
        return "".join(map(self._clusters.__getitem__, self._cut(text)))

    def replacements(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield each part of a text that is replaced as a whole, with its replacement."""
        for cluster in self._cut(text):
            if len(cluster) > 1 and not self.replaces_whole(cluster.encode()):
                yield from ((character, self._clusters[character]) for character in cluster)
            elif cluster:
                yield cluster, self._clusters[cluster]

    def replaces_whole(self, cluster: bytes) -> bool:
        """Return whether a grapheme cluster is replaced as a whole."""
        return len(cluster) < SHORT_CLUSTER and self.shortest(cluster) is not None

    def _cut(self, text: str) -> Iterator[str]:
        """Yield the grapheme clusters of a text."""
        classes, steps, width = code_point_classes(), transitions(), len(CLASSES)
        state, cluster = START, ""
        for character in text:
            step = steps[state * width + classes[ord(character)]]
            state = step & ~BOUNDARY
            if step & BOUNDARY and cluster:
                yield cluster
                cluster = ""
            cluster += character
        yield cluster

    @cached_property
    def _clusters(self) -> _Clusters:
        return _Clusters(self)


class _Clusters(dict[str, str]):
    """A cache from grapheme clusters to the text that replaces them."""

    def __init__(self, characters: CharacterMap):
        self._map = characters

    def __missing__(self, cluster: str) -> str:
        encoded = cluster.encode()
        whole = self._map.shortest(encoded) if len(encoded) < SHORT_CLUSTER else None
        if whole is not None:
            text = whole.decode()
        elif len(cluster) <= 1:
            text = cluster
        else:
            text = "".join(self[character] for character in cluster)
        if len(encoded) <= 4 * SHORT_CLUSTER:  # longer ones are rare, and might take much memory
            self[cluster] = text
        return text

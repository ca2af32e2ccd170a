"""numba kernels of near duplicates: bytes to shingles, shingles to MinHash signatures, and exact Jaccard similarity.

A shingle is five consecutive words, as a 64-bit hash. A word is a longest run of ASCII letters, ASCII digits and bytes
from 0x80 on. ASCII letters count as lower case. Other ASCII bytes and the punctuation in U+0080-00BF, U+2000-207F and
U+3000-303F separate words. In scripts without spaces each character is a word: Thai, Lao, Tibetan, Burmese, Khmer,
kana, CJK ideographs, and everything from U+F000 on. Any bytes are a text: a stray byte in invalid UTF-8 is a letter.
"""

import numpy as np

from tokenizer.kernels.tools import inlined, internal, kernel

WORDS = 5  # of a shingle
BANDS, ROWS = 14, 8  # as in FineWeb (Penedo et al. 2024) and datatrove
PERMUTATIONS = BANDS * ROWS
SIMILAR = (3, 4)  # a Jaccard similarity of at least 3/4 makes two documents near duplicates

# Permutations h -> a * h + b mod 2**32 with odd a.
_random = np.random.Generator(np.random.PCG64(0))
MULTIPLIERS = _random.integers(0, 1 << 32, PERMUTATIONS, np.uint32) | np.uint32(1)
INCREMENTS = _random.integers(0, 1 << 32, PERMUTATIONS, np.uint32)

_OUTSIDERS = 256  # see `unite`
_START = np.uint64(0xCBF29CE484222325)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SEPARATOR, _ALONE, _LETTER = 0, 1, 2


def _kinds() -> np.ndarray:
    """Return the kind of a byte from 0x80 on, by that byte and the next, uint8 (256, 256)."""
    kinds = np.full((256, 256), _LETTER, np.uint8)
    kinds[0xC2, 0x80:0xC0] = kinds[0xE2, 0x80:0x82] = kinds[0xE3, 0x80] = _SEPARATOR
    kinds[0xE0, 0xB8:0xC0] = kinds[0xE1, 0x80:0x83] = kinds[0xE1, 0x9E:0xA0] = _ALONE
    kinds[0xE3, 0x81:0xC0] = kinds[0xE4:0xEA, 0x80:0xC0] = kinds[0xEF:0xF5, 0x80:0xC0] = _ALONE
    return kinds


_KINDS = _kinds()
# Letters and digits by byte, in lower case, and all bytes from 0x80 on; 0 for other bytes.
_FOLDED = np.arange(256, dtype=np.uint8)
_FOLDED[:128] = [ord(chr(byte).lower()) if chr(byte).isalnum() else 0 for byte in range(128)]


@inlined
def _kind(data, i, end):
    """Return the kind of data[i], in a document that ends at `end`."""
    byte = data[i]
    if byte < 128:
        return _LETTER if _FOLDED[byte] else _SEPARATOR
    return _KINDS[byte, data[i + 1]] if i + 1 < end else _LETTER


@inlined
def _size(byte):
    """Return the bytes of the UTF-8 character that begins with `byte`."""
    return 1 if byte < 128 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4


@inlined
def _mix(value):
    """Return a permutation of uint64 in which every bit depends on every bit (splitmix64, Steele et al. 2014)."""
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)


@inlined
def _with_byte(value, byte):
    """Return the hash of a word after one more byte."""
    value = (value ^ np.uint64(byte)) * _FACTOR
    return value ^ value >> np.uint64(32)


@internal
def _write_shingles(data, i, end, words, out):
    """Write the shingles whose last word begins in data[i:end] to `out`, until it is full.

    words: uint64 (WORDS + 1,), the hashes of the last words, and their number; zeros at the begin of a document.
    Returns the number of shingles and where to continue.
    """
    count = 0
    while i < end and count < len(out):
        kind = _kind(data, i, end)
        stop = min(end, i + _size(data[i]))
        if kind == _SEPARATOR:
            i = stop
            continue
        word = _START
        if kind == _ALONE:
            while i < stop:
                word = _with_byte(word, data[i])
                i += 1
        while kind == _LETTER:
            word = _with_byte(word, _FOLDED[data[i]])
            i += 1
            kind = _kind(data, i, end) if i < end else _SEPARATOR
        for k in range(WORDS - 1):
            words[k] = words[k + 1]
        words[WORDS - 1] = _mix(word)
        words[WORDS] += np.uint64(1)
        if words[WORDS] >= np.uint64(WORDS):
            shingle = words[0]
            for k in range(1, WORDS):
                shingle = shingle * _FACTOR + words[k]
            out[count] = _mix(shingle)
            count += 1
    return count, i


@kernel
def write_shingles(data, start, end, words, out):
    """Write the shingles of the document data[start:end], with repetitions, to `out`, uint64, and return their number.

    data: uint8; words: uint64 (WORDS + 1,), working memory. `out` must have room for all shingles.
    """
    words[:] = np.uint64(0)
    return _write_shingles(data, start, end, words, out)[0]


@inlined
def _update(signature, shingles, count):
    """Update a signature, uint32 (PERMUTATIONS,), with shingles."""
    for i in range(count):
        high = np.uint32(shingles[i] >> np.uint64(32))
        for k in range(PERMUTATIONS):
            signature[k] = min(signature[k], np.uint32(high * MULTIPLIERS[k] + INCREMENTS[k]))


@kernel
def sign(data, offsets, memory, signatures, keys, counts):
    """Write the hashes of the bands of each document's MinHash signature to `keys`, and its shingles to `counts`.

    data: uint8, with document d in data[offsets[d]:offsets[d + 1]]; keys: uint64 (D, BANDS); counts: int64 (D,), with
    repetitions. memory: uint64 (WORDS + 2 or more,), working memory. signatures: uint32 (D, PERMUTATIONS), or one row
    as working memory.
    """
    words = memory[: WORDS + 1]
    shingles = memory[WORDS + 1 :]
    for d in range(len(offsets) - 1):
        signature = signatures[min(d, len(signatures) - 1)]
        signature[:] = np.uint32(0xFFFFFFFF)
        words[:] = np.uint64(0)
        counts[d] = 0
        i = offsets[d]
        while i < offsets[d + 1]:
            count, i = _write_shingles(data, i, offsets[d + 1], words, shingles)
            _update(signature, shingles, count)
            counts[d] += count
        for band in range(BANDS):
            key = np.uint64(0)
            for row in range(ROWS):
                key = _mix(key * _FACTOR + np.uint64(signature[band * ROWS + row]))
            keys[d, band] = key


@internal
def _common(sets, i, i_end, j, j_end):
    """Return the number of common elements of sets[i:i_end] and sets[j:j_end], which ascend."""
    common = 0
    while i < i_end and j < j_end:
        a = sets[i]
        b = sets[j]
        common += a == b
        i += a <= b
        j += b <= a
    return common


@kernel
def common(sets, starts, sizes, pairs, out):
    """Write the number of common elements of each pair of sets to `out`, int64 (P,).

    sets: uint64; set s is sets[starts[s]:starts[s] + sizes[s]] and ascends; pairs: int64 (P, 2).
    """
    for p in range(len(pairs)):
        a = pairs[p, 0]
        b = pairs[p, 1]
        out[p] = _common(sets, starts[a], starts[a] + sizes[a], starts[b], starts[b] + sizes[b])


@internal
def _root(parents, s):
    while parents[s] != s:
        parents[s] = parents[parents[s]]
        s = parents[s]
    return s


@internal
def _similar(sets, starts, sizes, a, b):
    """Return whether the Jaccard similarity of two sets is at least SIMILAR."""
    small, large = min(sizes[a], sizes[b]), max(sizes[a], sizes[b])
    if small * SIMILAR[1] < large * SIMILAR[0]:
        return False
    both = _common(sets, starts[a], starts[a] + sizes[a], starts[b], starts[b] + sizes[b])
    return both * SIMILAR[1] >= (small + large - both) * SIMILAR[0]


@kernel
def unite(sets, starts, sizes, members, ends, parents, memory):
    """Join similar sets of each bucket in a union-find forest, whose roots are the least numbers.

    sets, starts, sizes: see `common`; members: int64, the sets of all buckets; ends: int64, where each bucket ends;
    parents: int64; memory: int64 with room for the largest bucket. Sets that are joined already are not compared.

    A set that differs from _OUTSIDERS others of its bucket is compared with no more of them, so a bucket takes linear
    time. Returns how often that happened.
    """
    start = 0
    cut = 0
    for bucket in range(len(ends)):
        members_here = ends[bucket] - start
        for k in range(members_here):
            memory[k] = members[start + k]
        # memory[:joined] has the components found so far, and memory[joined:] the outsiders of the last one. Its sets
        # in memory[:compared] have met all outsiders.
        joined = 0
        for compared in range(members_here):
            if compared == joined:
                joined += 1
            a = memory[compared]
            met = 0
            for k in range(joined, members_here):
                b = memory[k]
                root_a, root_b = _root(parents, a), _root(parents, b)
                if root_a != root_b:
                    if met == _OUTSIDERS:
                        cut += 1
                        break
                    if not _similar(sets, starts, sizes, a, b):
                        met += 1
                        continue
                    parents[max(root_a, root_b)] = min(root_a, root_b)
                # The outsider becomes the last of the component; the order of the outsiders changes.
                memory[k] = memory[joined]
                memory[joined] = b
                joined += 1
        start = ends[bucket]
    return cut

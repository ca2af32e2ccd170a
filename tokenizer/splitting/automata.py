"""The automaton of a split pattern: a table of actions over states and classes of code points.

`regex_compilation` makes it from the pattern's regex. One scanner runs it over a text: `scanner.py` in plain Python,
`kernels/scan.py` in machine code. The scanner reads the class of the next code point. It either takes the code point
into the current pretoken or ends the pretoken, at the current position or at an earlier mark. Marks let `\\s+(?!\\S)`
leave the last space to the next word. After a mark the scanner rereads at most one stretch, so any text takes linear
time.

The automata of the named patterns are stored in `automata.bin`, since compiling one takes as long as starting Python.
All tables are bytes and numbers: importing this module loads no numpy.
"""

from __future__ import annotations

import struct
from collections import namedtuple
from functools import cache, cached_property
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Classes. END is the end of the text or of its valid UTF-8. MULTIBYTE is the class of bytes from 0x80 in
# `byte_classes`: look the code point up in `code_point_classes`. The classes of code points follow.
END, MULTIBYTE, FIRST_CLASS = range(3)
MOST_CLASSES = 256

# An action below EMIT takes the code point. It is the start of the next state's row in the table, and MARK is a flag:
# set the mark before this code point. The other actions end the pretoken: EMIT here, EMIT_AT_MARK at the mark,
# EMIT_BYTE after one byte of invalid UTF-8.
MARK, EMIT, EMIT_AT_MARK, EMIT_BYTE = 0x4000, 0x8000, 0x8001, 0x8002
START = 0  # the row in which every pretoken begins

# The rule sets of `kernels/ascii.py`, a fast path for ASCII text.
ASCII_GPT2, ASCII_CL100K, ASCII_QWEN2, ASCII_O200K, NO_ASCII_RULES = range(5)

_FILE = Path(__file__).with_name("automata.bin")


# A named tuple, because importing `dataclasses` takes longer than encoding a short text.
_Tables = namedtuple("_Tables", ["actions", "byte_classes", "runs", "splits_at_spaces"])


class Automaton(_Tables):
    """The tables that the scanner runs, as plain bytes.

    actions: uint16, the action for (row, class) at row + class.
    byte_classes: (256,), the class of each ASCII byte, and MULTIBYTE from 0x80.
    runs: little-endian uint32 for each run of code points of one class: the class in the low byte, the length above it.
        Surrogates, which encode invalid UTF-8, are END.
    splits_at_spaces: whether a pretoken always ends before a space or line feed that follows an ASCII letter or digit.
    """

    @cached_property
    def table(self) -> memoryview[int]:
        """The actions as numbers."""
        return memoryview(self.actions).cast("H")

    @cached_property
    def code_point_classes(self) -> bytes:
        """The class of each code point, (0x110000,)."""
        return b"".join(bytes([run & 255]) * (run >> 8) for (run,) in struct.iter_unpack("<I", self.runs))


@cache
def stored_automata() -> dict[str, Automaton]:
    """Return the automata of `automata.bin` by regex."""
    import json
    import zlib

    stored = json.loads(zlib.decompress(_FILE.read_bytes()))
    return {
        regex: Automaton(*(field.encode("latin-1") if isinstance(field, str) else field for field in tables))
        for regex, tables in stored.items()
    }


def store_automata(automata: Mapping[str, Automaton]) -> None:
    """Write `automata.bin`."""
    import json
    import zlib

    def spell(tables: Iterable[bytes | bool]) -> list[str | bool]:
        return [field.decode("latin-1") if isinstance(field, bytes) else field for field in tables]

    content = {regex: spell(automaton) for regex, automaton in automata.items()}
    _FILE.write_bytes(zlib.compress(json.dumps(content, ensure_ascii=False).encode(), 9))

"""Text for a terminal: control characters become symbols or escapes, and arguments become options."""

import re
import unicodedata
from codecs import getincrementaldecoder
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tokenizer.splitting.integers import FIRST

_SHOWN = {" ": "·", "\n": "⏎", "\r": "␍", "\t": "→", "\x7f": "␡"}
# C0 and C1 controls except tab and newline, bidirectional overrides, and surrogates, which UTF-8 cannot encode.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
QUOTES = "'\""
_CODE = re.compile("`([^`]*)`")
_ARGUMENT = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*)(?:=(.*))?")
_INTEGERS = re.compile(f"[{chr(FIRST)}-\U0010ffff]+")
_on_command_line = False


@contextmanager
def command_line() -> Iterator[None]:
    """Name options instead of arguments in messages, inside a `with` block."""
    global _on_command_line
    before, _on_command_line = _on_command_line, True
    try:
        yield
    finally:
        _on_command_line = before


def message(text: str) -> str:
    """Return a message that is safe on a terminal. On the command line it names options."""
    return safe(as_options(text) if _on_command_line else text)


def as_options(text: str, names: Collection[str] | None = None) -> str:
    """Return a sentence for the command line: "`top_k`" becomes "--top-k", and "`split='none'`" "--split none".

    Messages and docstrings name arguments as in Python, in backticks. Other text in backticks, such as a command, is
    unchanged. With `names`, only these arguments change.
    """

    def option(code: re.Match[str]) -> str:
        argument = _ARGUMENT.fullmatch(code[1].removeprefix("as_"))
        if not argument or (names is not None and argument[1] not in names):
            return code[0]
        *tables, name = argument[1].replace("_", "-").split(".")
        spelled = "--" + ".".join([*tables, f"no-{name}" if argument[2] == "False" else name])
        return spelled if argument[2] in (None, "True", "False") else f"{spelled} {argument[2].strip(QUOTES)}"

    return _CODE.sub(option, text)


def safe(text: str) -> str:
    """Return `text` with escapes for characters that can control a terminal, except newlines and tabs."""
    return _UNSAFE.sub(lambda match: _SHOWN.get(match[0]) or _escape(ord(match[0])), text)


def visible(piece: bytes) -> str:
    """Return `piece` as one line of visible characters.

    White space and control characters become symbols, invalid UTF-8 becomes \\xNN, and other invisible characters
    become \\uNNNN. Integers, which are characters from U+F0000 on, become numbers: ⟨60 64 67⟩.
    """
    text = piece.decode("utf-8", "surrogateescape")
    if _INTEGERS.search(text):
        text = _INTEGERS.sub(lambda run: f"⟨{' '.join(str(ord(c) - FIRST) for c in run[0])}⟩", text)
        return text if text.isprintable() else visible(text.encode("utf-8", "surrogateescape"))
    shown = "".join(_SHOWN.get(c) or (c if c.isprintable() else _escape(ord(c))) for c in text)
    return "◌" + shown if text and unicodedata.category(text[0]).startswith("M") else shown


def whole_characters(data: bytes) -> str:
    """Return UTF-8 as text, without an incomplete character at its end; other invalid bytes become U+FFFD."""
    return getincrementaldecoder("utf-8")("replace").decode(data)


def _escape(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

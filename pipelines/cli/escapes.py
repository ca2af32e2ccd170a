"""Text that is safe on a terminal: control characters become symbols or escapes."""

import re
import unicodedata

_SHOWN = {" ": "·", "\n": "⏎", "\r": "␍", "\t": "→", "\x7f": "␡"}
# C0 and C1 controls except tab and newline, bidirectional overrides, and surrogates, which UTF-8 cannot encode.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: str) -> str:
    """Return `text` with escapes for characters that can control a terminal, except newlines and tabs."""
    return _UNSAFE.sub(lambda match: _SHOWN.get(match[0]) or _escape(ord(match[0])), text)


def visible(piece: bytes) -> str:
    """Return `piece` as one line of visible characters.

    White space and control characters become symbols, invalid UTF-8 becomes \\xNN, and other invisible characters
    become \\uNNNN.
    """
    text = piece.decode("utf-8", "surrogateescape")
    shown = "".join(_SHOWN.get(c) or (c if c.isprintable() else _escape(ord(c))) for c in text)
    return "◌" + shown if text and unicodedata.category(text[0]).startswith("M") else shown


def _escape(code: int) -> str:
    if code < 0x20:
        return chr(0x2400 + code)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

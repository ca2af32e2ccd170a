"""The encoding of a text file that is not UTF-8: by its byte-order mark, its NULs, or a guess from its letters."""

import codecs

# Bytes in which `unicode_encoding` looks for a byte-order mark and NULs.
SAMPLE_BYTES = 4096
_GUESSED_BYTES = 200_000
# Below this confidence, chardet is often wrong: a dozen words are needed.
_CONFIDENCE = 0.1
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Which of four bytes are NUL in text that is mostly Latin letters.
_NULS = {
    "utf-16-le": (False, True, False, True),
    "utf-16-be": (True, False, True, False),
    "utf-32-le": (False, True, True, True),
    "utf-32-be": (True, True, True, False),
}


class OtherEncoding(Exception):  # noqa: N818 - the file is read again, so it is no error
    """A file is not UTF-8, but has the encoding `encoding`."""

    def __init__(self, encoding: str):
        super().__init__(encoding)
        self.encoding = encoding


def unicode_encoding(sample: bytes) -> str | None:
    """Return UTF-16 or UTF-32 if a byte-order mark or the positions of NULs show that encoding, otherwise None."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if sample.startswith(mark):
            return encoding
    if len(sample) < 8 or b"\0" not in sample:
        return None
    nul_shares = [part.count(0) / len(part) for part in (sample[place::4] for place in range(4))]
    for encoding, nuls in _NULS.items():
        if all(share > 0.7 if nul else share < 0.1 for share, nul in zip(nul_shares, nuls, strict=True)):
            return encoding
    return None


def guess_encoding(data: bytes | memoryview, offset: int) -> tuple[str | None, bool]:
    """Return the probable encoding of a text that is not UTF-8 at byte `offset`, and whether the guess is good.

    The encoding is None for binary data, and for UTF-8 with some damaged bytes.
    """
    import chardet

    sample = bytes(data[max(0, offset - 1000) :][:_GUESSED_BYTES])
    text = sample.decode(errors="replace")
    damaged = text.count("\ufffd")
    if sum(character > "\x7f" for character in text) > 2 * damaged:
        return None, False  # most characters beyond ASCII are whole
    eras = chardet.EncodingEra.MODERN_WEB | chardet.EncodingEra.LEGACY_ISO
    guess = chardet.detect(sample, encoding_era=eras, prefer_superset=True, compat_names=False)
    encoding, confidence = guess["encoding"], guess["confidence"]
    if encoding is None or encoding.startswith("utf-8"):
        return None, False
    return encoding, confidence >= _CONFIDENCE


def invalid_utf8_offset(data: memoryview) -> int | None:
    """Return the offset of the first byte that is not UTF-8, or None. Needs little memory for any length."""
    step, start, rest = 1 << 20, 0, b""
    while start < len(data):
        piece = rest + bytes(data[start : start + step])
        before = start - len(rest)
        start += step
        try:
            _, used = codecs.utf_8_decode(piece, "strict", start >= len(data))
        except UnicodeDecodeError as error:
            return before + error.start
        rest = piece[used:]
    return None


def decode_as_utf8(data: memoryview, encoding: str, whole: bool) -> bytes | None:
    """Return a text in `encoding` as UTF-8, None if it has other bytes. Unless `whole`, it may end in a character."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(bytes(data), final=whole).encode()
    except UnicodeError:
        return None
